//! What crosses the boundary: texts, tensors, descriptions, failures.

use std::{ffi::c_void, fmt, marker::PhantomData, slice};

/// Some `T` in a row that belong to somebody else: a pointer and a count.
#[repr(C)]
#[derive(Debug)]
pub struct Slice<'a, T> {
    data: *const T,
    size: usize,
    owner: PhantomData<&'a [T]>,
}

/// UTF-8 without a terminator.
pub type Text<'a> = Slice<'a, u8>;

/// Bytes.
pub type Bytes<'a> = Slice<'a, u8>;

impl<T> Clone for Slice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Slice<'_, T> {}

// SAFETY: it is used as `&[T]`.
unsafe impl<T: Sync> Send for Slice<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Slice<'_, T> {}

impl<'a, T> Slice<'a, T> {
    /// No elements, and a null pointer: "none was given", where that differs from "none".
    pub const fn none() -> Self {
        Self { data: std::ptr::null(), size: 0, owner: PhantomData }
    }

    /// Of these elements.
    pub const fn new(elements: &'a [T]) -> Self {
        Self { data: elements.as_ptr(), size: elements.len(), owner: PhantomData }
    }

    /// Whether the pointer is null.
    pub fn is_none(&self) -> bool {
        self.data.is_null()
    }

    /// The elements.
    ///
    /// # Safety
    /// The pointer must be null, or lead to so many elements that stay for `'a`.
    pub unsafe fn get(&self) -> &'a [T] {
        if self.data.is_null() {
            return &[];
        }
        // SAFETY: promised by the caller.
        unsafe { slice::from_raw_parts(self.data, self.size) }
    }
}

impl<'a> Text<'a> {
    /// Of this text.
    pub const fn of(text: &'a str) -> Self {
        Self::new(text.as_bytes())
    }

    /// The text; what is no UTF-8 is replaced.
    ///
    /// # Safety
    /// As [`Slice::get`].
    pub unsafe fn text(&self) -> String {
        // SAFETY: promised by the caller.
        String::from_utf8_lossy(unsafe { self.get() }).into_owned()
    }
}

/// An element type in DLPack's terms.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DType {
    /// 0 signed integer, 1 unsigned integer, 2 float, 6 bool.
    pub code: u8,
    /// Bits of one element.
    pub bits: u8,
    /// 1.
    pub lanes: u16,
}

impl DType {
    /// One byte, 0 or 1.
    pub const BOOL: Self = Self::new(6, 8);
    /// 32-bit float.
    pub const FLOAT32: Self = Self::new(2, 32);
    /// 64-bit signed integer.
    pub const INT64: Self = Self::new(0, 64);

    /// A type by DLPack's code and its width.
    pub const fn new(code: u8, bits: u8) -> Self {
        Self { code, bits, lanes: 1 }
    }

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        self.bits as usize / 8
    }
}

/// A device in DLPack's terms.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device {
    /// 1 CPU, 2 CUDA, 8 Metal.
    pub kind: i32,
    /// Which of them.
    pub index: i32,
}

impl Device {
    /// The processor's memory.
    pub const CPU: Self = Self { kind: 1, index: 0 };

    /// The memory of a GPU of NVIDIA.
    pub const fn cuda(index: i32) -> Self {
        Self { kind: 2, index }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            1 => formatter.write_str("cpu"),
            2 => write!(formatter, "cuda:{}", self.index),
            kind => write!(formatter, "device {} of DLPack's kind {kind}", self.index),
        }
    }
}

/// A tensor whose memory belongs to somebody else: DLPack's `DLTensor`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Tensor {
    /// The memory; null for an output that has none yet.
    pub data: *mut c_void,
    /// Where it lies.
    pub device: Device,
    /// Number of dimensions.
    pub ndim: i32,
    /// Element type.
    pub dtype: DType,
    /// `ndim` sizes.
    pub shape: *const i64,
    /// `ndim` strides in elements, or null: row-major without gaps.
    pub strides: *const i64,
    /// Where the first element lies in `data`.
    pub byte_offset: u64,
}

impl Tensor {
    /// The first element's address.
    pub fn address(&self) -> *mut u8 {
        self.data.cast::<u8>().wrapping_add(self.byte_offset as usize)
    }

    /// The strides in elements; of a tensor that tells none, row-major without gaps, none at all.
    ///
    /// # Safety
    /// `strides` must be null, or lead to `ndim` strides.
    pub unsafe fn steps(&self) -> &[i64] {
        // SAFETY: promised by the caller.
        unsafe { Slice { data: self.strides, size: self.ndim as usize, owner: PhantomData }.get() }
    }

