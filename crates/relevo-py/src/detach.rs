//! The one place where the interpreter lock is released, Ctrl-C noticed, and errors mapped.
//!
//! A rule keeps threads from waiting for each other for ever: no code blocks on an engine lock while it holds the
//! interpreter lock. It tries, or it detaches first.

use pyo3::{marker::Ungil, prelude::*};
use relevo_core::{Error, Result};

use crate::error::to_python;

/// Runs `operation` with the interpreter lock released.
pub(crate) fn detach<T: Ungil + Send>(
    py: Python<'_>,
    operation: impl FnOnce() -> Result<T> + Ungil + Send,
) -> PyResult<T> {
    py.detach(operation).map_err(|error| to_python(&error))
}

/// Runs something that may wait for long, with the interpreter lock released. It gets a function to call now and then,
/// which fails when the user pressed Ctrl-C.
pub(crate) fn wait<T: Ungil + Send>(
    py: Python<'_>,
    operation: impl FnOnce(&mut dyn FnMut() -> Result<()>) -> Result<T> + Ungil + Send,
) -> PyResult<T> {
    let mut interrupt: Option<PyErr> = None;
    let result = py.detach(|| {
        operation(&mut || {
            #[expect(clippy::redundant_closure_for_method_calls, reason = "the method is not general over lifetimes")]
            let checked = Python::attach(|py| py.check_signals());
            checked.map_err(|error| {
                interrupt = Some(error);
                Error::State("interrupted by a signal".into())
            })
        })
    });
    match interrupt {
        Some(error) => Err(error),
        None => result.map_err(|error| to_python(&error)),
    }
}
