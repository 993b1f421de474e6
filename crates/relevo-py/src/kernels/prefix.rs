//! Common prefixes.

use pyo3::{
    prelude::*,
    types::{PyList, PyTuple},
};
use relevo_core::spec::{DType, shape_text};
use relevo_kernels::prefix::{prefix_match as compute_one, prefix_match_many as compute_many};

use super::{
    arrays::{Output, elements, integers},
    run,
};
use crate::{array::Contiguous, error::contract};

/// Length of the longest common prefix of two token sequences (EchoRL); of each of `a` with each of `b` where both are several.
#[pyfunction]
pub(crate) fn prefix_match<'py>(
    py: Python<'py>,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    if !are_several(a)? && !are_several(b)? {
        let (a, b) = (Contiguous::new(a)?, Contiguous::new(b)?);
        let length = match (one_dimension("a", &a)?.dtype(), one_dimension("b", &b)?.dtype()) {
            (Some(DType::Int64), Some(DType::Int64)) => compute_one::<i64>(elements(&a)?, elements(&b)?),
            (Some(DType::Int32), Some(DType::Int32)) => compute_one::<i32>(elements(&a)?, elements(&b)?),
            _ => compute_one(&integers("a", &a)?, &integers("b", &b)?),
        };
        return Ok(length.into_pyobject(py)?.into_any());
    }
    let (a, b) = (sequences("a", a)?, sequences("b", b)?);
    let (a, b): (Vec<&[i64]>, Vec<&[i64]>) =
        (a.iter().map(Vec::as_slice).collect(), b.iter().map(Vec::as_slice).collect());
    let mut lengths = Output::<i64>::new(py, None, &[a.len(), b.len()])?;
    let written = lengths.slice()?;
    let tokens: usize = a.iter().chain(&b).map(|tokens| tokens.len()).sum();
    run(py, (tokens + written.len()) * size_of::<i64>(), || compute_many(&a, &b, written))?;
    Ok(lengths.into_array())
}

/// Whether it is a list of sequences, or an array of rows, and not one sequence of tokens.
fn are_several(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        return Ok(object.len()? > 0 && object.get_item(0)?.hasattr("__len__")?);
    }
    Ok(Contiguous::new(object)?.shape().len() > 1)
}

/// The token sequences of a list of them, or the rows of an array.
fn sequences(name: &'static str, object: &Bound<'_, PyAny>) -> PyResult<Vec<Vec<i64>>> {
    let sequences = object.try_iter()?.map(|sequence| {
        let sequence = Contiguous::new(&sequence?)?;
        integers(name, one_dimension(name, &sequence)?)
    });
    sequences.collect()
}

fn one_dimension<'a, 'py>(name: &str, array: &'a Contiguous<'py>) -> PyResult<&'a Contiguous<'py>> {
    if array.shape().len() == 1 {
        return Ok(array);
    }
    let came = shape_text(array.shape());
    Err(contract(&format!(
        "{name} must hold token ids, or sequences of them on both sides; an array of shape {came} came"
    )))
}