    /// The sizes.
    ///
    /// # Safety
    /// `shape` must lead to `ndim` sizes.
    pub unsafe fn sizes(&self) -> &[i64] {
        // SAFETY: promised by the caller.
        unsafe { Slice { data: self.shape, size: self.ndim as usize, owner: PhantomData }.get() }
    }
}

/// A dimension of an input or output.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Dim<'a> {
    /// The size; −1 where it is known only when the model runs.
    pub size: i64,
    /// What the file calls such a size; may be empty.
    pub name: Text<'a>,
}

/// An input or output.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TensorSpec<'a> {
    /// Its name.
    pub name: Text<'a>,
    /// Element type.
    pub dtype: DType,
    /// Dimensions, the batch axis included.
    pub dims: Slice<'a, Dim<'a>>,
}

/// An output that is an input of the next step.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct StateLink<'a> {
    /// Position among the inputs.
    pub input: usize,
    /// Position among the outputs.
    pub output: usize,
    /// Bytes of one row at the start of an episode; empty for zeros.
    pub initial: Bytes<'a>,
}

/// How many rows one forward pass takes: values of [`Description::batch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum BatchKind {
    /// As the shapes say.
    Unknown = 0,
    /// Any number.
    Dynamic = 1,
    /// One.
    One = 2,
}

/// What a model takes and gives.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Description<'a> {
    /// Bytes of this struct.
    pub size: usize,
    /// Inputs, in the order of calls.
    pub inputs: Slice<'a, TensorSpec<'a>>,
    /// Outputs.
    pub outputs: Slice<'a, TensorSpec<'a>>,
    /// What is handed on from step to step.
    pub states: Slice<'a, StateLink<'a>>,
    /// The tool that wrote the file.
    pub producer: Text<'a>,
    /// Hex SHA-256 of the file.
    pub sha256: Text<'a>,
    /// Operators that draw random numbers.
    pub random_ops: Slice<'a, Text<'a>>,
    /// What loading found out, in sentences for people.
    pub notes: Slice<'a, Text<'a>>,
    /// A [`BatchKind`].
    pub batch: i32,
    /// How that showed.
    pub batch_reason: Text<'a>,
    /// A device in whose memory inputs may be given, beside that of the processor: where the model runs. A kind of 0 stands for
    /// none. Appended in version 1.2 of this crate: an older description ends before it.
    pub input_device: Device,
    /// What `relevo.export` wrote into the file about its policy, the JSON of `relevo.json`; empty where it wrote nothing.
    /// Appended in version 1.2 of this crate: an older description ends before it.
    pub declared: Text<'a>,
}

impl Description<'_> {
    /// Bytes of the shortest description that is read: everything up to `batch_reason`.
    pub const LEAST_SIZE: usize = std::mem::offset_of!(Self, input_device);

    /// The description at `description`, with what its writer did not know yet left out.
    ///
    /// # Safety
    /// The pointer must lead to a description of `size` bytes, which are at least [`LEAST_SIZE`](Self::LEAST_SIZE).
    pub unsafe fn read(description: *const Self, size: usize) -> Self {
        let mut whole = std::mem::MaybeUninit::<Self>::zeroed();
        let known = size.min(size_of::<Self>());
        // SAFETY: so many bytes are there, promised by the caller. What is missing stays zero, no device and no text; the
        // bytes before are those of a description.
        unsafe {
            std::ptr::copy_nonoverlapping(description.cast::<u8>(), whole.as_mut_ptr().cast(), known);
            whole.assume_init()
        }
    }
}

/// Which of Relevo's errors a failure becomes: values of [`Failure::kind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum FailureKind {
    /// The model cannot be loaded. The message is read behind "cannot load PATH: ".
    ModelLoad = 1,
    /// Data does not fit the model.
    Contract = 2,
    /// The forward pass failed.
    Inference = 3,
    /// The device is not usable.
    DeviceUnavailable = 4,
    /// A setting is impossible.
    Config = 5,
}

/// What went wrong. It belongs to the backend, which takes it back by `release_failure`.
#[repr(C)]
#[derive(Debug)]
pub struct Failure {
    /// A [`FailureKind`].
    pub kind: i32,
    /// What was expected, what came, what to do.
    pub message: Text<'static>,
}
