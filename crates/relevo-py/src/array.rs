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
    sync::PyOnceLock,
    types::{PyDict, PyString},
};
use relevo_core::spec::{DType, shape_text};

use crate::error::contract;

/// A C-contiguous, aligned array in native byte order.
pub(crate) struct Contiguous<'py>(Bound<'py, PyUntypedArray>);

impl<'py> Contiguous<'py> {
    /// The object as an array; it is copied only where it is not contiguous. This may run Python code.
    pub(crate) fn new(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(array) = object.cast::<PyUntypedArray>()
            && array.is_c_contiguous()
            && array.is_aligned()
            && array.dtype().is_native_byteorder().unwrap_or(true)
        {
            return Ok(Self(array.clone()));
        }
        let py = object.py();
        let mut array = numpy_function(py, "ascontiguousarray")?.call1((object,))?.cast_into::<PyUntypedArray>()?;
        if !array.is_aligned() {
            array = array.call_method0("copy")?.cast_into()?;
        }
        if array.dtype().is_native_byteorder().unwrap_or(true) {
            // A scalar has become an array of one; its own shape is what counts.
            let own = object.cast::<PyUntypedArray>().map_or(array.ndim(), PyUntypedArrayMethods::ndim);
            if own == array.ndim() {
                return Ok(Self(array));
            }
            return Ok(Self(array.call_method1("reshape", (pyo3::types::PyTuple::empty(py),))?.cast_into()?));
        }
        let native = array.dtype().call_method1("newbyteorder", ("=",))?;
        Ok(Self(array.call_method1("astype", (native,))?.cast_into()?))
    }

    /// The object as a contiguous array of another type, by NumPy's `astype`.
    pub(crate) fn converted(object: &Bound<'py, PyAny>, dtype: &str) -> PyResult<Self> {
        let py = object.py();
        let options = PyDict::new(py);
        options.set_item("dtype", dtype)?;
        let array = numpy_function(py, "ascontiguousarray")?.call((object,), Some(&options))?;
        Ok(Self(array.cast_into()?))
    }

    /// Element type; `None` for types that no tensor has (objects, strings, complex numbers).
    pub(crate) fn dtype(&self) -> Option<DType> {
        dtype_of(&self.0.dtype())
    }

    /// The array itself.
    pub(crate) fn object(&self) -> &Bound<'py, PyUntypedArray> {
        &self.0
    }

    /// Dimensions.
    pub(crate) fn shape(&self) -> &[usize] {
        self.0.shape()
    }

    /// The bytes. Python code must not run while they are in use.
    pub(crate) fn bytes(&self) -> &[u8] {
        let len = self.0.len() * self.0.dtype().itemsize();
        if len == 0 {
            return &[];
        }
        // SAFETY: the array is C-contiguous, so `len` bytes follow its data pointer, and it is kept alive by `self`. The
        // interpreter lock is held, and callers run no Python code while they use the bytes, so nobody writes to them.
        unsafe { std::slice::from_raw_parts((*self.0.as_array_ptr()).fields.data.cast::<u8>(), len) }
    }

    /// Refuses the array unless it has this type and shape.
    pub(crate) fn expect(&self, what: &str, dtype: DType, rows: usize, row_shape: &[usize]) -> PyResult<()> {
        let shape = self.shape();
        let fits = shape.split_first().is_some_and(|(first, rest)| *first == rows && rest == row_shape);
        if fits && self.dtype() == Some(dtype) {
            return Ok(());
        }
        let mut expected = vec![rows];
        expected.extend_from_slice(row_shape);
        let came = self.0.dtype().str()?.to_string();
        let advice = if fits {
            format!("convert it by .astype(numpy.{dtype})")
        } else if shape == row_shape && rows == 1 {
            "add the axis that counts the actors by [None]".into()
        } else if shape.split_first().is_some_and(|(_, rest)| rest == row_shape) {
            format!("give one row for each of the {rows} actors")
        } else {
            "check the environment against `relevo inspect`".into()
        };
        Err(contract(&format!(
            "{what} must be {dtype} of shape {}, but {came} of shape {} came; {advice}",
            shape_text(&expected),
            shape_text(shape)
        )))
    }
}

/// A function of the module `numpy`.
pub(crate) fn numpy_function<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    static NUMPY: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    NUMPY.get_or_try_init(py, || Ok::<_, PyErr>(py.import("numpy")?.unbind()))?.bind(py).getattr(name)
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
