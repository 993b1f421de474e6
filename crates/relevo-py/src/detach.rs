//! The one place where the interpreter lock is released, Ctrl-C noticed, and errors mapped.
//!
//! A rule keeps threads from waiting for each other for ever: no code blocks on an engine lock while it holds the
//! interpreter lock. It tries, or it detaches first.

use std::cell::Cell;

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

/// As [`detach`], but the lock is kept where there is little to do. The errors are the operation's own.
pub(crate) fn detach_if<T: Ungil + Send, E: Ungil + Send>(
    py: Python<'_>,
    worth_it: bool,
    operation: impl FnOnce() -> Result<T, E> + Ungil + Send,
) -> Result<T, E> {
    if worth_it { py.detach(operation) } else { operation() }
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
    let mut signals = Signals::default();
    let (result, events) = py.detach(|| logging::collect(|| operation(&mut || signals.check())));
    let logged = logging::deliver(py, events);
    let value = signals.or(result)?;
    logged.map(|()| value)
}

/// Notices Ctrl-C for what waits with the interpreter lock released.
#[derive(Default)]
pub(crate) struct Signals(Option<PyErr>);

impl Signals {
    /// Fails when the user pressed Ctrl-C, or a handler of another signal raised.
    pub(crate) fn check(&mut self) -> Result<()> {
        #[expect(clippy::redundant_closure_for_method_calls, reason = "the method is not general over lifetimes")]
        let checked = Python::attach(|py| py.check_signals());
        checked.map_err(|error| {
            self.0 = Some(error);
            Error::State("interrupted by a signal".into())
        })
    }

    /// What was raised, or else the result.
    pub(crate) fn or<T>(self, result: Result<T>) -> PyResult<T> {
        match self.0 {
            Some(error) => Err(error),
            None => result.map_err(|error| to_python(&error)),
        }
    }
}

thread_local! {
    static IS_MAIN: Cell<Option<bool>> = const { Cell::new(None) };
}

/// Whether this is Python's main thread, the only one that signals reach.
pub(crate) fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    if let Some(known) = IS_MAIN.get() {
        return Ok(known);
    }
    let threading = py.import("threading")?;
    let main = threading.call_method0("main_thread")?.getattr("ident")?;
    let is_main = threading.call_method0("get_ident")?.eq(main)?;
    IS_MAIN.set(Some(is_main));
    Ok(is_main)
}

/// The thread that forked is the main one of the child.
pub(crate) fn after_in_child() {
    IS_MAIN.set(None);
}
