//! The one place where the interpreter lock is released, Ctrl-C noticed, and errors mapped.
//!
//! A rule keeps threads from waiting for each other for ever: no code blocks on an engine lock while it holds the
//! interpreter lock. It tries, or it detaches first.

use pyo3::{marker::Ungil, prelude::*};
use relevo_core::{Error, Result};

use crate::{error::to_python, logging};

/// Runs `operation` with the interpreter lock released.
pub(crate) fn detach<T: Ungil + Send>(
    py: Python<'_>,
    operation: impl FnOnce() -> Result<T> + Ungil + Send,
) -> PyResult<T> {
    py.detach(operation).map_err(|error| to_python(&error))
}

/// As [`detach`], for a caller that holds no engine lock: what the operation logs is in Python's hands when it returns.
///
/// A handler is Python code, which may call back into the engine; so this is not for calls that hold a lock meanwhile.
pub(crate) fn detach_and_log<T: Ungil + Send>(
    py: Python<'_>,
    operation: impl FnOnce() -> Result<T> + Ungil + Send,
) -> PyResult<T> {
    let (result, events) = py.detach(|| logging::collect(operation));
    let logged = logging::deliver(py, events);
    let value = result.map_err(|error| to_python(&error))?;
    logged.map(|()| value)
}

/// Runs something that may wait for long, with the interpreter lock released. It gets a function to call now and then,
/// which fails when the user pressed Ctrl-C. The caller holds no engine lock, as for [`detach_and_log`].
pub(crate) fn wait<T: Ungil + Send>(
    py: Python<'_>,
    operation: impl FnOnce(&mut dyn FnMut() -> Result<()>) -> Result<T> + Ungil + Send,
) -> PyResult<T> {
    let mut interrupt: Option<PyErr> = None;
    let mut keep_waiting = || {
        #[expect(clippy::redundant_closure_for_method_calls, reason = "the method is not general over lifetimes")]
        let checked = Python::attach(|py| py.check_signals());
        checked.map_err(|error| {
            interrupt = Some(error);
            Error::State("interrupted by a signal".into())
        })
    };
    let (result, events) = py.detach(|| logging::collect(|| operation(&mut keep_waiting)));
    let logged = logging::deliver(py, events);
    match interrupt {
        Some(error) => Err(error),
        None => result.map_err(|error| to_python(&error)).and_then(|value| logged.map(|()| value)),
    }
}
