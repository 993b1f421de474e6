//! An asyncio event loop whose tasks make single calls: their rows gather until the loop turns, and one wake-up completes all
//! that share a pass.
//!
//! A pass that runs on a router's thread must not wait for the interpreter lock when it ends. So a thread of its own tells the
//! loops.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Wake, Waker},
    thread::Builder,
};

use arc_swap::ArcSwapOption;
use crossbeam_channel::{Sender, bounded, unbounded};
use parking_lot::Mutex;
use pyo3::{
    PyTraverseError, PyVisit,
    exceptions::{PyKeyboardInterrupt, PySystemExit},
    prelude::*,
    sync::PyOnceLock,
    types::{PyDict, PyWeakrefReference},
};
use relevo_core::{
    Error,
    fork::Birthplace,
    runtime::{Pass, Ticket},
};

use crate::{
    error::to_python,
    once::Once,
    pending_action::{Outcome, PendingAction},
    tensor_device::TensorDevice,
};

/// The calls of one event loop.
#[pyclass(frozen, module = "relevo._core")]
pub(crate) struct EventLoop {
    running: PyOnceLock<Py<PyWeakrefReference>>,
    /// What our callbacks run in: not a task's context, because they enter those.
    context: Py<PyAny>,
    /// Whether the loop is going to look at the passes that have ended. It is told once until it does: if each pass had it look,
    /// tasks that call again at once would keep it from everything else.
    told: AtomicBool,
    /// Touched only with the interpreter lock held, and never while Python code runs.
    calls: Mutex<Calls>,
}

#[derive(Default)]
struct Calls {
    passes: Vec<SharedPass>,
    /// Whether `turn` will be called.
    turning: bool,
}

/// Calls that get their answers from one pass.
struct SharedPass {
    pass: Pass,
    notice: Arc<Notice>,
    calls: Vec<Py<PendingAction>>,
}

