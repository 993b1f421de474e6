//! NumPy arrays in and out.
//!
//! In: an array's bytes are read under the interpreter lock, while nothing else in Python runs. Out: arrays are views of
//! memory that Rust owns; the Python object that owns it is the array's base.

#![expect(unsafe_code, reason = "NumPy's memory is reached through its C structure")]

use numpy::{
    Element, IxDyn, PyArray, PyArrayDescr, PyArrayDescrMethods, PyArrayDyn, PyUntypedArray, PyUntypedArrayMethods,
    ndarray::ArrayView,
};
use pyo3::{
    prelude::*,
    types::{PyDict, PyString},
};
use relevo_core::spec::{DType, shape_text};

use crate::{error::contract, once::Once, tensor_device::TensorDevice};

/// A C-contiguous, aligned array in native byte order.
pub(crate) struct Contiguous<'py> {
    array: Bound<'py, PyUntypedArray>,
    /// Where it was copied from, if that was a tensor on another device.
    device: Option<TensorDevice>,
}

impl<'py> Contiguous<'py> {
    /// The object as an array; it is copied only where it is not contiguous. This may run Python code.
    ///
    /// # Errors
    /// `ContractError` where NumPy makes no array of it.
    pub(crate) fn new(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(array) = object.cast::<PyUntypedArray>()
            && array.is_c_contiguous()
            && array.is_aligned()
            && array.dtype().is_native_byteorder().unwrap_or(true)
        {
            return Ok(Self { array: array.clone(), device: None });
        }
        Self::copied(object).map_err(|error| no_array(object, &error))
    }

    fn copied(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        let (mut array, device) = from_producer(object)?;
        if !array.dtype().is_native_byteorder().unwrap_or(true) {
            let native = array.dtype().call_method1("newbyteorder", ("=",))?;
            array = array.call_method1("astype", (native, "C"))?.cast_into()?;
        } else if !array.is_c_contiguous() || !array.is_aligned() {
            array = array.call_method1("copy", ("C",))?.cast_into()?;
        }
        Ok(Self { array, device })
    }

    /// The array in another type, by NumPy's `astype`.
    pub(crate) fn converted(&self, dtype: &str) -> PyResult<Self> {
        Ok(Self { array: self.array.call_method1("astype", (dtype, "C"))?.cast_into()?, device: None })
    }

    /// The device of the tensor that it was copied from, if that is not the CPU.
    pub(crate) fn device(&self) -> Option<&TensorDevice> {
        self.device.as_ref()
    }

    /// Element type; `None` for types that no tensor has (objects, strings, complex numbers).
    pub(crate) fn dtype(&self) -> Option<DType> {
        dtype_of(&self.array.dtype())
    }

    /// The array itself.
    pub(crate) fn object(&self) -> &Bound<'py, PyUntypedArray> {
        &self.array
    }

    /// Dimensions.
    pub(crate) fn shape(&self) -> &[usize] {
        self.array.shape()
    }

    /// The bytes. Python code must not run while they are in use.
    pub(crate) fn bytes(&self) -> &[u8] {
        let len = self.array.len() * self.array.dtype().itemsize();
        if len == 0 {
            return &[];
        }
        // SAFETY: the array is C-contiguous, so `len` bytes follow its data pointer, and it is kept alive by `self`. The
        // interpreter lock is held, and callers run no Python code while they use the bytes, so nobody writes to them.
        unsafe { std::slice::from_raw_parts((*self.array.as_array_ptr()).fields.data.cast::<u8>(), len) }
    }

    /// Refuses the array unless it has this type and shape.
    pub(crate) fn expect(&self, what: &str, dtype: DType, rows: usize, row_shape: &[usize]) -> PyResult<()> {
        let shape = self.shape();
        if self.dtype() == Some(dtype) && fits(shape, rows, row_shape) {
            return Ok(());
        }
        let name = self.array.dtype().str()?.to_string();
        Err(misfit(what, dtype, rows, row_shape, &Came { dtype: self.dtype(), name: &name, shape }))
    }
}

