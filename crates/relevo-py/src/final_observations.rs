//! Final observations in the forms in which environments give them: an array with a row for each actor, Gymnasium's object
//! array with None where nothing ended, or a dict of either.

use pyo3::{prelude::*, types::PyDict};
use relevo_core::{
    runtime::FinalObservations,
    trajectory::{ColumnSpec, ExtraSpec, StepSchema},
};

use crate::{array::Contiguous, error, observations::entry};

/// Collects the final observations of the actors in `ended` rows; `names` are those of the observation columns.
pub(crate) fn collect(
    given: &Bound<'_, PyAny>,
    ended: &[usize],
    rows: usize,
    schema: &StepSchema,
    names: &[String],
) -> PyResult<FinalObservations> {
    let mut finals = FinalObservations { columns: schema.observations.clone(), ..FinalObservations::default() };
    if given.is_none() || ended.is_empty() {
        return Ok(finals);
    }
    let columns =
        schema.observations.iter().zip(names).map(|(spec, name)| Column { spec, name, only: names.len() == 1 });
    let sources =
        columns.map(|column| Source::new(given, column, rows, &schema.extras)).collect::<PyResult<Vec<_>>>()?;
    for row in ended {
        let before = finals.bytes.len();
        let mut missing = false;
        for source in &sources {
            missing |= !source.append(*row, &mut finals.bytes)?;
        }
        if missing {
            finals.bytes.truncate(before);
        } else {
            finals.rows.push(*row as u32);
            for extra in schema.extras.iter().filter(|extra| extra.observed) {
                finals.texts.push(text(given, &extra.name, *row)?);
            }
        }
    }
    Ok(finals)
}

/// The text `name` of the final observation in a row.
fn text(given: &Bound<'_, PyAny>, name: &str, row: usize) -> PyResult<String> {
    let found = match given.cast::<PyDict>() {
        Ok(dict) => dict.get_item(name)?.map(|texts| texts.get_item(row)).transpose()?,
        Err(_) => given.get_item(row)?.cast::<PyDict>().ok().map(|dict| dict.get_item(name)).transpose()?.flatten(),
    };
    found.and_then(|text| text.extract().ok()).ok_or_else(|| {
        error::contract(&format!(
            "final_obs[{row}] has no text `{name}`, which is a text observation of the agent; give it beside the others"
        ))
    })
}

/// An observation column, and its input's name.
#[derive(Clone, Copy)]
struct Column<'a> {
    spec: &'a ColumnSpec,
    name: &'a str,
    only: bool,
}

/// Where one observation column comes from.
enum Source<'a, 'py> {
    /// An array with a row for each actor.
    Rows(Column<'a>, Contiguous<'py>),
    /// A sequence with an object for each actor: None, an array, or a dict that holds it.
    Objects(Column<'a>, Bound<'py, PyAny>, &'a [ExtraSpec]),
}

impl<'a, 'py> Source<'a, 'py> {
    fn new(given: &Bound<'py, PyAny>, column: Column<'a>, rows: usize, extras: &'a [ExtraSpec]) -> PyResult<Self> {
        let given = match given.cast::<PyDict>() {
            Ok(dict) => entry(dict, column.name, column.only, extras)?,
            Err(_) => given.clone(),
        };
        if given.cast::<numpy::PyUntypedArray>().is_ok() {
            let array = Contiguous::new(&given)?;
            if array.dtype().is_some() {
                array.expect("final_obs", column.spec.dtype, rows, &column.spec.shape)?;
                return Ok(Self::Rows(column, array));
            }
        }
        let len = given.len().map_err(|_| error::contract("final_obs must have an entry for each actor"))?;
        if len != rows {
            return Err(error::contract(&format!(
                "final_obs must have {rows} entries, one for each actor, but has {len}"
            )));
        }
        Ok(Self::Objects(column, given, extras))
    }

    /// Appends the row's bytes; `false` where the observation is not known.
    fn append(&self, row: usize, bytes: &mut Vec<u8>) -> PyResult<bool> {
        let before = bytes.len();
        let (column, size) = match self {
            Self::Rows(column, array) => {
                let size = column.spec.row_bytes();
                bytes.extend_from_slice(&array.bytes()[row * size..(row + 1) * size]);
                (column, size)
            }
            Self::Objects(column, objects, extras) => {
                let mut object = objects.get_item(row)?;
                if object.is_none() {
                    return Ok(false);
                }
                if let Ok(dict) = object.cast::<PyDict>() {
                    object = entry(dict, column.name, column.only, extras)?;
                }
                let array = Contiguous::new(&object)?;
                let batched = array.object().call_method1("reshape", (with_one(array.shape()),))?;
                let batched = Contiguous::new(&batched)?;
                let what = format!("final_obs[{row}] (with an axis added)");
                batched.expect(&what, column.spec.dtype, 1, &column.spec.shape)?;
                bytes.extend_from_slice(batched.bytes());
                (column, column.spec.row_bytes())
            }
        };
        if size > 0 && relevo_core::runtime::first_nan(&bytes[before..], column.spec.dtype).is_some() {
            return Err(error::contract(&format!("final_obs[{row}] holds NaN; check the environment")));
        }
        Ok(true)
    }
}

fn with_one(shape: &[usize]) -> Vec<usize> {
    std::iter::once(1).chain(shape.iter().copied()).collect()
}
