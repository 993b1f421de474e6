//! Final observations in the forms in which environments give them: an array with a row for each actor, Gymnasium's object
//! array with None where nothing ended, or a dict of either.

use pyo3::{prelude::*, types::PyDict};
use relevo_core::{
    runtime::FinalObservations,
    trajectory::{ColumnSpec, StepSchema},
};

use crate::{array::Contiguous, error};

/// Collects the final observations of the actors in `ended` rows.
pub(crate) fn collect(
    given: &Bound<'_, PyAny>,
    ended: &[usize],
    rows: usize,
    schema: &StepSchema,
) -> PyResult<FinalObservations> {
    let mut finals = FinalObservations::default();
    if given.is_none() || ended.is_empty() {
        return Ok(finals);
    }
    let sources =
        schema.observations.iter().map(|column| Source::new(given, column, rows)).collect::<PyResult<Vec<_>>>()?;
    for row in ended {
        let before = finals.bytes.len();
        let mut missing = false;
        for (source, column) in sources.iter().zip(&schema.observations) {
            missing |= !source.append(*row, column, &mut finals.bytes)?;
        }
        if missing {
            finals.bytes.truncate(before);
        } else {
            finals.rows.push(*row as u32);
        }
    }
    Ok(finals)
}

/// Where one observation column comes from.
enum Source<'py> {
    /// An array with a row for each actor.
    Rows(Contiguous<'py>),
    /// A sequence with an object for each actor: None, an array, or a dict that holds it.
    Objects(Bound<'py, PyAny>),
}

impl<'py> Source<'py> {
    fn new(given: &Bound<'py, PyAny>, column: &ColumnSpec, rows: usize) -> PyResult<Self> {
        let given = match given.cast::<PyDict>() {
            Ok(dict) => dict.get_item(&column.key)?.ok_or_else(|| {
                error::contract(&format!("final_obs has no `{}`, which the policy observes", column.key))
            })?,
            Err(_) => given.clone(),
        };
        let is_array = given.cast::<numpy::PyUntypedArray>().is_ok();
        if is_array {
            let array = Contiguous::new(&given)?;
            if array.dtype().is_some() {
                array.expect("final_obs", column.dtype, rows, &column.shape)?;
                return Ok(Self::Rows(array));
            }
        }
        let len = given.len()?;
        if len != rows {
            return Err(error::contract(&format!(
                "final_obs must have {rows} entries, one for each actor, but has {len}"
            )));
        }
        Ok(Self::Objects(given))
    }

    /// Appends the row's bytes; `false` where the observation is not known.
    fn append(&self, row: usize, column: &ColumnSpec, bytes: &mut Vec<u8>) -> PyResult<bool> {
        match self {
            Self::Rows(array) => {
                let size = column.row_bytes();
                bytes.extend_from_slice(&array.bytes()[row * size..(row + 1) * size]);
            }
            Self::Objects(objects) => {
                let mut object = objects.get_item(row)?;
                if object.is_none() {
                    return Ok(false);
                }
                if let Ok(dict) = object.cast::<PyDict>() {
                    let Some(inner) = dict.get_item(&column.key)? else { return Ok(false) };
                    object = inner;
                }
                let array = Contiguous::new(&object.call_method1("__getitem__", ((),)).unwrap_or(object))?;
                let batched = Contiguous::new(&array.object().call_method1("reshape", (with_one(array.shape()),))?)?;
                batched.expect(&format!("final_obs[{row}] (with an axis added)"), column.dtype, 1, &column.shape)?;
                bytes.extend_from_slice(batched.bytes());
            }
        }
        Ok(true)
    }
}

fn with_one(shape: &[usize]) -> Vec<usize> {
    std::iter::once(1).chain(shape.iter().copied()).collect()
}
