//! From a backend written in Rust to a table.

mod description;

use std::{
    any::Any,
    collections::BTreeMap,
    ffi::c_void,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    ptr::{self, NonNull},
    slice,
};

use crate::{
    ABI_VERSION,
    data::{self, BatchKind, Bytes, DType, FailureKind, Tensor, Text},
    table::{self, Allocate, BackendTable, ModelHandle, SessionHandle},
};

/// Why something failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Which of Relevo's errors it becomes.
    pub kind: FailureKind,
    /// What was expected, what came, what to do.
    pub message: String,
}

impl Failure {
    /// A failure of this kind.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

/// Shorthand for a result that fails with [`Failure`].
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// Where a model comes from.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// The file, or the name of what is in memory.
    pub path: &'a Path,
    /// The bytes, where they are in memory.
    pub bytes: Option<&'a [u8]>,
}

/// How a model is to be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// `cpu`, `cuda:0`, `mps`.
    pub device: String,
    /// Threads of one forward pass.
    pub threads: usize,
    /// Shapes of one row, by input, that the file does not declare.
    pub shapes: BTreeMap<String, Vec<usize>>,
    /// Inputs of which the user says that they are states.
    pub states: Vec<String>,
}

/// A device that models might run on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// What [`Options::device`] calls it.
    pub name: String,
    /// Why it cannot be used, and behind the last `"; "` what to do about it; `None` where it can.
    pub fault: Option<String>,
}

/// An input or output; a dimension of `None` is known only when the model runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Dimensions, the batch axis included.
    pub dims: Vec<Option<usize>>,
}

/// An output that is an input of the next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateLink {
    /// Position among the inputs.
    pub input: usize,
    /// Position among the outputs.
    pub output: usize,
    /// Bytes of one row at the start of an episode; empty for zeros.
    pub initial: Vec<u8>,
}

/// What a model takes and gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Inputs, in the order of calls.
    pub inputs: Vec<TensorSpec>,
    /// Outputs.
    pub outputs: Vec<TensorSpec>,
    /// What is handed on from step to step.
    pub states: Vec<StateLink>,
    /// The tool that wrote the file.
    pub producer: String,
    /// Hex SHA-256 of the file.
    pub sha256: String,
    /// Operators that draw random numbers.
    pub random_ops: Vec<String>,
    /// What loading found out, in sentences for people.
    pub notes: Vec<String>,
    /// How many rows a forward pass takes.
    pub batch: BatchKind,
    /// How that showed.
    pub batch_reason: String,
    /// A device in whose memory inputs may be given, beside that of the processor.
    pub input_device: Option<data::Device>,
    /// What `relevo.export` wrote into the file about its policy; empty where it wrote nothing.
    pub declared: String,
}

/// Loads files of one format.
pub trait Backend: Send + Sync + 'static {
    /// What it loads.
    type Model: Model;

    /// The format's name.
    fn format(&self) -> &str;

    /// Version for people.
    fn version(&self) -> &str;

    /// Whether a file of this name is meant for the backend.
    fn accepts(&self, path: &Path) -> bool;

    /// Whether a file of these bytes is one of the format.
    fn recognises(&self, bytes: &[u8]) -> bool;

    /// The devices that models might run on here, the usable ones among them.
    ///
    /// # Errors
    /// Where they cannot be asked for.
    fn devices(&self) -> Result<Vec<Device>> {
        Ok(vec![Device { name: "cpu".into(), fault: None }])
    }

    /// Loads a model.
    fn load(&self, source: Source<'_>, options: &Options) -> Result<Self::Model>;
}

/// A loaded model.
pub trait Model: Send + Sync + 'static {
    /// What runs it.
    type Session: Session;

    /// What it takes and gives; asked once, after loading.
    fn description(&self) -> Description;

    /// A new session.
    fn session(&self) -> Result<Self::Session>;
}

/// Runs forward passes, one caller at a time.
pub trait Session: Send + 'static {
    /// One forward pass; see [`BackendTable::forward`]. Whatever the call gives is valid until it returns.
    fn forward(&mut self, call: &Call<'_>) -> Result<()>;
}

/// What a forward pass comes with.
#[derive(Debug)]
pub struct Call<'a> {
    /// Every input, in the description's order.
    pub inputs: &'a [Tensor],
    /// Positions of the outputs to compute.
    pub wanted: &'a [usize],
    /// Where they go, in the order of `wanted`; those without memory ask for it by [`Call::allocate`].
    pub outputs: &'a [Tensor],
    /// Gives memory.
    pub allocate: Allocate,
    /// First argument of `allocate`.
    pub allocate_context: *mut c_void,
}

