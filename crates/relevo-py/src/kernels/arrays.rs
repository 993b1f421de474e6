//! Arrays that kernels read and write.

#![expect(unsafe_code, reason = "a new array is written to through a slice, without being zeroed before")]

use std::ops::Range;

use bytemuck::Pod;
use numpy::{Element, IxDyn, PyArrayDyn, PyArrayMethods, PyReadwriteArrayDyn, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use relevo_core::spec::{DType, shape_text};
use relevo_kernels::Float;

use crate::{array::Contiguous, error::contract};

/// A precision that NumPy and the kernels share.
pub(super) trait Precision: Float + Element + Pod {
    /// NumPy's name of it.
    const NAME: &'static str;
    /// The same, for the engine.
    const DTYPE: DType;
}

impl Precision for f32 {
    const NAME: &'static str = "float32";
    const DTYPE: DType = DType::Float32;
}

impl Precision for f64 {
    const NAME: &'static str = "float64";
    const DTYPE: DType = DType::Float64;
}

/// Calls a function in the precision of the arrays: float32 where all of them are, else float64.
macro_rules! by_precision {
    ([$($input:expr),+], $function:ident($($argument:expr),* $(,)?)) => {
        if $($input.is_single())&&+ { $function::<f32>($($argument),*) } else { $function::<f64>($($argument),*) }
    };
}
pub(super) use by_precision;

/// An array of numbers.
pub(super) struct Floats<'py> {
    name: &'static str,
    array: Contiguous<'py>,
    dtype: DType,
}

impl<'py> Floats<'py> {
    /// The argument `name`.
    pub(super) fn new(name: &'static str, object: &Bound<'py, PyAny>) -> PyResult<Self> {
        let array = Contiguous::new(object)?;
        let Some(dtype) = array.dtype() else {
            let came = array.object().dtype();
            return Err(contract(&format!("{name} must hold numbers, float32 or float64, but {came} came")));
        };
        Ok(Self { name, array, dtype })
    }

    pub(super) fn shape(&self) -> &[usize] {
        self.array.shape()
    }

    pub(super) fn is_single(&self) -> bool {
        self.dtype == DType::Float32
    }

    /// Size in bytes.
    pub(super) fn size(&self) -> usize {
        self.array.bytes().len()
    }

    /// Refuses it unless it has the shape of `like`. An empty list fits any empty array.
    pub(super) fn expect_shape(&self, like: &'static str, shape: &[usize]) -> PyResult<()> {
        same_shape(self.name, self.shape(), like, shape)
    }

    /// In the precision that is computed in: the array's own memory where it has that already.
    pub(super) fn of<F: Precision>(&self) -> PyResult<Numbers<'_, 'py, F>> {
        if self.dtype == F::DTYPE {
            return Ok(Numbers { array: Held::Given(&self.array), precision: std::marker::PhantomData });
        }
        let converted = self.array.converted(F::NAME)?;
        Ok(Numbers { array: Held::Converted(converted), precision: std::marker::PhantomData })
    }
}

/// An array in the precision that is computed in.
pub(super) struct Numbers<'a, 'py, F> {
    array: Held<'a, 'py>,
    precision: std::marker::PhantomData<F>,
}

enum Held<'a, 'py> {
    Given(&'a Contiguous<'py>),
    Converted(Contiguous<'py>),
}

impl<F: Precision> Numbers<'_, '_, F> {
    /// Its elements, in C's order.
    pub(super) fn slice(&self) -> PyResult<&[F]> {
        let array = match &self.array {
            Held::Given(array) => array,
            Held::Converted(array) => array,
        };
        elements(array)
    }
}

/// The elements of an array whose type was looked at.
pub(super) fn elements<'a, T: Pod>(array: &'a Contiguous<'_>) -> PyResult<&'a [T]> {
    let bytes = array.bytes();
    if bytes.is_empty() {
        return Ok(&[]);
    }
    bytemuck::try_cast_slice(bytes).map_err(|error| contract(&format!("misaligned: {error}")))
}

/// An array of flags, as bytes.
pub(super) struct Flags<'py> {
    name: &'static str,
    array: Contiguous<'py>,
    converted: Option<Vec<u8>>,
}

