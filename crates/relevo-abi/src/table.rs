//! The table itself.

use std::ffi::c_void;

use crate::data::{Bytes, DType, Description, Failure, Slice, Tensor, Text};

/// A backend's model, seen from outside.
#[repr(C)]
#[derive(Debug)]
pub struct ModelHandle {
    _opaque: [u8; 0],
}

/// A backend's session, seen from outside.
#[repr(C)]
#[derive(Debug)]
pub struct SessionHandle {
    _opaque: [u8; 0],
}

/// Where a model comes from.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// Bytes of this struct.
    pub size: usize,
    /// The file. On Unix these are the bytes of the path, which need not be UTF-8.
    pub path: Text<'a>,
    /// The file's bytes where they are in memory; then `path` only names them. Otherwise null.
    pub bytes: Bytes<'a>,
}

/// The shape of one row of an input.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RowShape<'a> {
    /// The input's name.
    pub name: Text<'a>,
    /// The sizes, without the batch axis.
    pub sizes: Slice<'a, usize>,
}

/// How a model is to be loaded.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Options<'a> {
    /// Bytes of this struct.
    pub size: usize,
    /// `cpu`, `cuda:0`, `mps`.
    pub device: Text<'a>,
    /// Threads of one forward pass, 1 or more.
    pub threads: usize,
    /// Shapes that the file does not declare.
    pub shapes: Slice<'a, RowShape<'a>>,
    /// Names of inputs of which the user says that they are states. Appended in version 1.2 of this crate: older options end
    /// before it.
    pub states: Slice<'a, Text<'a>>,
}

/// Gives memory for an output; see [`BackendTable::forward`]. Null where there is none.
pub type Allocate = unsafe extern "C" fn(
    context: *mut c_void,
    position: usize,
    dtype: DType,
    shape: *const i64,
    ndim: i32,
) -> *mut c_void;

/// Takes in a device: its name, and what keeps models from it with what to do about that, or an empty text. The texts last
/// for the call.
pub type EachDevice = unsafe extern "C" fn(context: *mut c_void, name: Text<'_>, fault: Text<'_>);

/// What a backend is, for Relevo.
///
/// No function lets a panic or an exception out. Those that can fail give null, or a failure that goes back by
/// `release_failure`. Models may be used by many threads at a time, a session by one.
#[repr(C)]
#[derive(Debug, Clone)]
pub struct BackendTable {
    /// Bytes of this struct.
    pub size: usize,
    /// [`ABI_VERSION`](crate::ABI_VERSION) of whoever made it.
    pub abi_version: u32,
    /// First argument of the next three functions, and of `devices`.
    pub context: *mut c_void,
    /// The format's name: `torchscript`.
    pub format: Text<'static>,
    /// Version for people: `0.1.0, torch 2.13.0`.
    pub version: Text<'static>,
    /// Whether a file of this name is meant for the backend.
    pub accepts: unsafe extern "C" fn(context: *mut c_void, path: Text<'_>) -> bool,
    /// Whether a file of these bytes is one of the format.
    pub recognises: unsafe extern "C" fn(context: *mut c_void, bytes: Bytes<'_>) -> bool,
    /// Loads a model.
    pub load: unsafe extern "C" fn(
        context: *mut c_void,
        source: *const Source<'_>,
        options: *const Options<'_>,
        model: *mut *mut ModelHandle,
    ) -> *mut Failure,
    /// What the model takes and gives. It lives as long as the model.
    pub describe: unsafe extern "C" fn(model: *const ModelHandle) -> *const Description<'static>,
    /// A session, which may outlive its model.
    pub session: unsafe extern "C" fn(model: *const ModelHandle, session: *mut *mut SessionHandle) -> *mut Failure,
    /// One forward pass. `inputs` holds every input in the description's order. `wanted` lists the outputs to compute;
    /// `outputs[i]` receives output `wanted[i]`: into its memory where it has some (type and shape must then fit, else it
    /// is an inference failure), otherwise into what `allocate` gives, which stays until the function returns.
    /// Inputs are neither written to nor kept. Each lies in the processor's memory, or where `input_device` of the description
    /// says; there it is complete, and nothing that is still on its way to the device writes to it.
    pub forward: unsafe extern "C" fn(
        session: *mut SessionHandle,
        inputs: *const Tensor,
        input_count: usize,
        wanted: *const usize,
        outputs: *const Tensor,
        wanted_count: usize,
        allocate: Allocate,
        allocate_context: *mut c_void,
    ) -> *mut Failure,
    /// Takes a session back.
    pub release_session: unsafe extern "C" fn(session: *mut SessionHandle),
    /// Takes a model back.
    pub release_model: unsafe extern "C" fn(model: *mut ModelHandle),
    /// Takes a failure back.
    pub release_failure: unsafe extern "C" fn(failure: *mut Failure),
    /// Tells of the devices that models might run on. Appended in version 1.1 of this crate: an older table ends before it, which is
    /// as `None`, a backend that runs on the CPU alone.
    pub devices:
        Option<unsafe extern "C" fn(context: *mut c_void, each: EachDevice, each_context: *mut c_void) -> *mut Failure>,
}

impl BackendTable {
    /// Bytes of the shortest table that is read: everything up to `release_failure`.
    pub const LEAST_SIZE: usize = std::mem::offset_of!(Self, devices);

    /// The table at `table`, with what its writer did not know yet left out.
    ///
    /// # Safety
    /// The pointer must lead to a table of this [`ABI_VERSION`](crate::ABI_VERSION), of `size` bytes, which are at least
    /// [`LEAST_SIZE`](Self::LEAST_SIZE).
    pub unsafe fn read(table: *const Self, size: usize) -> Self {
        let mut whole = std::mem::MaybeUninit::<Self>::zeroed();
        let known = size.min(size_of::<Self>());
        // SAFETY: so many bytes are there, promised by the caller. What is missing stays zero, which is `None` for the
        // functions behind `LEAST_SIZE`, and the bytes before are those of a table.
        unsafe {
            std::ptr::copy_nonoverlapping(table.cast::<u8>(), whole.as_mut_ptr().cast(), known);
            whole.assume_init()
        }
    }
}

// SAFETY: the table is only read, and its functions may be called from every thread.
unsafe impl Send for BackendTable {}
// SAFETY: as above.
unsafe impl Sync for BackendTable {}