impl EventLoop {
    fn new<'py>(running: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        let py = running.py();
        let context = py.import("contextvars")?.call_method0("Context")?.unbind();
        let fresh = Bound::new(
            py,
            Self { running: PyOnceLock::new(), context, told: AtomicBool::new(false), calls: Mutex::default() },
        )?;
        let weak = PyWeakrefReference::new_with(running, fresh.getattr("gone")?)?;
        // It was made just now, so there is none yet.
        drop(fresh.get().running.set(py, weak.unbind()));
        Ok(fresh)
    }

    /// The loop, while it is there.
    pub(crate) fn upgrade<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        use pyo3::types::PyWeakrefMethods;
        self.running.get(py)?.bind(py).upgrade()
    }

    /// An awaitable for the answer to `ticket`, which was submitted in `running`, the loop itself. The action goes to `device`.
    pub(crate) fn wait_for<'py>(
        slf: &Bound<'py, Self>,
        running: &Bound<'py, PyAny>,
        ticket: Ticket,
        device: Option<TensorDevice>,
    ) -> PyResult<Bound<'py, PendingAction>> {
        let this = slf.get();
        let py = slf.py();
        start_teller(py)?;
        let known = this.calls.lock().passes.iter().rposition(|shared| shared.pass.serves(&ticket));
        let fresh = match known {
            Some(_) => None,
            None => Some(ticket.pass().ok_or_else(|| to_python(&Error::State("the call has ended".into())))?),
        };
        let pending = Bound::new(py, PendingAction::new(slf.clone().unbind(), ticket, device))?;
        let mut calls = this.calls.lock();
        match (known, fresh) {
            (Some(at), _) => calls.passes[at].calls.push(pending.clone().unbind()),
            (None, Some(pass)) => {
                let notice = Notice::new(slf.clone().unbind());
                pass.poll_ready(&Waker::from(notice.clone()));
                calls.passes.push(SharedPass { pass, notice, calls: vec![pending.clone().unbind()] });
            }
            (None, None) => {}
        }
        let turning = mem::replace(&mut calls.turning, true);
        drop(calls);
        if !turning {
            this.call(py, running, "call_soon", slf.getattr("turn")?)?;
        }
        Ok(pending)
    }

    /// Cancels all calls, which nobody will ever complete. Gives whether there were any.
    fn forget(&self) -> bool {
        let passes = mem::take(&mut self.calls.lock().passes);
        let mut forgotten = false;
        for call in passes.iter().flat_map(|shared| &shared.calls) {
            // Dropping a ticket cancels its call.
            if call.get().take_ticket().is_some() {
                forgotten = true;
                // Those that waited for it were the loop's.
                drop(call.get().end(Outcome::Cancelled(None)));
            }
        }
        forgotten
    }

    fn call(&self, py: Python<'_>, event_loop: &Bound<'_, PyAny>, how: &str, what: Bound<'_, PyAny>) -> PyResult<()> {
        static CONTEXT: Once = Once::new();
        let options = PyDict::new(py);
        options.set_item(CONTEXT.name(py, "context")?, &self.context)?;
        event_loop.call_method(how, (what,), Some(&options)).map(drop)
    }

    /// Completes the calls of passes that have ended. Those that end meanwhile have to wait for the loop's next turn.
    fn complete_ready(slf: &Bound<'_, Self>) -> PyResult<()> {
        let (py, this) = (slf.py(), slf.get());
        let ready: Vec<_> = this.calls.lock().passes.extract_if(.., |shared| shared.pass.is_ready()).collect();
        let mut ready = ready.into_iter();
        while let Some(shared) = ready.next() {
            if let Err(error) = complete(py, shared) {
                // It ends the loop. Should that run again, it finds the rest.
                this.calls.lock().passes.extend(ready);
                if let Some(running) = this.upgrade(py) {
                    this.call(py, &running, "call_soon", slf.getattr("woken")?)?;
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Runs a callback of a task's, as the loop would.
    pub(crate) fn run_callback(
        &self,
        py: Python<'_>,
        callback: &Py<PyAny>,
        context: &Py<PyAny>,
        argument: &Bound<'_, PendingAction>,
    ) -> PyResult<()> {
        static RUN: Once = Once::new();
        let run = RUN.name(py, "run")?;
        let Err(error) = context.call_method1(py, &run, (callback, argument)) else { return Ok(()) };
        if error.is_instance_of::<PySystemExit>(py) || error.is_instance_of::<PyKeyboardInterrupt>(py) {
            return Err(error);
        }
        if let Some(event_loop) = self.upgrade(py) {
            let report = PyDict::new(py);
            report.set_item("message", "Exception in a callback of relevo.PendingAction")?;
            report.set_item("exception", error.value(py))?;
            report.set_item("future", argument)?;
            event_loop.call_method1("call_exception_handler", (report,))?;
        }
        Ok(())
    }
}

#[pymethods]
impl EventLoop {
    /// Called by the loop after the tasks that were ready have made their calls.
    fn turn(slf: &Bound<'_, Self>) -> PyResult<()> {
        let notices: Vec<_> = {
            let mut calls = slf.get().calls.lock();
            calls.turning = false;
            let waiting = calls.passes.iter().filter(|shared| !shared.pass.is_ready());
            waiting.map(|shared| (shared.pass.again(), shared.notice.clone())).collect()
        };
        slf.py().detach(|| {
            for (pass, notice) in notices {
                notice.loop_is_here.store(true, Ordering::SeqCst);
                pass.hurry();
                notice.loop_is_here.store(false, Ordering::SeqCst);
            }
        });
        Self::complete_ready(slf)
    }

    /// Called when the loop is gone.
    fn gone(&self, _reference: &Bound<'_, PyAny>) {
        self.forget();
    }

    /// Called by the loop when a pass has ended that another thread ran.
    fn woken(slf: &Bound<'_, Self>) -> PyResult<()> {
        slf.get().told.store(false, Ordering::SeqCst);
        Self::complete_ready(slf)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.context)?;
        // Who holds the lock is about to change what there is; the next collection sees it.
        let Some(calls) = self.calls.try_lock() else { return Ok(()) };
        calls.passes.iter().flat_map(|shared| &shared.calls).try_for_each(|call| visit.call(call))
    }

    fn __clear__(&self) {
        self.forget();
    }
}

/// Completes the calls of a pass that has ended.
fn complete(py: Python<'_>, shared: SharedPass) -> PyResult<()> {
    let mut tickets: Vec<_> = shared.calls.iter().map(|call| call.get().take_ticket()).collect();
    let outcomes: Vec<_> = py.detach(|| tickets.iter_mut().map(|ticket| ticket.as_mut().map(Ticket::finish)).collect());
    // All have ended before the first callback runs, so that none is cancelled by another whose action is recorded.
    let mut ended = Vec::with_capacity(shared.calls.len());
    for (call, outcome) in shared.calls.into_iter().zip(outcomes) {
        // One that was cancelled has no ticket.
        if let Some(outcome) = outcome {
            let callbacks = call.get().end(call.get().outcome_of(py, outcome));
            ended.push((call, callbacks));
        }
    }
    let mut ended = ended.into_iter();
    while let Some((call, callbacks)) = ended.next() {
        if let Err(error) = call.get().run(call.bind(py), callbacks) {
            for (call, callbacks) in ended {
                call.get().call_soon(call.bind(py), callbacks)?;
            }
            return Err(error);
        }
    }
    Ok(())
}

/// Tells a loop that a pass has ended.
struct Notice {
    event_loop: Py<EventLoop>,
    /// Whether the loop's thread is about to look by itself.
    loop_is_here: AtomicBool,
}

impl Notice {
    fn new(event_loop: Py<EventLoop>) -> Arc<Self> {
        Arc::new(Self { event_loop, loop_is_here: AtomicBool::new(false) })
    }
}

impl Wake for Notice {
    fn wake(self: Arc<Self>) {
        // `woken` takes `told` back before it looks, so a pass that ends then is either seen or told.
        if !self.loop_is_here.load(Ordering::SeqCst) && !self.event_loop.get().told.swap(true, Ordering::SeqCst) {
            tell(self);
        }
    }
}

/// The way to the thread that tells the loops.
struct Teller {
    birthplace: Birthplace,
    notices: Sender<Arc<Notice>>,
}

/// No lock: one that another thread held at a fork would stay locked in the child.
static TELLER: ArcSwapOption<Teller> = ArcSwapOption::const_empty();

/// Starts the thread that tells the loops of this process, unless there is one.
fn start_teller(py: Python<'_>) -> PyResult<()> {
    if TELLER.load().as_ref().is_some_and(|teller| !teller.birthplace.is_elsewhere()) {
        return Ok(());
    }
    let (notices, received) = unbounded::<Arc<Notice>>();
    let (attached, is_attached) = bounded::<()>(0);
    let tell_all = move || {
        // Known to the interpreter once for all. To make itself known it takes a lock of CPython's without the interpreter lock,
        // and in 3.11 a child that is forked meanwhile finds that locked for ever.
        Python::try_attach(|py| {
            py.detach(|| {
                drop(attached);
                received.into_iter().for_each(|notice| tell_now(&notice));
            });
        });
    };
    Builder::new().name("relevo-asyncio".into()).spawn(tell_all).map_err(|error| {
        to_python(&Error::State(format!("the thread that wakes event loops cannot be started: {error}")))
    })?;
    // It is dropped there, so nothing comes.
    py.detach(|| is_attached.recv().ok());
    let teller = Arc::new(Teller { birthplace: Birthplace::here(), notices });
    // The one before has its thread in the parent. Where two are made at once, the thread of one ends in good order.
    mem::forget(TELLER.swap(Some(teller)).filter(|old| old.birthplace.is_elsewhere()));
    Ok(())
}

fn tell(notice: Arc<Notice>) {
    // There is none where this process was forked off since the call: the answer is the parent's.
    if let Some(teller) = TELLER.load_full().filter(|teller| !teller.birthplace.is_elsewhere()) {
        // A thread only ends after its teller.
        drop(teller.notices.send(notice));
    }
}

fn tell_now(notice: &Notice) {
    // When the interpreter ends there is no loop to tell.
    Python::try_attach(|py| {
        let event_loop = notice.event_loop.bind(py);
        let woken = event_loop.getattr("woken");
        if let (Some(running), Ok(woken)) = (event_loop.get().upgrade(py), woken)
            && event_loop.get().call(py, &running, "call_soon_threadsafe", woken).is_err()
        {
            // A loop that is closed has nobody left to tell.
            event_loop.get().told.store(false, Ordering::SeqCst);
        }
    });
}

/// The loop that runs in this thread.
pub(crate) fn running(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static GET_RUNNING_LOOP: Once = Once::new();
    GET_RUNNING_LOOP.import(py, "asyncio", "get_running_loop")?.call0()
}

/// The loop that a handle was last used in: nearly always the same.
#[derive(Default)]
pub(crate) struct EventLoopCache(Mutex<Option<Py<EventLoop>>>);

impl EventLoopCache {
    /// The calls of `running`.
    pub(crate) fn of<'py>(&self, running: &Bound<'py, PyAny>) -> PyResult<Bound<'py, EventLoop>> {
        let py = running.py();
        let cached = self.0.lock().as_ref().map(|cached| cached.clone_ref(py));
        if let Some(cached) = cached
            && cached.get().upgrade(py).is_some_and(|event_loop| event_loop.is(running))
        {
            return Ok(cached.into_bound(py));
        }
        let found = known(running)?;
        let old = self.0.lock().replace(found.clone().unbind());
        drop(old);
        Ok(found)
    }
}