impl<'py> Flags<'py> {
    /// The argument `name`: bools, or integers of which each is 0 or 1.
    pub(super) fn new(name: &'static str, object: &Bound<'py, PyAny>) -> PyResult<Self> {
        let array = Contiguous::new(object)?;
        let converted = match array.dtype() {
            Some(DType::Bool | DType::UInt8) => None,
            Some(dtype) if is_integer(dtype) || array.bytes().is_empty() => {
                let flags = integers(name, &array)?.into_iter().enumerate().map(|(position, flag)| match flag {
                    0 => Ok(0),
                    1 => Ok(1),
                    _ => Err(contract(&format!("{name} must be 0 or 1, but {flag} came at position {position}"))),
                });
                Some(flags.collect::<PyResult<_>>()?)
            }
            _ => {
                let came = array.object().dtype();
                return Err(contract(&format!(
                    "{name} must be bool, or integers 0 and 1, but {came} came; say .astype(bool)"
                )));
            }
        };
        Ok(Self { name, array, converted })
    }

    /// Refuses it unless it has the shape of `like`.
    pub(super) fn expect_shape(&self, like: &'static str, shape: &[usize]) -> PyResult<()> {
        same_shape(self.name, self.array.shape(), like, shape)
    }

    pub(super) fn slice(&self) -> &[u8] {
        self.converted.as_deref().unwrap_or_else(|| self.array.bytes())
    }
}

/// The whole numbers of an array, which may also be an empty one of floats, as NumPy makes of an empty list.
pub(super) fn integers(name: &str, array: &Contiguous<'_>) -> PyResult<Vec<i64>> {
    let bytes = array.bytes();
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    if !array.dtype().is_some_and(|dtype| dtype == DType::Bool || is_integer(dtype)) {
        let came = array.object().dtype();
        return Err(contract(&format!("{name} must be integers, but {came} came; say .astype(int)")));
    }
    if array.dtype() == Some(DType::UInt64) {
        let numbers = elements::<u64>(array)?.iter();
        let too_large = |_| contract(&format!("{name} must be below 2^63"));
        return numbers.map(|number| i64::try_from(*number).map_err(too_large)).collect();
    }
    Ok(elements(&array.converted("int64")?)?.to_vec())
}

fn is_integer(dtype: DType) -> bool {
    !matches!(dtype, DType::Bool | DType::Float16 | DType::Float32 | DType::Float64)
}

/// N of `[T, N]`: how many elements a row has.
pub(super) fn streams(name: &str, shape: &[usize]) -> PyResult<usize> {
    match shape.split_first() {
        Some((_, row)) => Ok(row.iter().product()),
        None => Err(contract(&format!("{name} must be [T, N], steps by streams, but a single number came"))),
    }
}

fn same_shape(name: &str, came: &[usize], like: &str, shape: &[usize]) -> PyResult<()> {
    let is_empty = |shape: &[usize]| shape.contains(&0);
    if came == shape || (is_empty(came) && is_empty(shape) && (came.len() == 1 || shape.len() == 1)) {
        return Ok(());
    }
    let (shape, came) = (shape_text(shape), shape_text(came));
    Err(contract(&format!("{name} must have the shape of {like}, {shape}, but {came} came")))
}

/// What outputs hold: plain numbers, of which any bits are one.
pub(super) trait Number: Element + Pod {}

impl<T: Element + Pod> Number for T {}

