//! From the engine's `tracing` events to Python's `logging`.
//!
//! An event may come from any thread, and while an engine lock is held. A handler is Python code: it needs the interpreter
//! lock, and may call the engine. So an event never goes to Python where it happens:
//!
//! - What happens inside [`collect`] is kept for the caller, who hands it to Python when the engine has let go of everything.
//! - Everything else goes into a bounded queue, which a Python thread empties (`python/relevo/log.py`). Where the queue is
//!   full, events are dropped and counted.
//!
//! Python's loggers decide what is shown. Nothing is cached here, so a level may change at any time; the engine's events
//! are few, and none lies on the path of a step.

use std::{
    cell::RefCell,
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use arc_swap::ArcSwapOption;
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use pyo3::{prelude::*, types::PyDict};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span,
    subscriber::Interest,
};

/// Events that wait for Python; more of them are dropped.
const CAPACITY: usize = 1024;

/// Numbers of Python's levels.
const DEBUG: u8 = 10;
const INFO: u8 = 20;
const WARNING: u8 = 30;
const ERROR: u8 = 40;

/// Empty once the interpreter ends.
static SENDER: ArcSwapOption<Sender<Record>> = ArcSwapOption::const_empty();
static RECEIVER: ArcSwapOption<Receiver<Record>> = ArcSwapOption::const_empty();
static DROPPED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Events of the call that this thread is in; `None` outside [`collect`].
    static COLLECTED: RefCell<Option<Vec<Record>>> = const { RefCell::new(None) };
}