impl Call<'_> {
    /// Where output `position` of those wanted goes: memory for a tensor of this type and shape, row-major without gaps.
    ///
    /// # Errors
    /// An inference failure where the caller's memory is for another type or shape, or where there is none left.
    pub fn output(&self, position: usize, dtype: DType, shape: &[i64]) -> Result<NonNull<u8>> {
        let output = &self.outputs[position];
        if output.data.is_null() {
            // SAFETY: the arguments are as the table says.
            let memory =
                unsafe { (self.allocate)(self.allocate_context, position, dtype, shape.as_ptr(), shape.len() as i32) };
            return NonNull::new(memory.cast()).ok_or_else(|| {
                Failure::new(FailureKind::Inference, format!("no memory for an output of shape {shape:?}"))
            });
        }
        // SAFETY: whoever calls `forward` gives whole tensors.
        let expected = unsafe { output.sizes() };
        if output.dtype != dtype || expected != shape {
            return Err(Failure::new(
                FailureKind::Inference,
                format!(
                    "output number {} is {} bits of shape {shape:?}, but {} bits of shape {expected:?} were expected, as in \
                     earlier passes",
                    self.wanted[position], dtype.bits, output.dtype.bits
                ),
            ));
        }
        NonNull::new(output.address()).ok_or_else(|| Failure::new(FailureKind::Inference, "an output without memory"))
    }
}

/// The table of a backend. It stays for the rest of the process.
pub fn table<B: Backend>(backend: B) -> &'static BackendTable {
    let backend: &'static B = Box::leak(Box::new(backend));
    Box::leak(Box::new(BackendTable {
        size: size_of::<BackendTable>(),
        abi_version: ABI_VERSION,
        context: ptr::from_ref(backend).cast_mut().cast(),
        format: Text::of(backend.format()),
        version: Text::of(backend.version()),
        accepts: accepts::<B>,
        recognises: recognises::<B>,
        load: load::<B>,
        describe: describe::<B::Model>,
        session: session::<B::Model>,
        forward: forward::<<B::Model as Model>::Session>,
        release_session: release_session::<<B::Model as Model>::Session>,
        release_model: release_model::<B::Model>,
        release_failure,
        devices: Some(devices::<B>),
    }))
}

/// A model beside its description as the table gives it out.
struct Exported<M> {
    model: M,
    description: description::Exported,
}

/// Calls `operation`; a panic becomes a failure of kind `kind`.
fn guarded<T>(kind: FailureKind, operation: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(operation)).unwrap_or_else(|panic| {
        Err(Failure::new(kind, format!("the backend panicked: {}; please report this to its authors", text(&*panic))))
    })
}

fn text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

fn give(failure: Failure) -> *mut data::Failure {
    let message: &'static str = Box::leak(failure.message.into_boxed_str());
    Box::into_raw(Box::new(data::Failure { kind: failure.kind as i32, message: Text::of(message) }))
}

unsafe extern "C" fn accepts<B: Backend>(context: *mut c_void, path: Text<'_>) -> bool {
    // SAFETY: the context is the leaked backend, and the caller's path lives for the call.
    let (backend, path) = unsafe { (&*context.cast::<B>().cast_const(), path.get()) };
    guarded(FailureKind::ModelLoad, || Ok(backend.accepts(&path_of(path)))).unwrap_or(false)
}

unsafe extern "C" fn recognises<B: Backend>(context: *mut c_void, bytes: Bytes<'_>) -> bool {
    // SAFETY: as in `accepts`.
    let (backend, bytes) = unsafe { (&*context.cast::<B>().cast_const(), bytes.get()) };
    guarded(FailureKind::ModelLoad, || Ok(backend.recognises(bytes))).unwrap_or(false)
}

unsafe extern "C" fn devices<B: Backend>(
    context: *mut c_void,
    each: table::EachDevice,
    each_context: *mut c_void,
) -> *mut data::Failure {
    // SAFETY: as in `accepts`.
    let backend = unsafe { &*context.cast::<B>().cast_const() };
    match guarded(FailureKind::DeviceUnavailable, || backend.devices()) {
        Ok(devices) => {
            for Device { name, fault } in &devices {
                // SAFETY: the caller gives both, and the texts live for the call.
                unsafe { each(each_context, Text::of(name), Text::of(fault.as_deref().unwrap_or_default())) };
            }
            ptr::null_mut()
        }
        Err(failure) => give(failure),
    }
}

