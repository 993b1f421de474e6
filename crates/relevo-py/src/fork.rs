//! What happens in a child that was forked off: the engine notices, and the process can still end.

use pyo3::{prelude::*, types::PyDict};

/// Asks Python to tell us of forks.
pub(crate) fn watch(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let os = module.py().import("os")?;
    if os.hasattr("register_at_fork")? {
        let options = PyDict::new(module.py());
        options.set_item("after_in_child", wrap_pyfunction!(after_in_child, module)?)?;
        os.call_method("register_at_fork", (), Some(&options))?;
    }
    Ok(())
}

#[pyfunction]
fn after_in_child() {
    relevo_core::fork::after_in_child();
    crate::detach::after_in_child();
    crate::logging::after_in_child();
    if relevo_onnx::is_loaded() {
        leave_without_destructors();
    }
}

/// Lets the child end before ONNX Runtime's destructors run.
///
/// ONNX Runtime 1.32 keeps a thread of its own. It stays in the parent, and at `exit` the child waits for it for ever;
/// plain `import onnxruntime` shows the same. `multiprocessing` ends its children by `_exit` as well.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(
    unsafe_code,
    reason = "glibc's on_exit is the one hook that runs before the library's and knows the exit status"
)]
fn leave_without_destructors() {
    use std::ffi::{c_int, c_void};

    unsafe extern "C" {
        fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
    }

    extern "C" fn leave(status: c_int, _argument: *mut c_void) {
        // SAFETY: null flushes every stream; `_exit` ends the process and needs nothing.
        unsafe {
            libc::fflush(std::ptr::null_mut());
            libc::_exit(status);
        }
    }

    // SAFETY: the function lives as long as the process, and takes no argument. Functions run in the reverse order of
    // their registration, so this one, registered after the library was loaded, runs before its destructors.
    unsafe { on_exit(leave, std::ptr::null_mut()) };
}

/// Elsewhere nothing of the kind is at hand.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn leave_without_destructors() {}
