//! ONNX Runtime as a model backend: [`OnnxBackend`] loads `.onnx` files, and sessions run them on a device.
//!
//! ONNX Runtime itself is a shared library that is found and loaded when the first model is (`library`); nothing of it
//! is linked in. Read on with `graph` (what a file declares), `model` (loading), `session` (one forward pass); then
//! `inline` (functions written out), `beside` and `weights` (files with weights, NaN in them), `fixed_batch` (a batch of 1 made any), `mixing` (rows that meet) and `noise` (random operators), all on the file's bytes (`wire`).

mod agreement;
mod beside;
mod device;
mod endless;
mod fixed_batch;
mod graph;
mod inline;
mod library;
mod message;
mod mixing;
mod model;
mod noise;
mod open_shapes;
mod proto;
mod rewrite;
#[cfg(test)]
mod rewriter_fuzz;
mod session;
mod stretch;
mod value;
mod weights;
mod widths;
mod wire;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use relevo_core::{
    error::{Error, Result},
    policy::{Backend, Device as DeviceState, LoadOptions, LoadedModel, Model, ModelSource},
};

use crate::{
    device::Device,
    library::Library,
    model::{OnnxModel, Workshop},
};

/// Loads `.onnx` files through ONNX Runtime.
#[derive(Debug, Clone, Default)]
pub struct OnnxBackend {
    candidates: Vec<PathBuf>,
}

impl OnnxBackend {
    /// A backend that finds ONNX Runtime by the environment variable `ORT_DYLIB_PATH` alone.
    pub fn new() -> Self {
        Self::default()
    }

    /// A backend that looks for ONNX Runtime in `candidates` too, in this order: library files, or folders that hold one
    /// (the `onnxruntime/capi` folder of a Python environment). `ORT_DYLIB_PATH` goes before them.
    pub fn with_library_candidates(candidates: Vec<PathBuf>) -> Self {
        Self { candidates }
    }
}

impl OnnxBackend {
    fn devices_of(library: &'static Library) -> Vec<DeviceState> {
        Device::all(library, |device| Workshop { library, device, threads: 1 }.try_out())
    }
}

impl Backend for OnnxBackend {
    fn format(&self) -> &'static str {
        model::FORMAT
    }

    fn accepts(&self, path: &Path) -> bool {
        path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("onnx"))
    }

    fn recognises(&self, bytes: &[u8]) -> bool {
        // The first field of every ONNX file is the version of its format: tag 1, a number.
        bytes.first() == Some(&0x08)
    }

    fn load(&self, source: ModelSource<'_>, options: &LoadOptions) -> Result<Arc<dyn Model>> {
        let path = source.path;
        if options.threads == 0 {
            return Err(Error::Config("a model runs on 1 thread or more, not 0; leave `threads` at 1".into()));
        }
        let device = Device::named(&options.device);
        let library = || library::library(&self.candidates).map_err(|reason| Error::model_load(path, reason));
        let unavailable = |reason: &str, library: &'static Library| {
            let there: Vec<_> = Self::devices_of(library).into_iter().filter(|device| device.fault.is_none()).collect();
            let there: Vec<_> = there.iter().map(|device| format!("`{}`", device.name)).collect();
            Error::DeviceUnavailable(format!(
                "{} was to run on the device `{}`, but ONNX models can run on {} here: {reason}; or load it with device=\"cpu\"",
                path.display(),
                options.device,
                there.join(" and ")
            ))
        };
        let Some(device) = device else {
            let reason = "there is no device of that name; the names are cpu, cuda, cuda:0, cuda:1 …, coreml and mps";
            return Err(unavailable(reason, library()?));
        };
        let library = library()?;
        match device.missing(library) {
            Some(reason) => Err(unavailable(&reason, library)),
            None => Ok(Arc::new(OnnxModel::load(
                source,
                Workshop { library, device, threads: options.threads },
                &options.shapes,
            )?)),
        }
    }

    fn devices(&self) -> Result<Vec<DeviceState>> {
        library::library(&self.candidates).map(Self::devices_of).map_err(Error::DeviceUnavailable)
    }
}

/// Loads an `.onnx` file for the CPU, with one thread a forward pass, and infers its contract. ONNX Runtime is found by
/// `ORT_DYLIB_PATH`; [`LoadedModel::load`] takes everything that can be set.
///
/// # Errors
/// [`Error::ModelLoad`] where the file or ONNX Runtime cannot be loaded, [`Error::Contract`] where the contract is unclear.
pub fn load(path: &Path) -> Result<LoadedModel> {
    LoadedModel::load(path, &[Arc::new(OnnxBackend::new())], &LoadOptions::default(), &BTreeMap::new())
}

/// Whether ONNX Runtime was loaded into this process. It keeps a thread of its own, which a fork leaves behind.
pub fn is_loaded() -> bool {
    library::is_loaded()
}
