//! TorchScript as a model backend of Relevo, behind the table of `relevo-abi`.
//!
//! Read on with `model` (from a file to a description), `probe` and `guess` (shapes that no file declares), `shim` (the C++
//! part: sessions and calls, in `shim/`).

mod archive;
mod device;
mod guess;
mod model;
mod probe;
mod scalar;
mod shim;

use std::path::Path;

use pyo3::{ffi, prelude::*, types::PyCapsule};
use relevo_abi::{
    CAPSULE_NAME,
    export::{self, Options, Source},
};

use crate::model::TorchModel;

const EXTENSIONS: [&str; 3] = ["pt", "pth", "ts"];

struct TorchBackend {
    version: String,
    torch: String,
}

impl export::Backend for TorchBackend {
    type Model = TorchModel;

    fn format(&self) -> &str {
        "torchscript"
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn accepts(&self, path: &Path) -> bool {
        let extension = path.extension().map(|extension| extension.to_string_lossy().to_ascii_lowercase());
        extension.is_some_and(|extension| EXTENSIONS.contains(&extension.as_str()))
    }

    fn recognises(&self, bytes: &[u8]) -> bool {
        archive::begins_like_one(bytes)
    }

    fn load(&self, source: Source<'_>, options: &Options) -> export::Result<TorchModel> {
        TorchModel::load(source, options, &self.torch)
    }
}

/// The native part of the Python package `relevo_torch`.
#[pymodule]
mod _native {
    use super::{Bound, CAPSULE_NAME, PyCapsule, PyResult, Python, TorchBackend, device, export, ffi, pyfunction};

    /// The version of torch that this was built for.
    #[pymodule_export]
    const TORCH_VERSION: &str = "2.13";

    /// A capsule with the table of the backend. `torch` is the version of torch, which must have been imported.
    #[pyfunction]
    fn backend<'py>(py: Python<'py>, torch: &str) -> PyResult<Bound<'py, PyCapsule>> {
        let version = format!("{}, torch {torch}", env!("CARGO_PKG_VERSION"));
        let table = export::table(TorchBackend { version, torch: format!("TorchScript, run by torch {torch}") });
        let table = std::ptr::from_ref(table).cast_mut().cast();
        // SAFETY: the pointer is not null, and the table and the name stay for the rest of the process.
        unsafe {
            let capsule = ffi::PyCapsule_New(table, CAPSULE_NAME.as_ptr(), None);
            Ok(Bound::from_owned_ptr_or_err(py, capsule)?.cast_into_unchecked())
        }
    }

    /// The devices that torch finds.
    #[pyfunction]
    fn devices() -> Vec<String> {
        device::available()
    }
}
