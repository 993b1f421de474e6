//! The model backends that this installation has.

use std::{path::PathBuf, sync::Arc};

use pyo3::{prelude::*, sync::PyOnceLock};
use relevo_core::policy::Backend;
use relevo_onnx::OnnxBackend;

/// The backends, in the order in which they are asked for a file.
pub(crate) fn backends(py: Python<'_>) -> PyResult<&'static [Arc<dyn Backend>]> {
    static BACKENDS: PyOnceLock<Vec<Arc<dyn Backend>>> = PyOnceLock::new();
    let backends = BACKENDS.get_or_try_init(py, || {
        let onnx: Arc<dyn Backend> = Arc::new(OnnxBackend::with_library_candidates(onnxruntime_folders(py)?));
        Ok::<_, PyErr>(vec![onnx])
    })?;
    Ok(backends)
}

/// Where an installed `onnxruntime` keeps its library. The package is found, not imported.
fn onnxruntime_folders(py: Python<'_>) -> PyResult<Vec<PathBuf>> {
    let spec = py.import("importlib.util")?.call_method1("find_spec", ("onnxruntime",))?;
    if spec.is_none() {
        return Ok(Vec::new());
    }
    let folders: Vec<PathBuf> = spec
        .getattr("submodule_search_locations")?
        .try_iter()?
        .map(|folder| folder?.extract::<PathBuf>())
        .collect::<PyResult<_>>()?;
    Ok(folders.into_iter().map(|folder| folder.join("capi")).collect())
}