unsafe extern "C" fn load<B: Backend>(
    context: *mut c_void,
    source: *const table::Source<'_>,
    options: *const table::Options<'_>,
    model: *mut *mut ModelHandle,
) -> *mut data::Failure {
    // SAFETY: the context is the leaked backend; the caller's structs, and what they lead to, live for the call.
    let (backend, source) = unsafe { (&*context.cast::<B>().cast_const(), &*source) };
    let loaded = guarded(FailureKind::ModelLoad, || {
        // SAFETY: as above.
        let (path, bytes, options) = unsafe { (path_of(source.path.get()), source.bytes.get(), read_options(options)) };
        let bytes = (!source.bytes.is_none()).then_some(bytes);
        let loaded = backend.load(Source { path: &path, bytes }, &options)?;
        let description = description::Exported::new(loaded.description());
        Ok(Exported { model: loaded, description })
    });
    match loaded {
        Ok(loaded) => {
            // SAFETY: the caller gives a place for the handle.
            unsafe { *model = Box::into_raw(Box::new(loaded)).cast() };
            ptr::null_mut()
        }
        Err(failure) => give(failure),
    }
}

/// # Safety
/// The options must be as long as their `size` says, and everything that they lead to must live for the call.
unsafe fn read_options(options: *const table::Options<'_>) -> Options {
    // SAFETY: promised by the caller; what an older caller's options end before is not read.
    unsafe {
        let whole = (*options).size >= size_of::<table::Options<'_>>();
        let states = if whole { (*options).states.get() } else { &[] };
        let shapes = (*options).shapes.get().iter().map(|shape| (shape.name.text(), shape.sizes.get().to_vec()));
        Options {
            device: (*options).device.text(),
            threads: (*options).threads,
            shapes: shapes.collect(),
            states: states.iter().map(|name| name.text()).collect(),
        }
    }
}

unsafe extern "C" fn describe<M: Model>(model: *const ModelHandle) -> *const data::Description<'static> {
    // SAFETY: the handle is one that `load` gave.
    let exported = unsafe { &*model.cast::<Exported<M>>() };
    exported.description.get()
}

unsafe extern "C" fn session<M: Model>(
    model: *const ModelHandle,
    session: *mut *mut SessionHandle,
) -> *mut data::Failure {
    // SAFETY: the handle is one that `load` gave.
    let exported = unsafe { &*model.cast::<Exported<M>>() };
    match guarded(FailureKind::Inference, || exported.model.session()) {
        Ok(made) => {
            // SAFETY: the caller gives a place for the handle.
            unsafe { *session = Box::into_raw(Box::new(made)).cast() };
            ptr::null_mut()
        }
        Err(failure) => give(failure),
    }
}

unsafe extern "C" fn forward<S: Session>(
    session: *mut SessionHandle,
    inputs: *const Tensor,
    input_count: usize,
    wanted: *const usize,
    outputs: *const Tensor,
    wanted_count: usize,
    allocate: Allocate,
    allocate_context: *mut c_void,
) -> *mut data::Failure {
    // SAFETY: the handle is one that `session` gave, and the caller uses it from one thread at a time; the arrays have as
    // many elements as it says, and live for the call.
    let (session, call) = unsafe {
        let call = Call {
            inputs: elements(inputs, input_count),
            wanted: elements(wanted, wanted_count),
            outputs: elements(outputs, wanted_count),
            allocate,
            allocate_context,
        };
        (&mut *session.cast::<S>(), call)
    };
    match guarded(FailureKind::Inference, || session.forward(&call)) {
        Ok(()) => ptr::null_mut(),
        Err(failure) => give(failure),
    }
}

#[cfg(unix)]
fn path_of(bytes: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    Path::new(std::ffi::OsStr::from_bytes(bytes)).to_path_buf()
}

#[cfg(not(unix))]
fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(String::from_utf8_lossy(bytes).into_owned())
}

unsafe fn elements<'a, T>(first: *const T, count: usize) -> &'a [T] {
    // SAFETY: promised by the caller; of no elements nothing is read.
    if count == 0 { &[] } else { unsafe { slice::from_raw_parts(first, count) } }
}

unsafe extern "C" fn release_session<S: Session>(session: *mut SessionHandle) {
    // SAFETY: the handle is one that `session` gave, and comes back once.
    let session = unsafe { Box::from_raw(session.cast::<S>()) };
    let _ = catch_unwind(AssertUnwindSafe(|| drop(session)));
}

unsafe extern "C" fn release_model<M: Model>(model: *mut ModelHandle) {
    // SAFETY: the handle is one that `load` gave, and comes back once.
    let model = unsafe { Box::from_raw(model.cast::<Exported<M>>()) };
    let _ = catch_unwind(AssertUnwindSafe(|| drop(model)));
}

unsafe extern "C" fn release_failure(failure: *mut data::Failure) {
    // SAFETY: it is one that `give` made, and comes back once; its message is the box that was leaked there.
    unsafe {
        let failure = Box::from_raw(failure);
        let message = ptr::from_ref(failure.message.get()).cast_mut();
        drop(Box::from_raw(message));
    }
}
