//! Finding and loading the ONNX Runtime shared library, once a process.
//!
//! The order is: the file or folder named by `ORT_DYLIB_PATH`, then the candidates that the caller gives. A library that is
//! missing or too old fails the load that asked for it; the next load looks again.

#![expect(unsafe_code, reason = "a shared library is opened and its entry point called")]

use std::{
    ffi::{CStr, OsStr},
    path::{Path, PathBuf},
    sync::OnceLock,
};

use ort::{
    environment::Environment,
    sys::{ORT_API_VERSION, OrtApiBase},
};
use parking_lot::Mutex;

/// The environment variable that names the library, or the folder it lies in.
const VARIABLE: &str = "ORT_DYLIB_PATH";

static LIBRARY: OnceLock<Library> = OnceLock::new();
static LOADING: Mutex<()> = Mutex::new(());

/// The ONNX Runtime library of this process.
#[derive(Debug)]
pub(crate) struct Library {
    /// What sessions are made in.
    pub(crate) environment: Environment,
    /// Where it lies.
    pub(crate) path: PathBuf,
    /// Its version.
    pub(crate) version: String,
}

/// The process's ONNX Runtime, loaded where that has not happened yet; the error says what to do. No other function of `ort`
/// may be called before this one has succeeded: `ort` panics where it finds no library.
pub(crate) fn library(candidates: &[PathBuf]) -> Result<&'static Library, String> {
    if let Some(library) = LIBRARY.get() {
        return Ok(library);
    }
    let _loading = LOADING.lock();
    if let Some(library) = LIBRARY.get() {
        return Ok(library);
    }
    let library = load(candidates)?;
    Ok(LIBRARY.get_or_init(|| library))
}

/// Loads the first library that fits; where none does, the first one's fault is told.
fn load(candidates: &[PathBuf]) -> Result<Library, String> {
    let mut fault = None;
    for path in libraries(std::env::var_os(VARIABLE).as_deref(), candidates)? {
        match check(&path).and_then(|version| Ok((open(&path)?, version))) {
            Ok((environment, version)) => {
                let place = path.display();
                tracing::info!(path = %place, version, "ONNX Runtime {version} is loaded from {place}");
                return Ok(Library { environment, path, version });
            }
            Err(reason) => {
                tracing::debug!(path = %path.display(), "passed over: {reason}");
                fault = fault.or(Some(reason));
            }
        }
    }
    Err(fault.unwrap_or_else(|| {
        format!(
            "ONNX Runtime is not installed: no library was found{}; install it with `pip install \"relevo[onnx]\"`, or set \
             {VARIABLE} to the library file",
            list(candidates)
        )
    }))
}

/// Where the candidates were, for a message.
fn list(candidates: &[PathBuf]) -> String {
    if candidates.is_empty() {
        return String::new();
    }
    let paths: Vec<_> = candidates.iter().map(|path| path.display().to_string()).collect();
    format!(" in {}", paths.join(", "))
}

/// The library files to try, in order.
fn libraries(variable: Option<&OsStr>, candidates: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    if let Some(value) = variable.filter(|value| !value.is_empty()) {
        return match library_at(Path::new(value)) {
            Some(library) => Ok(vec![library]),
            None => Err(format!(
                "the environment variable {VARIABLE} names `{}`, where no ONNX Runtime library is; correct it, or unset it \
                 and run `pip install \"relevo[onnx]\"`",
                value.display()
            )),
        };
    }
    Ok(candidates.iter().filter_map(|path| library_at(path)).collect())
}

/// `path` itself where it is a file, or the newest library inside where it is a folder. The path is absolute, since `ort`
/// takes a relative one to mean the folder of the running program.
fn library_at(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    if path.is_file() {
        return Some(path);
    }
    let entries = path.read_dir().ok()?.flatten();
    entries.map(|entry| entry.path()).filter(|path| path.file_name().is_some_and(is_library)).max()
}

/// Whether a file of this name is ONNX Runtime's library, on any of the three systems.
fn is_library(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name == "onnxruntime.dll"
        || name.starts_with("libonnxruntime.so")
        || (name.starts_with("libonnxruntime.") && name.ends_with(".dylib"))
}