/// What came in the place of what was expected.
pub(crate) struct Came<'a> {
    /// Element type, if it is one that tensors have.
    pub(crate) dtype: Option<DType>,
    /// What NumPy calls it.
    pub(crate) name: &'a str,
    pub(crate) shape: &'a [usize],
}

/// Whether a shape is that of `rows` rows.
pub(crate) fn fits(shape: &[usize], rows: usize, row_shape: &[usize]) -> bool {
    shape.split_first().is_some_and(|(first, rest)| *first == rows && rest == row_shape)
}

/// The error for what is not of this type, or not of this shape.
pub(crate) fn misfit(what: &str, dtype: DType, rows: usize, row_shape: &[usize], came: &Came<'_>) -> PyErr {
    let Came { shape, name, .. } = *came;
    let mut expected = vec![rows];
    expected.extend_from_slice(row_shape);
    let advice = if fits(shape, rows, row_shape) {
        let name = if dtype == DType::Bool { "bool".to_owned() } else { format!("numpy.{dtype}") };
        format!("convert it by numpy.asarray(…, {name})")
    } else if came.dtype.is_none() {
        format!("give an array of {dtype}")
    } else if shape == row_shape && rows == 1 {
        "add the axis that counts the actors by [None]".into()
    } else if shape == row_shape || shape.split_first().is_some_and(|(_, rest)| rest == row_shape) {
        format!("give one row for each of the {rows} actors")
    } else {
        "check the environment against `relevo inspect`".into()
    };
    contract(&format!(
        "{what} must be {dtype} of shape {}, but {name} of shape {} came; {advice}",
        shape_text(&expected),
        shape_text(shape)
    ))
}

/// NumPy's array of an object, on the memory of that where it can be. What has no `__array__`, or has one that its device
/// forbids, is asked by DLPack. A tensor of PyTorch on another device is copied by PyTorch, and the device told.
fn from_producer<'py>(object: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyUntypedArray>, Option<TensorDevice>)> {
    let py = object.py();
    let by_dlpack = object.hasattr("__dlpack__")?;
    if by_dlpack && let Some(device) = TensorDevice::of(object)? {
        let array = object.call_method0("cpu")?.call_method0("numpy")?;
        return Ok((array.cast_into()?, Some(device)));
    }
    if !by_dlpack || object.hasattr("__array__")? {
        // `asarray`, as `ascontiguousarray` would make an array of one of a scalar.
        match numpy_function(py, "asarray")?.call1((object,)) {
            Err(_) if by_dlpack && !is_on_host(object)? => {}
            array => return Ok((array?.cast_into()?, None)),
        }
    }
    let options = PyDict::new(py);
    if !is_on_host(object)? {
        options.set_item("device", "cpu")?;
        options.set_item("copy", true)?;
    }
    Ok((numpy_function(py, "from_dlpack")?.call((object,), Some(&options))?.cast_into()?, None))
}

/// Whether the memory of an object that has `__dlpack__` is that of the CPU.
fn is_on_host(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    /// `kDLCPU` of DLPack.
    const CPU: i32 = 1;
    let (kind, _index): (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
    Ok(kind == CPU)
}

fn no_array(object: &Bound<'_, PyAny>, error: &PyErr) -> PyErr {
    let kind = object.get_type().name().map_or_else(|_| "object".into(), |name| name.to_string());
    contract(&format!("an array of numbers was expected, but NumPy makes none of the {kind} that came: {error}"))
}

/// A function of the module `numpy`.
pub(crate) fn numpy_function<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    static NUMPY: Once = Once::new();
    NUMPY.get(py, || Ok(py.import("numpy")?.into_any()))?.getattr(name)
}

