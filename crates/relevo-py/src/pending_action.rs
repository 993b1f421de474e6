//! `relevo.PendingAction`: what `act_async` gives, to be awaited. It keeps to the protocol of `asyncio.Future`, so that tasks,
//! `wait_for`, `gather` and `shield` take it as one.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use pyo3::{
    PyTraverseError, PyVisit,
    exceptions::{PyBaseException, PyStopIteration},
    prelude::*,
    types::{PyDict, PyString},
};
use relevo_core::{
    Result,
    runtime::{ActionResults, Ticket},
};
use smallvec::SmallVec;

use crate::{
    action_batch::ActionBatch, error::to_python, event_loop::EventLoop, once::Once, tensor_device::TensorDevice,
};

/// An action that is on its way.
#[pyclass(frozen, weakref, module = "relevo")]
pub(crate) struct PendingAction {
    event_loop: Py<EventLoop>,
    /// asyncio's mark that a task has yielded it, and nothing else.
    blocking: AtomicBool,
    /// Where the action goes, if not to the CPU's memory.
    device: Option<TensorDevice>,
    /// Touched only with the interpreter lock held, and never while Python code runs.
    state: Mutex<State>,
}

struct State {
    /// Gone when the call has ended or was cancelled.
    ticket: Option<Ticket>,
    outcome: Option<Outcome>,
    callbacks: Callbacks,
}

/// Nearly always one: the task that waits.
type Callbacks = SmallVec<[Callback; 1]>;

pub(crate) struct Callback {
    function: Py<PyAny>,
    context: Py<PyAny>,
}

/// How a call ended.
pub(crate) enum Outcome {
    Action(Py<ActionBatch>),
    Failed(Py<PyBaseException>),
    Cancelled(Option<Py<PyAny>>),
}

impl PendingAction {
    pub(crate) fn new(event_loop: Py<EventLoop>, ticket: Ticket, device: Option<TensorDevice>) -> Self {
        let state = State { ticket: Some(ticket), outcome: None, callbacks: SmallVec::new() };
        Self { event_loop, blocking: AtomicBool::new(false), device, state: Mutex::new(state) }
    }

    /// How the call ends with what came of it.
    pub(crate) fn outcome_of(&self, py: Python<'_>, result: Result<Arc<ActionResults>>) -> Outcome {
        let device = self.device.as_ref().map(|device| device.clone_ref(py));
        let action = result.map_err(|error| to_python(&error));
        action
            .and_then(|results| Py::new(py, ActionBatch::new(results, device)))
            .map_or_else(|error| Outcome::Failed(error.into_value(py)), Outcome::Action)
    }

    /// The ticket, unless the call has ended.
    pub(crate) fn take_ticket(&self) -> Option<Ticket> {
        self.state.lock().ticket.take()
    }

    /// Ends the call; gives those that wait.
    pub(crate) fn end(&self, outcome: Outcome) -> Callbacks {
        let mut state = self.state.lock();
        state.outcome = Some(outcome);
        mem::take(&mut state.callbacks)
    }