/// Finds out whether `ort` can use the library at `path`, and gives its version. `ort` would find out by panicking.
fn check(path: &Path) -> Result<String, String> {
    let place = path.display();
    // SAFETY: opening a library runs its initialisers; this one was named by the user, or lies where pip puts ONNX Runtime.
    let library = unsafe { libloading::Library::new(path) }
        .map_err(|error| format!("the ONNX Runtime library {place} cannot be opened: {error}; {REINSTALL}"))?;
    // SAFETY: the symbol has this type in every version of ONNX Runtime.
    let entry = unsafe { library.get::<unsafe extern "C" fn() -> *const OrtApiBase>(b"OrtGetApiBase\0") }
        .map(|symbol| *symbol)
        .map_err(|_| format!("{place} is not ONNX Runtime: it has no `OrtGetApiBase`; {REINSTALL}"));
    // Never closed: `ort` opens it again in a moment, and a library that is too old may have started threads.
    std::mem::forget(library);
    // SAFETY: the entry point takes nothing and returns a static table, or null.
    let base = unsafe { entry?().as_ref() }.ok_or_else(|| format!("{place} gives no API; {REINSTALL}"))?;
    // SAFETY: the function returns a static, null-terminated string.
    let version = unsafe { CStr::from_ptr((base.GetVersionString)()) }.to_string_lossy();
    // SAFETY: the function takes any number, and returns null for one that it does not know.
    if is_too_old(&version) || unsafe { (base.GetApi)(ORT_API_VERSION) }.is_null() {
        return Err(format!(
            "ONNX Runtime {version} at {place} is too old: 1.{ORT_API_VERSION} or newer is needed; run \
             `pip install -U onnxruntime`"
        ));
    }
    Ok(version.into_owned())
}

const REINSTALL: &str = "run `pip install --force-reinstall onnxruntime`";

/// Whether the version is below 1.23, whose API this crate is written to. Asked before the library is, which writes to
/// stderr when it has to refuse.
fn is_too_old(version: &str) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < (1, ORT_API_VERSION)
}

/// Whether ONNX Runtime is in this process.
pub(crate) fn is_loaded() -> bool {
    LIBRARY.get().is_some()
}

/// Hands a checked library to `ort` and makes the environment, with telemetry off.
fn open(path: &Path) -> Result<Environment, String> {
    let place = path.display();
    let builder = ort::init_from(path)
        .map_err(|error| format!("ONNX Runtime at {place} cannot be used: {error}; {REINSTALL}"))?;
    builder
        .with_name("relevo")
        .with_telemetry(false)
        .build()
        .map_err(|error| format!("ONNX Runtime at {place} did not start: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_searched_by_name() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(library_at(folder.path()), None);
        for name in ["libonnxruntime_providers_shared.so", "onnxruntime_pybind11_state.so", "__init__.py"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(library_at(folder.path()), None);
        for name in ["libonnxruntime.so.1.32.0", "libonnxruntime.1.32.0.dylib", "onnxruntime.dll"] {
            let file = folder.path().join(name);
            std::fs::write(&file, "").unwrap();
            assert_eq!(library_at(folder.path()), Some(file.clone()));
            assert_eq!(library_at(&file), Some(file.clone()));
            std::fs::remove_file(file).unwrap();
        }
    }

    #[test]
    fn the_variable_goes_first_and_must_name_a_library() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("libonnxruntime.so.1.32.0");
        let missing = folder.path().join("missing.so");
        std::fs::write(&file, "").unwrap();
        let candidates = [file.clone()];
        assert_eq!(libraries(None, &candidates), Ok(vec![file.clone()]));
        assert_eq!(libraries(Some(OsStr::new("")), &candidates), Ok(vec![file]));
        let reason = libraries(Some(missing.as_os_str()), &candidates).unwrap_err();
        assert!(reason.contains(VARIABLE) && reason.contains("missing.so"), "{reason}");
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        for version in ["1.9.0", "1.22.2", "0.99", "rubbish"] {
            assert!(is_too_old(version), "{version}");
        }
        for version in ["1.23.0", "1.32.0", "1.100.0", "2.0.0"] {
            assert!(!is_too_old(version), "{version}");
        }
    }

    #[test]
    fn what_is_no_library_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("libonnxruntime.so");
        std::fs::write(&file, "not a library").unwrap();
        let reason = check(&file).unwrap_err();
        assert!(reason.contains("cannot be opened") && reason.contains("pip install"), "{reason}");
    }
}
