//! An episode from NumPy arrays.

use std::sync::Arc;

use arrow_buffer::Buffer;
use numpy::PyUntypedArrayMethods;
use pyo3::{
    prelude::*,
    types::{PyDict, PyList},
};
use relevo_core::{
    spec::{DType, shape_text},
    trajectory::{ColumnSpec, Episode, ExtraKind, ExtraSpec, ExtraValues, StepSchema},
};
use uuid::Uuid;

use crate::{
    array::{Contiguous, numpy_function},
    error::contract,
};

/// What was given of an episode.
pub(crate) struct Given<'a, 'py> {
    pub(crate) observations: &'a Bound<'py, PyAny>,
    pub(crate) actions: &'a Bound<'py, PyAny>,
    pub(crate) rewards: &'a Bound<'py, PyAny>,
    pub(crate) rewards_known: Option<&'a Bound<'py, PyAny>>,
    pub(crate) log_probs: Option<&'a Bound<'py, PyAny>>,
    pub(crate) values: Option<&'a Bound<'py, PyAny>>,
    pub(crate) action_masks: Option<&'a Bound<'py, PyAny>>,
    pub(crate) timestamps: Option<&'a Bound<'py, PyAny>>,
    pub(crate) extras: Option<&'a Bound<'py, PyDict>>,
    pub(crate) texts: Option<&'a Bound<'py, PyDict>>,
}

/// The episode, without number, actor and policies.
pub(crate) fn episode(given: &Given<'_, '_>, terminated: bool, truncated: bool) -> PyResult<Episode> {
    let (actions, action_bytes, len) = tensors("actions", given.actions)?;
    let (observations, observation_bytes, rows) = tensors("observations", given.observations)?;
    let complete = terminated || truncated;
    if len == 0 {
        return Err(contract("an episode has one step or more, but actions of none came"));
    }
    if rows != len && rows != len + 1 {
        return Err(contract(&format!(
            "{len} actions take {len} observations, or {} with the final one, but {rows} came",
            len + 1
        )));
    }
    if rows > len && !complete {
        return Err(contract(&format!(
            "{rows} observations to {len} actions: the last one would be that after the end, but the episode did not end; \
             say terminated=True or truncated=True, or leave it out"
        )));
    }
    let floats = |what, given: Option<_>, dtype| given.map(|given| numbers(what, given, dtype, len)).transpose();
    let masks = given.action_masks.map(|given| masks(given, len)).transpose()?;
    let reward_known = floats("rewards_known", given.rewards_known, DType::Bool)?;
    let log_probs = floats("log_probs", given.log_probs, DType::Float32)?;
    let values = floats("values", given.values, DType::Float32)?;
    let mut extras = Vec::new();
    for (columns, observed) in [(given.extras, false), (given.texts, true)] {
        for (name, values) in columns.into_iter().flatten() {
            extras.push(extra(name.extract()?, &values, if observed { rows } else { len }, observed)?);
        }
    }
    let (extra_specs, extras) = extras.into_iter().unzip();
    let schema = StepSchema {
        observations,
        actions,
        mask: masks.as_ref().map(|(width, _)| *width),
        log_prob: log_probs.is_some(),
        value: values.is_some(),
        extras: extra_specs,
    };
    Ok(Episode {
        number: 0,
        actor_id: Uuid::nil(),
        schema: Arc::new(schema),
        len,
        observations: observation_bytes,
        has_final_observation: rows > len,
        actions: action_bytes,
        masks: masks.map(|(_, bytes)| bytes),
        rewards: numbers("rewards", given.rewards, DType::Float64, len)?,
        reward_known: reward_known.filter(|known| known.contains(&0)),
        log_probs,
        values,
        extras,
        policies: Vec::new(),
        timestamps: times(given.timestamps, len)?,
        terminated,
        truncated,
        complete,
    })
}

/// One array, or a dict of several by name, as columns; and the number of their rows.
fn tensors(what: &str, given: &Bound<'_, PyAny>) -> PyResult<(Vec<ColumnSpec>, Vec<Buffer>, usize)> {
    let named: Vec<(String, Bound<'_, PyAny>)> = match given.cast::<PyDict>() {
        Err(_) => vec![(String::new(), given.clone())],
        Ok(dict) => {
            let entries = dict.iter().map(|(key, array)| match key.extract::<String>() {
                Ok(name) if !name.is_empty() => Ok((name, array)),
                _ => Err(contract(&format!("{what} by name take names that are texts, but {key} came"))),
            });
            entries.collect::<PyResult<_>>()?
        }
    };
    let (mut columns, mut buffers, mut rows) = (Vec::new(), Vec::new(), None);
    for (key, array) in named {
        let what = if key.is_empty() { what.to_owned() } else { format!("{what} {key}") };
        let array = Contiguous::new(&array)?;
        let Some(dtype) = array.dtype() else {
            return Err(contract(&format!("{what} must be numbers, but {} came", array.object().dtype())));
        };
        let Some((count, shape)) = array.shape().split_first() else {
            return Err(contract(&format!("{what} must have an axis that counts the steps, but one number came")));
        };
        if rows.is_some_and(|rows| rows != *count) {
            return Err(contract(&format!("{what} has {count} rows, and the others before it have another number")));
        }
        rows = Some(*count);
        columns.push(ColumnSpec { key, dtype, shape: shape.to_vec() });
        buffers.push(Buffer::from(array.bytes()));
    }
    match rows {
        Some(rows) => Ok((columns, buffers, rows)),
        None => Err(contract(&format!("{what} by name take one array or more, but an empty dict came"))),
    }
}