fn dtype_of(descr: &Bound<'_, PyArrayDescr>) -> Option<DType> {
    Some(match (descr.kind(), descr.itemsize()) {
        (b'b', _) => DType::Bool,
        (b'u', 1) => DType::UInt8,
        (b'u', 2) => DType::UInt16,
        (b'u', 4) => DType::UInt32,
        (b'u', 8) => DType::UInt64,
        (b'i', 1) => DType::Int8,
        (b'i', 2) => DType::Int16,
        (b'i', 4) => DType::Int32,
        (b'i', 8) => DType::Int64,
        (b'f', 2) => DType::Float16,
        (b'f', 4) => DType::Float32,
        (b'f', 8) => DType::Float64,
        _ => return None,
    })
}

trait DescrName {
    fn str(&self) -> PyResult<Bound<'_, PyString>>;
}

impl DescrName for Bound<'_, PyArrayDescr> {
    /// The name as NumPy prints it.
    fn str(&self) -> PyResult<Bound<'_, PyString>> {
        self.as_any().str()
    }
}

/// As [`view`], but it cannot be written to: others hold the same memory.
pub(crate) fn shared_view<'py>(
    owner: &Bound<'py, PyAny>,
    bytes: &[u8],
    dtype: DType,
    shape: &[usize],
) -> PyResult<Bound<'py, PyAny>> {
    let array = view(owner, bytes, dtype, shape)?;
    array.call_method1("setflags", (false,))?;
    Ok(array)
}

/// An array over `bytes`, which live in Rust memory that `owner` keeps alive and unmoved.
pub(crate) fn view<'py>(
    owner: &Bound<'py, PyAny>,
    bytes: &[u8],
    dtype: DType,
    shape: &[usize],
) -> PyResult<Bound<'py, PyAny>> {
    match dtype {
        DType::Bool => view_of::<u8>(owner, bytes, shape)?.call_method1("view", ("bool",)),
        DType::UInt8 => view_of::<u8>(owner, bytes, shape),
        DType::Int8 => view_of::<i8>(owner, bytes, shape),
        DType::UInt16 => view_of::<u16>(owner, bytes, shape),
        DType::Int16 => view_of::<i16>(owner, bytes, shape),
        DType::UInt32 => view_of::<u32>(owner, bytes, shape),
        DType::Int32 => view_of::<i32>(owner, bytes, shape),
        DType::UInt64 => view_of::<u64>(owner, bytes, shape),
        DType::Int64 => view_of::<i64>(owner, bytes, shape),
        DType::Float16 => view_of::<u16>(owner, bytes, shape)?.call_method1("view", ("float16",)),
        DType::Float32 => view_of::<f32>(owner, bytes, shape),
        DType::Float64 => view_of::<f64>(owner, bytes, shape),
    }
}

fn view_of<'py, T: Element + bytemuck::AnyBitPattern>(
    owner: &Bound<'py, PyAny>,
    bytes: &[u8],
    shape: &[usize],
) -> PyResult<Bound<'py, PyAny>> {
    let values: &[T] = bytemuck::try_cast_slice(bytes).map_err(|error| contract(&format!("misaligned: {error}")))?;
    let array = ArrayView::from_shape(IxDyn(shape), values).map_err(|error| contract(&error.to_string()))?;
    // SAFETY: `owner` becomes the array's base, and the caller promises that it keeps the bytes alive and unmoved.
    let array: Bound<'py, PyArrayDyn<T>> = unsafe { PyArray::borrow_from_array(&array, owner.clone()) };
    Ok(array.into_any())
}

/// The only array, or a dict of several by key.
pub(crate) fn one_or_dict<'py, 'a>(
    py: Python<'py>,
    mut arrays: impl ExactSizeIterator<Item = PyResult<(&'a str, Bound<'py, PyAny>)>>,
) -> PyResult<Bound<'py, PyAny>> {
    if arrays.len() == 1
        && let Some(only) = arrays.next()
    {
        return only.map(|(_, array)| array);
    }
    let dict = PyDict::new(py);
    for entry in arrays {
        let (key, array) = entry?;
        dict.set_item(key, array)?;
    }
    Ok(dict.into_any())
}