/// An event, apart from where it happened.
pub(crate) struct Record {
    logger: String,
    level: u8,
    message: String,
    fields: Vec<(&'static str, Value)>,
    file: Option<&'static str>,
    line: u32,
    /// Name of the thread that it comes from, where another one will tell Python; Rust does not know the names of Python's.
    thread: Option<String>,
}

/// A field's value.
#[derive(IntoPyObject)]
enum Value {
    Bool(bool),
    Signed(i64),
    Unsigned(u64),
    Float(f64),
    Text(String),
}

/// Takes the engine's events from now on. Called once, when the module is made.
pub(crate) fn install() {
    open_queue();
    // Fails where the module is made a second time in one process: the subscriber is there then.
    drop(tracing::subscriber::set_global_default(Bridge));
}

/// In a child that was forked off: another thread of the parent may have been in the queue at that moment.
pub(crate) fn after_in_child() {
    open_queue();
}

/// Makes a new queue. The old one, if there is one, is never freed: that would take its locks.
fn open_queue() {
    let (sender, receiver) = bounded(CAPACITY);
    std::mem::forget(SENDER.swap(Some(Arc::new(sender))));
    std::mem::forget(RECEIVER.swap(Some(Arc::new(receiver))));
}

/// Runs `operation`, and gives what this thread logged meanwhile beside its result.
pub(crate) fn collect<T>(operation: impl FnOnce() -> T) -> (T, Vec<Record>) {
    /// Puts back what was there, also where `operation` panics.
    struct Before(Option<Vec<Record>>);

    impl Drop for Before {
        fn drop(&mut self) {
            COLLECTED.set(self.0.take());
        }
    }

    let _before = Before(COLLECTED.replace(Some(Vec::new())));
    let result = operation();
    (result, COLLECTED.take().unwrap_or_default())
}

/// Hands events to Python. Only what must not be held up comes back as an error, such as Ctrl-C inside a handler.
pub(crate) fn deliver(py: Python<'_>, events: Vec<Record>) -> PyResult<()> {
    if events.is_empty() {
        return Ok(());
    }
    let deliver = py.import("relevo.log")?.getattr("deliver")?;
    events.into_iter().try_for_each(|event| deliver.call1(event.into_arguments(py)?).map(drop))
}

/// Waits for an event of the queue, and gives it as the arguments of `relevo.log.deliver`; `None` after `close_events`.
#[pyfunction]
pub(crate) fn next_event(py: Python<'_>) -> PyResult<Option<Arguments<'_>>> {
    let dropped = DROPPED.swap(0, Ordering::Relaxed);
    if dropped > 0 {
        return Record::of_dropped(dropped).into_arguments(py).map(Some);
    }
    let Some(receiver) = RECEIVER.load_full() else { return Ok(None) };
    py.detach(|| receiver.recv()).ok().map(|event| event.into_arguments(py)).transpose()
}

/// Ends the queue: `next_event` gives what is in it, and then `None`. Later events are lost.
#[pyfunction]
pub(crate) fn close_events() {
    SENDER.store(None);
}

/// Arguments of `relevo.log.deliver`.
type Arguments<'py> = (String, u8, String, Bound<'py, PyDict>, Option<&'static str>, u32, Option<String>);

impl Record {
    fn new(event: &Event<'_>) -> Self {
        let metadata = event.metadata();
        let mut fields = Fields { message: String::new(), values: Vec::new() };
        event.record(&mut fields);
        Self {
            logger: logger(metadata.target()),
            level: level(metadata),
            message: fields.message,
            fields: fields.values,
            file: metadata.file(),
            line: metadata.line().unwrap_or(0),
            thread: None,
        }
    }

    fn of_dropped(count: usize) -> Self {
        Self {
            logger: "relevo".into(),
            level: WARNING,
            message: format!("{count} events were dropped: they came faster than the handlers of `logging` took them"),
            fields: vec![("dropped", Value::Unsigned(count as u64))],
            file: Some(file!()),
            line: line!(),
            thread: None,
        }
    }

    fn into_arguments(self, py: Python<'_>) -> PyResult<Arguments<'_>> {
        let fields = PyDict::new(py);
        for (name, value) in self.fields {
            fields.set_item(name, value)?;
        }
        Ok((self.logger, self.level, self.message, fields, self.file, self.line, self.thread))
    }
}

/// The logger of a Rust module: `relevo_core::policy::slot` logs as `relevo.policy`, `relevo_onnx::model` as `relevo.onnx`.
fn logger(target: &str) -> String {
    let mut path = target.split("::");
    let part = match path.next() {
        Some("relevo_core") => path.next(),
        name => name.and_then(|name| name.strip_prefix("relevo_")),
    };
    part.map_or_else(|| "relevo".into(), |part| format!("relevo.{part}"))
}

fn level(metadata: &Metadata<'_>) -> u8 {
    match *metadata.level() {
        Level::ERROR => ERROR,
        Level::WARN => WARNING,
        Level::INFO => INFO,
        _ => DEBUG,
    }
}

/// Takes an event's message and fields.
struct Fields {
    message: String,
    values: Vec<(&'static str, Value)>,
}

impl Visit for Fields {
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.values.push((field.name(), Value::Bool(value)));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.values.push((field.name(), Value::Signed(value)));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.values.push((field.name(), Value::Unsigned(value)));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.values.push((field.name(), Value::Float(value)));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.values.push((field.name(), Value::Text(value.to_owned())));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        if field.name() == "message" {
            self.message = text;
        } else {
            self.values.push((field.name(), Value::Text(text)));
        }
    }
}

/// Takes events alone: the engine has no spans.
struct Bridge;

impl Subscriber for Bridge {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.enabled(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::DEBUG && metadata.target().starts_with("relevo")
    }

    /// Python has no level below DEBUG.
    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::DEBUG)
    }

    fn event(&self, event: &Event<'_>) {
        let mut record = Some(Record::new(event));
        // Fails at a thread's end, when its variables are gone.
        let _ = COLLECTED.try_with(|collected| {
            if let Some(events) = &mut *collected.borrow_mut() {
                match record.take() {
                    Some(record) if events.len() < CAPACITY => events.push(record),
                    _ => drop(DROPPED.fetch_add(1, Ordering::Relaxed)),
                }
            }
        });
        let (Some(mut record), Some(sender)) = (record, SENDER.load_full()) else { return };
        record.thread = Some(std::thread::current().name().unwrap_or("unnamed").to_owned());
        if let Err(TrySendError::Full(_)) = sender.try_send(record) {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn new_span(&self, _span: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _span: &span::Id, _values: &span::Record<'_>) {}

    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}

    fn enter(&self, _span: &span::Id) {}

    fn exit(&self, _span: &span::Id) {}
}
