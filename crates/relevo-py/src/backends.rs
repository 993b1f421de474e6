//! The model backends that this installation has: ONNX Runtime, and those of other packages.
//!
//! Others are found by entry points, which takes milliseconds and imports what they name; so they are looked for when a
//! file needs them, and not before.

#![expect(unsafe_code, reason = "a capsule holds a pointer to a backend's table")]

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use pyo3::{ffi, prelude::*, types::PyCapsule};
use relevo_abi::{CAPSULE_NAME, ENTRY_POINTS};
use relevo_core::{
    Error,
    policy::{Backend, ForeignBackend, takes},
};
use relevo_onnx::OnnxBackend;

use crate::error::to_python;

/// Endings of TorchScript files, for which there is a package.
const TORCHSCRIPT: [&str; 5] = ["pt", "pth", "ts", "jit", "torchscript"];
/// How zip archives begin, as TorchScript files do.
const ZIP: &[u8] = b"PK\x03\x04";

/// The backends of other packages that work, by entry point.
static LOADED: Mutex<BTreeMap<String, Arc<ForeignBackend>>> = Mutex::new(BTreeMap::new());

/// A backend of another package, or why it does not work.
struct Other {
    name: String,
    package: String,
    backend: Result<Arc<ForeignBackend>, String>,
}

/// The backends to ask for the file at `path`.
pub(crate) fn backends_for_path(py: Python<'_>, path: &Path) -> PyResult<Vec<Arc<dyn Backend>>> {
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_ascii_lowercase());
    let is_torchscript = extension.is_some_and(|extension| TORCHSCRIPT.contains(&extension.as_str()));
    // What is no file fails for that reason, whoever is asked.
    choose(py, path, |backend| takes(backend, path) || !path.is_file(), is_torchscript)
}

/// The backends to ask for a model in memory, which messages call `name`.
pub(crate) fn backends_for_bytes(py: Python<'_>, name: &str, bytes: &[u8]) -> PyResult<Vec<Arc<dyn Backend>>> {
    choose(py, Path::new(name), |backend| backend.recognises(bytes), bytes.starts_with(ZIP))
}

/// ONNX alone where it takes the model, else all.
fn choose(
    py: Python<'_>,
    path: &Path,
    does_take: impl Fn(&dyn Backend) -> bool,
    is_torchscript: bool,
) -> PyResult<Vec<Arc<dyn Backend>>> {
    let mut chosen = vec![onnx(py)?];
    if does_take(&*chosen[0]) {
        return Ok(chosen);
    }
    let mut problems = Vec::new();
    for other in others(py)? {
        match other.backend {
            Ok(backend) => chosen.push(backend),
            Err(reason) => problems.push(format!(
                "the backend `{}` of the package {} cannot be used: {reason}",
                other.name, other.package
            )),
        }
    }
    if chosen.iter().any(|backend| does_take(&**backend)) {
        return Ok(chosen);
    }
    let refuse = |reason: String| Err(to_python(&Error::model_load(path, reason)));
    if !problems.is_empty() {
        return refuse(problems.join("; "));
    }
    if is_torchscript {
        return refuse(
            "TorchScript is loaded by a package of its own, which is not installed; pip install \"relevo[torch]\" (in a checkout of \
             the repository: make demo-torch)"
                .into(),
        );
    }
    Ok(chosen)
}

/// All backends that work here.
pub(crate) fn working(py: Python<'_>) -> PyResult<Vec<Arc<dyn Backend>>> {
    let mut working = vec![onnx(py)?];
    for other in others(py)? {
        if let Ok(backend) = other.backend {
            working.push(backend);
        }
    }
    Ok(working)
}

fn onnx(py: Python<'_>) -> PyResult<Arc<dyn Backend>> {
    // Held with the interpreter lock alone, so that no child that is forked off finds it locked.
    static ONNX: Mutex<Option<Arc<OnnxBackend>>> = Mutex::new(None);
    if let Some(known) = ONNX.lock().as_ref() {
        return Ok(known.clone());
    }
    let found = Arc::new(OnnxBackend::with_library_candidates(onnxruntime_folders(py)?));
    Ok(ONNX.lock().get_or_insert(found).clone())
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

/// Looks for backends of other packages. One that failed is tried again, as its package may have been mended.
fn others(py: Python<'_>) -> PyResult<Vec<Other>> {
    let options = pyo3::types::PyDict::new(py);
    options.set_item("group", ENTRY_POINTS)?;
    let found = py.import("importlib.metadata")?.call_method("entry_points", (), Some(&options))?;
    found
        .try_iter()?
        .map(|entry| {
            let entry = entry?;
            let name: String = entry.getattr("name")?.extract()?;
            let package = entry.getattr("dist").and_then(|package| package.getattr("name")?.extract());
            let package: String = package.unwrap_or_else(|_| name.clone());
            let backend = load(&entry, &package).map_err(|error| why(py, &error));
            Ok(Other { name, package, backend })
        })
        .collect()
}

/// Loads what an entry point names, unless it was before.
fn load(entry: &Bound<'_, PyAny>, package: &str) -> PyResult<Arc<ForeignBackend>> {
    let key = format!("{package} {}", entry.getattr("value")?);
    if let Some(backend) = LOADED.lock().get(&key) {
        return Ok(Arc::clone(backend));
    }
    let given = entry.call_method0("load")?.call0()?;
    let expected = CAPSULE_NAME.to_string_lossy();
    let Ok(capsule) = given.cast::<PyCapsule>() else {
        let kind = given.get_type().name()?.to_string();
        return Err(crate::error::config(&format!("it gives a {kind}, not a PyCapsule named {expected}")));
    };
    // SAFETY: both are asked of a capsule, with a name that ends in a null character.
    let table = unsafe {
        if ffi::PyCapsule_IsValid(capsule.as_ptr(), CAPSULE_NAME.as_ptr()) == 0 {
            return Err(crate::error::config(&format!(
                "it gives a PyCapsule of another name than {expected}, which this Relevo reads; upgrade relevo and {package}"
            )));
        }
        ffi::PyCapsule_GetPointer(capsule.as_ptr(), CAPSULE_NAME.as_ptr())
    };
    // SAFETY: a capsule of this name holds such a table. It stays for good, because the capsule is never released.
    let backend = unsafe { ForeignBackend::new(package, table.cast_const().cast()) };
    let _ = given.clone().into_ptr();
    let backend = Arc::new(backend.map_err(|error| to_python(&error))?);
    LOADED.lock().insert(key, Arc::clone(&backend));
    Ok(backend)
}

/// What an exception says; its type where it says nothing.
fn why(py: Python<'_>, error: &PyErr) -> String {
    let text = error.value(py).to_string();
    if text.is_empty() {
        error.get_type(py).name().map_or_else(|_| "an error".into(), |name| name.to_string())
    } else {
        text
    }
}

/// Name, package, version or None, problem or None.
type ToldBackend = (String, String, Option<String>, Option<String>);

/// The backends of other packages.
#[pyfunction]
pub(crate) fn other_backends(py: Python<'_>) -> PyResult<Vec<ToldBackend>> {
    let told = |other: Other| match other.backend {
        Ok(backend) => (other.name, other.package, Some(backend.version().to_owned()), None),
        Err(reason) => (other.name, other.package, None, Some(reason)),
    };
    Ok(others(py)?.into_iter().map(told).collect())
}
