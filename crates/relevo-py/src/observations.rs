//! Observations in the forms in which they come: one array, a dict by name, a tuple in the model's order.

use pyo3::{
    prelude::*,
    types::{PyDict, PyTuple},
};
use relevo_core::{
    runtime::ActCall,
    trajectory::{ExtraSpec, StepSchema},
};
use smallvec::SmallVec;

use crate::{
    array::Contiguous,
    error::{self, to_python},
    tensor_device::TensorDevice,
};

/// What `act` was given to observe, in the order of the policy's observation columns.
pub(crate) enum Observations<'py> {
    One(Contiguous<'py>),
    Several(Vec<Contiguous<'py>>),
}

impl<'py> Observations<'py> {
    /// Takes `obs` apart; `names` tells the names of the policy's observations, `extras` which entries are texts beside them. This
    /// may run Python code.
    pub(crate) fn new(
        obs: &Bound<'py, PyAny>,
        extras: &[ExtraSpec],
        names: impl FnOnce() -> Vec<String>,
    ) -> PyResult<Self> {
        if let Ok(dict) = obs.cast::<PyDict>() {
            let names = names();
            let arrays = names.iter().map(|name| Contiguous::new(&entry(dict, name, names.len() == 1, extras)?));
            return arrays.collect::<PyResult<_>>().map(Self::Several);
        }
        if let Ok(tuple) = obs.cast::<PyTuple>() {
            return tuple.iter().map(|value| Contiguous::new(&value)).collect::<PyResult<_>>().map(Self::Several);
        }
        Contiguous::new(obs).map(Self::One)
    }

    /// Refuses them unless they are what the policy observes.
    pub(crate) fn check(&self, schema: &StepSchema, rows: usize) -> PyResult<()> {
        let columns = &schema.observations;
        let given = self.arrays();
        if given.len() != columns.len() {
            let names = columns.iter().map(|column| column.key.as_str()).collect::<Vec<_>>().join(", ");
            let wanted = match columns.len() {
                1 => "one array".to_owned(),
                count => format!("{count} arrays, given as a dict of {names}"),
            };
            let advice = if columns.len() == 1 { "; of what envs.reset() gives, pass the first part" } else { "" };
            return Err(error::contract(&format!("the policy observes {wanted}, but {} came{advice}", given.len())));
        }
        for (array, column) in given.iter().zip(columns) {
            let what = if column.key.is_empty() { "obs" } else { &column.key };
            array.expect(what, column.dtype, rows, &column.shape)?;
        }
        Ok(())
    }

    /// Copies them, checked, into the call's row.
    pub(crate) fn write(&self, call: &mut ActCall<'_>) -> PyResult<()> {
        for (index, array) in self.arrays().iter().enumerate() {
            call.write_observations(index, array.bytes()).map_err(|error| to_python(&error))?;
        }
        Ok(())
    }

    /// Their bytes, in the order of the policy's observation columns.
    pub(crate) fn bytes(&self) -> SmallVec<[&[u8]; 4]> {
        self.arrays().iter().map(Contiguous::bytes).collect()
    }

    /// The device of the first that is a tensor on another device than the CPU.
    pub(crate) fn device(&self, py: Python<'_>) -> Option<TensorDevice> {
        self.arrays().iter().find_map(Contiguous::device).map(|device| device.clone_ref(py))
    }

    fn arrays(&self) -> &[Contiguous<'py>] {
        match self {
            Self::One(array) => std::slice::from_ref(array),
            Self::Several(arrays) => arrays,
        }
    }
}

/// The entry `name` of a dict; entries that nobody asks for are passed over. Where the policy observes one array and the
/// dict holds one, beside the texts among `extras`, that is it, whatever its name.
pub(crate) fn entry<'py>(
    dict: &Bound<'py, PyDict>,
    name: &str,
    only: bool,
    extras: &[ExtraSpec],
) -> PyResult<Bound<'py, PyAny>> {
    if let Some(value) = dict.get_item(name)? {
        return Ok(value);
    }
    let is_text =
        |key: &Bound<'_, PyAny>| extras.iter().any(|extra| extra.observed && key.eq(&extra.name).unwrap_or(false));
    let mut others = dict.iter().filter(|(key, _)| !is_text(key));
    match (others.next(), others.next()) {
        (Some((_, value)), None) if only => Ok(value),
        _ => Err(error::contract(&format!(
            "the observation `{name}`, which the policy observes, is missing; the dict has the keys {}. Rename the \
             environment's observations by a wrapper (gymnasium.wrappers.TransformObservation), or the model's input",
            dict.keys()
        ))),
    }
}