/// An array that a kernel writes: a new one, or the caller's.
pub(super) enum Output<'py, T: Number> {
    New(Bound<'py, PyArrayDyn<T>>),
    Given(PyReadwriteArrayDyn<'py, T>),
}

impl<'py, T: Number> Output<'py, T> {
    /// A new array, unless the caller gave one.
    pub(super) fn new(py: Python<'py>, given: Option<&Bound<'py, PyAny>>, shape: &[usize]) -> PyResult<Self> {
        match given {
            // SAFETY: its numbers are arbitrary until a kernel has written them. Kernels read none before that, and an array whose
            // kernel failed goes to nobody. Writing zeros first would cost as much as a part of the kernel.
            None => Ok(Self::New(unsafe { PyArrayDyn::new(py, IxDyn(shape), false) })),
            Some(given) => Self::given(given, shape),
        }
    }

    fn given(given: &Bound<'py, PyAny>, shape: &[usize]) -> PyResult<Self> {
        let wrong = |came: &str| {
            let dtype = T::get_dtype(given.py());
            let shape = shape_text(shape);
            contract(&format!("out must be a writable, C-contiguous array of {dtype} of shape {shape}, but {came}"))
        };
        let Ok(array) = given.cast::<PyArrayDyn<T>>() else {
            return Err(wrong(&match given.cast::<PyUntypedArray>() {
                Ok(array) => format!("one of {} came", array.dtype()),
                Err(_) => format!("a {} came", given.get_type().name()?),
            }));
        };
        if array.shape() != shape {
            return Err(wrong(&format!("one of shape {} came", shape_text(array.shape()))));
        }
        if !array.is_c_contiguous() || !array.is_aligned() {
            return Err(wrong("one came whose elements do not lie side by side"));
        }
        match array.try_readwrite() {
            Ok(array) => Ok(Self::Given(array)),
            Err(error) => Err(wrong(&format!("this one cannot be written to: {error}"))),
        }
    }

    /// Its elements.
    pub(super) fn slice(&mut self) -> PyResult<&mut [T]> {
        match self {
            // SAFETY: the array is new, so nobody else has a view of it, and it is kept alive by `self`.
            Self::New(array) => unsafe { array.as_slice_mut() }.map_err(|error| contract(&error.to_string())),
            Self::Given(array) => array.as_slice_mut().map_err(|error| contract(&error.to_string())),
        }
    }

    /// Refuses a caller's array that shares memory with what is read.
    pub(super) fn apart_from<R>(&self, read: &[&[R]]) -> PyResult<()> {
        let Self::Given(array) = self else { return Ok(()) };
        let Ok(slice) = array.as_slice() else { return Ok(()) };
        let bytes = bytes_of(slice);
        if read.iter().map(|read| bytes_of(read)).any(|read| read.start < bytes.end && bytes.start < read.end) {
            return Err(contract("out must not share memory with what is read; give an array of its own"));
        }
        Ok(())
    }

    /// The array for Python.
    pub(super) fn into_array(self) -> Bound<'py, PyAny> {
        match self {
            Self::New(array) => array.into_any(),
            Self::Given(array) => array.as_any().clone(),
        }
    }
}

/// Where a slice lies in memory.
fn bytes_of<T>(slice: &[T]) -> Range<*const u8> {
    let Range { start, end } = slice.as_ptr_range();
    start.cast()..end.cast()
}

/// The arrays of `out`, a sequence of so many; none where there is no `out`.
pub(super) fn outputs<'py, const COUNT: usize>(
    out: Option<&Bound<'py, PyAny>>,
    names: &str,
) -> PyResult<[Option<Bound<'py, PyAny>>; COUNT]> {
    let Some(out) = out else { return Ok([const { None }; COUNT]) };
    let arrays: Vec<Option<Bound<'py, PyAny>>> = match out.try_iter() {
        Ok(arrays) => arrays.map(|array| array.map(Some)).collect::<PyResult<_>>()?,
        Err(_) => Vec::new(),
    };
    arrays.try_into().map_err(|_| contract(&format!("out must be {COUNT} arrays: {names}")))
}
