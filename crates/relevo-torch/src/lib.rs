//! TorchScript as a model backend of Relevo, behind the table of `relevo-abi`.
//!
//! Read on with `model` (from a file to a description), `probe` and `guess` (shapes that no file declares), `shim` (the C++
//! part: sessions and calls, in `shim/`).

mod archive;
mod declared;
mod device;
mod guess;
mod model;
mod probe;
mod scalar;
mod shim;
mod start;

use std::path::Path;

use pyo3::{ffi, prelude::*, types::PyCapsule};
use relevo_abi::{
    CAPSULE_NAME,
    export::{self, Options, Source},
};

use crate::model::TorchModel;

const EXTENSIONS: [&str; 5] = ["pt", "pth", "ts", "jit", "torchscript"];

struct TorchBackend {
    version: String,
    torch: Torch,
}

/// The torch that is installed.
struct Torch {
    version: String,
    /// Whether it is built with CUDA, or with `ROCm`, which goes by the same name. Its libraries tell it of a machine with a GPU
    /// alone.
    has_cuda: bool,
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

    fn devices(&self) -> export::Result<Vec<export::Device>> {
        Ok(device::all(&self.torch))
    }

    fn load(&self, source: Source<'_>, options: &Options) -> export::Result<TorchModel> {
        TorchModel::load(source, options, &self.torch)
    }
}

/// The native part of the Python package `relevo_torch`.
#[pymodule]
mod _native {
    use super::{Bound, CAPSULE_NAME, PyCapsule, PyResult, Python, Torch, TorchBackend, export, ffi, pyfunction};

    /// The version of torch that this was built for.
    #[pymodule_export]
    const TORCH_VERSION: &str = "2.13";

    /// A capsule with the table of the backend. `torch` is the version of torch, which must have been imported, and `has_cuda`
    /// whether it is built with CUDA.
    #[pyfunction]
    fn backend<'py>(py: Python<'py>, torch: &str, has_cuda: bool) -> PyResult<Bound<'py, PyCapsule>> {
        let version = format!("{}, torch {torch}", env!("CARGO_PKG_VERSION"));
        let table = export::table(TorchBackend { version, torch: Torch { version: torch.into(), has_cuda } });
        let table = std::ptr::from_ref(table).cast_mut().cast();
        // SAFETY: the pointer is not null, and the table and the name stay for the rest of the process.
        unsafe {
            let capsule = ffi::PyCapsule_New(table, CAPSULE_NAME.as_ptr(), None);
            Ok(Bound::from_owned_ptr_or_err(py, capsule)?.cast_into_unchecked())
        }
    }
}