/// The calls of `running`, made when it is seen for the first time.
fn known<'py>(running: &Bound<'py, PyAny>) -> PyResult<Bound<'py, EventLoop>> {
    let loops = all(running.py())?;
    let found = loops.call_method1("get", (running,))?;
    if let Ok(found) = found.cast::<EventLoop>() {
        return Ok(found.clone());
    }
    let fresh = EventLoop::new(running)?;
    loops.set_item(running, &fresh)?;
    Ok(fresh)
}

/// Cancels the calls of loops that were closed, which nobody will ever complete. Gives whether there were any.
pub(crate) fn forget_closed(py: Python<'_>) -> PyResult<bool> {
    let mut forgotten = false;
    for event_loop in all(py)?.call_method0("values")?.try_iter()? {
        let event_loop = event_loop?.cast_into::<EventLoop>()?;
        let this = event_loop.get();
        let open = match this.upgrade(py) {
            Some(running) => !running.call_method0("is_closed")?.is_truthy()?,
            None => false,
        };
        if !open {
            forgotten |= this.forget();
        }
    }
    Ok(forgotten)
}

/// The calls of every loop that is still there.
fn all(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static LOOPS: Once = Once::new();
    LOOPS.get(py, || py.import("weakref")?.call_method0("WeakKeyDictionary"))
}