    /// Lets those that waited go on, now. Gives an error only where it is one that ends the loop.
    pub(crate) fn run(&self, slf: &Bound<'_, Self>, callbacks: Callbacks) -> PyResult<()> {
        let mut callbacks = callbacks.into_iter();
        while let Some(Callback { function, context }) = callbacks.next() {
            if let Err(error) = self.event_loop.get().run_callback(slf.py(), &function, &context, slf) {
                self.call_soon(slf, callbacks)?;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Has the loop let those that waited go on.
    pub(crate) fn call_soon(
        &self,
        slf: &Bound<'_, Self>,
        callbacks: impl IntoIterator<Item = Callback>,
    ) -> PyResult<()> {
        static CALL_SOON: Once = Once::new();
        let py = slf.py();
        let Some(event_loop) = self.event_loop.get().upgrade(py) else { return Ok(()) };
        let call_soon = CALL_SOON.name(py, "call_soon")?;
        for Callback { function, context } in callbacks {
            let options = PyDict::new(py);
            options.set_item("context", context)?;
            event_loop.call_method(&call_soon, (function, slf), Some(&options))?;
        }
        Ok(())
    }

    /// The action, or the error; `None` while there is neither.
    fn outcome(&self, py: Python<'_>) -> Option<PyResult<Py<ActionBatch>>> {
        Some(match self.state.lock().outcome.as_ref()? {
            Outcome::Action(action) => Ok(action.clone_ref(py)),
            Outcome::Failed(error) => Err(PyErr::from_value(error.bind(py).clone().into_any())),
            Outcome::Cancelled(message) => Err(cancelled_error(py, message.as_ref())),
        })
    }
}

#[pymethods]
impl PendingAction {
    fn __await__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        if let Some(action) = slf.get().outcome(slf.py()) {
            // Not in a tuple: CPython hands a bare value on without making an exception of it.
            return Err(PyStopIteration::new_err(action?));
        }
        slf.get().blocking.store(true, Ordering::Relaxed);
        Ok(slf.clone())
    }

    #[getter]
    fn _asyncio_future_blocking(&self) -> bool {
        self.blocking.load(Ordering::Relaxed)
    }

    #[setter(_asyncio_future_blocking)]
    fn set_asyncio_future_blocking(&self, blocking: bool) {
        self.blocking.store(blocking, Ordering::Relaxed);
    }

    fn get_loop(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.event_loop.get().upgrade(py).map(Bound::unbind)
    }

    fn done(&self) -> bool {
        self.state.lock().outcome.is_some()
    }

    fn cancelled(&self) -> bool {
        matches!(self.state.lock().outcome, Some(Outcome::Cancelled(_)))
    }

    fn result(&self, py: Python<'_>) -> PyResult<Py<ActionBatch>> {
        self.outcome(py).unwrap_or_else(|| Err(not_done(py)))
    }

    fn exception(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        match &self.state.lock().outcome {
            None => Err(not_done(py)),
            Some(Outcome::Action(_)) => Ok(None),
            Some(Outcome::Failed(error)) => Ok(Some(error.clone_ref(py).into_any())),
            Some(Outcome::Cancelled(message)) => Err(cancelled_error(py, message.as_ref())),
        }
    }

    #[pyo3(signature = (callback, /, *, context=None))]
    fn add_done_callback(slf: &Bound<'_, Self>, callback: Py<PyAny>, context: Option<Py<PyAny>>) -> PyResult<()> {
        static COPY_CONTEXT: Once = Once::new();
        let (py, this) = (slf.py(), slf.get());
        let context = match context {
            Some(context) => context,
            None => COPY_CONTEXT.import(py, "contextvars", "copy_context")?.call0()?.unbind(),
        };
        let callback = Callback { function: callback, context };
        let mut state = this.state.lock();
        if state.outcome.is_none() {
            state.callbacks.push(callback);
            return Ok(());
        }
        drop(state);
        this.call_soon(slf, [callback])
    }

    #[pyo3(signature = (callback, /))]
    fn remove_done_callback(&self, py: Python<'_>, callback: &Bound<'_, PyAny>) -> PyResult<usize> {
        // Comparing may run Python code.
        let callbacks = mem::take(&mut self.state.lock().callbacks);
        let (mut kept, mut removed) = (SmallVec::<[Callback; 1]>::new(), 0);
        for known in callbacks {
            if known.function.bind(py).eq(callback)? {
                removed += 1;
            } else {
                kept.push(known);
            }
        }
        self.state.lock().callbacks.extend(kept);
        Ok(removed)
    }

    #[pyo3(signature = (msg=None))]
    fn cancel(slf: &Bound<'_, Self>, msg: Option<Py<PyAny>>) -> PyResult<bool> {
        let this = slf.get();
        if this.done() {
            return Ok(false);
        }
        // Without its ticket the call has never been.
        drop(this.take_ticket());
        let callbacks = this.end(Outcome::Cancelled(msg));
        this.call_soon(slf, callbacks)?;
        Ok(true)
    }

    fn _make_cancelled_error(&self, py: Python<'_>) -> Py<PyAny> {
        let message = match &self.state.lock().outcome {
            Some(Outcome::Cancelled(message)) => message.as_ref().map(|message| message.clone_ref(py)),
            _ => None,
        };
        cancelled_error(py, message.as_ref()).into_value(py).into_any()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        visit.call(&self.event_loop)?;
        // Who holds the lock is about to change what there is; the next collection sees it.
        let Some(state) = self.state.try_lock() else { return Ok(()) };
        match &state.outcome {
            Some(Outcome::Action(action)) => visit.call(action)?,
            Some(Outcome::Failed(error)) => visit.call(error)?,
            Some(Outcome::Cancelled(message)) => visit.call(message)?,
            None => {}
        }
        for Callback { function, context } in &state.callbacks {
            visit.call(function)?;
            visit.call(context)?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        let (ticket, outcome, callbacks) = {
            let mut state = self.state.lock();
            (state.ticket.take(), state.outcome.take(), mem::take(&mut state.callbacks))
        };
        drop((ticket, outcome, callbacks));
    }

    fn __repr__(&self) -> &'static str {
        match &self.state.lock().outcome {
            None => "PendingAction(waiting)",
            Some(Outcome::Action(_)) => "PendingAction(done)",
            Some(Outcome::Failed(_)) => "PendingAction(failed)",
            Some(Outcome::Cancelled(_)) => "PendingAction(cancelled)",
        }
    }
}

fn cancelled_error(py: Python<'_>, message: Option<&Py<PyAny>>) -> PyErr {
    asyncio_error(py, "CancelledError", message.map(|message| message.clone_ref(py)))
}

fn not_done(py: Python<'_>) -> PyErr {
    let text = PyString::new(py, "the action is not there yet; await it").into_any().unbind();
    asyncio_error(py, "InvalidStateError", Some(text))
}

fn asyncio_error(py: Python<'_>, class: &str, message: Option<Py<PyAny>>) -> PyErr {
    let error = py.import("asyncio").and_then(|asyncio| match message {
        Some(message) => asyncio.call_method1(class, (message,)),
        None => asyncio.call_method0(class),
    });
    error.map_or_else(|error| error, PyErr::from_value)
}