/// An extra column: an array with a row for each step, or texts.
fn extra(name: String, given: &Bound<'_, PyAny>, rows: usize, observed: bool) -> PyResult<(ExtraSpec, ExtraValues)> {
    if given.is_instance_of::<PyList>() {
        let texts: Vec<String> = given
            .extract()
            .map_err(|_| contract(&format!("`{name}` must be a list of texts, or an array of numbers")))?;
        if texts.len() != rows {
            return Err(contract(&format!("`{name}` must be {rows} texts, but {} came", texts.len())));
        }
        let texts = texts.iter().map(String::as_str).collect();
        return Ok((ExtraSpec { name, kind: ExtraKind::Text, observed }, ExtraValues::Text(texts)));
    }
    let array = Contiguous::new(given)?;
    match (array.dtype(), array.shape().split_first()) {
        (Some(dtype), Some((count, shape))) if *count == rows && !observed => {
            let kind = ExtraKind::Tensor(ColumnSpec { key: String::new(), dtype, shape: shape.to_vec() });
            let values = ExtraValues::Tensor(Buffer::from(array.bytes()));
            Ok((ExtraSpec { name, kind, observed }, values))
        }
        _ => Err(contract(&format!(
            "`{name}` must be {}, but an array of {} of the shape {} came",
            if observed {
                format!("a list of {rows} texts")
            } else {
                format!("an array of {rows} rows of numbers, or a list of as many texts")
            },
            array.object().dtype(),
            shape_text(array.shape())
        ))),
    }
}

/// One number for each step, converted where another type came.
fn numbers(what: &str, given: &Bound<'_, PyAny>, dtype: DType, len: usize) -> PyResult<Buffer> {
    let array = of_type(what, given, dtype)?;
    expect_shape(what, &array, &format!("({len},)"), array.shape() == [len])?;
    Ok(Buffer::from(array.bytes()))
}

/// Width and bytes of action masks.
fn masks(given: &Bound<'_, PyAny>, len: usize) -> PyResult<(usize, Buffer)> {
    let array = of_type("action_masks", given, DType::UInt8)?;
    let fits = array.shape().len() == 2 && array.shape()[0] == len;
    expect_shape("action_masks", &array, &format!("({len}, actions)"), fits)?;
    if array.bytes().iter().any(|allowed| *allowed > 1) {
        return Err(contract("action_masks must be ones and zeros: 1 where an action was allowed"));
    }
    Ok((array.shape()[1], Buffer::from(array.bytes())))
}

/// Times in nanoseconds; zeros where none are given.
fn times(given: Option<&Bound<'_, PyAny>>, len: usize) -> PyResult<Buffer> {
    let Some(given) = given else { return Ok(Buffer::from_vec(vec![0_i64; len])) };
    let array = numpy_function(given.py(), "asarray")?.call1((given,))?;
    let kind: char = array.getattr("dtype")?.getattr("kind")?.extract()?;
    if kind != 'M' {
        return Err(contract(&format!("timestamps must be datetime64, but {} came", array.getattr("dtype")?)));
    }
    let nanoseconds = array.call_method1("astype", ("datetime64[ns]",))?.call_method1("view", ("int64",))?;
    numbers("timestamps", &nanoseconds, DType::Int64, len)
}

fn of_type<'py>(what: &str, given: &Bound<'py, PyAny>, dtype: DType) -> PyResult<Contiguous<'py>> {
    let array = Contiguous::new(given)?;
    match array.dtype() {
        None => Err(contract(&format!("{what} must be {dtype}, but {} came", array.object().dtype()))),
        Some(came) if came == dtype => Ok(array),
        Some(_) => array.converted(dtype.name()),
    }
}

fn expect_shape(what: &str, array: &Contiguous<'_>, expected: &str, fits: bool) -> PyResult<()> {
    if fits {
        return Ok(());
    }
    let came = shape_text(array.shape());
    Err(contract(&format!("{what} must have the shape {expected}, one row for each action, but {came} came")))
}
