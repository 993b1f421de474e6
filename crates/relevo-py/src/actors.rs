//! `relevo.Actors`: a handle on some actors, and the two calls of the hot path.

use std::{collections::BTreeMap, sync::Arc};

use pyo3::{
    prelude::*,
    types::{PyBool, PyDict, PyTuple},
};
use relevo_core::{
    runtime::{ActCall, ActOptions, ActorGroup, Recording},
    spec::DType,
};
use uuid::Uuid;

use crate::{
    action_batch::ActionBatch,
    array::Contiguous,
    detach::detach,
    error::{self, to_python},
    outcome::OutcomeArguments,
};

#[pyclass(frozen, module = "relevo")]
pub(crate) struct Actors(Arc<ActorGroup>);

impl Actors {
    pub(crate) fn new(group: Arc<ActorGroup>) -> Self {
        Self(group)
    }
}

#[pymethods]
impl Actors {
    #[getter]
    fn ids(&self) -> Vec<Uuid> {
        self.0.actors.iter().map(|actor| actor.id()).collect()
    }

    #[getter]
    fn observation_dtypes(&self) -> BTreeMap<String, &'static str> {
        let name = |key: &str| if key.is_empty() { "observation".to_owned() } else { key.to_owned() };
        let version = self.0.actors[0].policy().current();
        version.schema.observations.iter().map(|column| (name(&column.key), column.dtype.name())).collect()
    }

    #[getter]
    fn action_dtype(&self) -> &'static str {
        self.0.actors[0].policy().current().head.action().dtype.name()
    }

    #[getter]
    fn action_shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.0.actors[0].policy().current().head.action().shape)
    }

    #[getter]
    fn choices(&self) -> Option<usize> {
        self.0.actors[0].policy().current().head.choices()
    }

    fn __len__(&self) -> usize {
        self.0.actors.len()
    }

    fn __repr__(&self) -> String {
        format!("Actors({} actors)", self.0.actors.len())
    }

    #[pyo3(signature = (obs, mask=None, deterministic=None, record=None), text_signature = "($self, obs, mask=None, deterministic=None, record=True)")]
    pub(crate) fn act(
        &self,
        py: Python<'_>,
        obs: &Bound<'_, PyAny>,
        mask: Option<&Bound<'_, PyAny>>,
        deterministic: Option<bool>,
        record: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<ActionBatch> {
        let rows = self.0.actors.len();
        // Everything that may run Python code comes before the group's lock.
        let observations = Observations::new(obs)?;
        let mask = mask.map(|mask| mask_bytes(mask, rows)).transpose()?;
        let record = record.map(|record| RecordArgument::new(record, rows)).transpose()?;
        let record = match &record {
            None | Some(RecordArgument::Same(true)) => Recording::All,
            Some(RecordArgument::Same(false)) => Recording::Nothing,
            Some(RecordArgument::Each(rows)) => Recording::Rows(rows),
        };

        let mut call = self.begin(py)?;
        let masked = mask.is_some();
        if call.needs_preparation(masked) {
            detach(py, || call.prepare(masked))?;
        }
        observations.write(&mut call, rows)?;
        if let Some(mask) = &mask {
            let width = call.layout().map_err(|error| to_python(&error))?.mask.unwrap_or(0);
            mask.expect("mask", mask.dtype().unwrap_or(DType::Bool), rows, &[width])?;
            call.write_mask(mask.bytes()).map_err(|error| to_python(&error))?;
        }
        let options = ActOptions { deterministic, record };
        detach(py, || call.run(&options)).map(ActionBatch::new)
    }

    #[pyo3(signature = (reward, terminated=None, truncated=None, final_obs=None), text_signature = "($self, reward, terminated=False, truncated=False, final_obs=None)")]
    pub(crate) fn observe(
        &self,
        py: Python<'_>,
        reward: &Bound<'_, PyAny>,
        terminated: Option<&Bound<'_, PyAny>>,
        truncated: Option<&Bound<'_, PyAny>>,
        final_obs: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let rows = self.0.actors.len();
        let schema = || self.0.actors[0].policy().current().schema.clone();
        let given = OutcomeArguments::new(reward, terminated, truncated, final_obs, rows, schema)?;
        if self.0.try_observe(&given.outcome(), &given.finals).map_err(|error| to_python(&error))? {
            return Ok(());
        }
        let owned = given.into_owned(rows);
        detach(py, || self.0.observe(&owned.outcome(), &owned.finals))
    }
}

impl Actors {
    fn begin(&self, py: Python<'_>) -> PyResult<ActCall<'_>> {
        loop {
            if let Some(call) = self.0.try_begin().map_err(|error| to_python(&error))? {
                return Ok(call);
            }
            // Another thread is in a call of this group, and may need the interpreter lock to finish.
            py.detach(|| self.0.wait());
        }
    }
}

/// What `act` was given to observe.
enum Observations<'py> {
    One(Contiguous<'py>),
    /// By name, for policies with several observations.
    Named(Vec<(String, Contiguous<'py>)>),
    /// By position, from a tuple.
    Listed(Vec<Contiguous<'py>>),
}

impl<'py> Observations<'py> {
    fn new(obs: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(dict) = obs.cast::<PyDict>() {
            let named = dict.iter().map(|(key, value)| Ok((key.extract()?, Contiguous::new(&value)?)));
            return named.collect::<PyResult<_>>().map(Self::Named);
        }
        if let Ok(tuple) = obs.cast::<PyTuple>() {
            return tuple.iter().map(|value| Contiguous::new(&value)).collect::<PyResult<_>>().map(Self::Listed);
        }
        Contiguous::new(obs).map(Self::One)
    }

    fn write(&self, call: &mut ActCall<'_>, rows: usize) -> PyResult<()> {
        let layout = call.layout().map_err(|error| to_python(&error))?;
        let columns = &layout.schema().observations;
        let names = || columns.iter().map(|column| column.key.as_str()).collect::<Vec<_>>().join(", ");
        let given = match self {
            Self::One(_) => 1,
            Self::Named(named) => named.len(),
            Self::Listed(listed) => listed.len(),
        };
        if given != columns.len() {
            let wanted = match columns.len() {
                1 => "one array".to_owned(),
                count => format!("{count} arrays, given as a dict of {}", names()),
            };
            return Err(error::contract(&format!("the policy observes {wanted}, but {given} came")));
        }
        for (index, column) in columns.iter().enumerate() {
            let array = match self {
                Self::One(array) => array,
                Self::Listed(listed) => &listed[index],
                Self::Named(named) if columns.len() == 1 => &named[0].1,
                Self::Named(named) => {
                    named.iter().find(|(key, _)| *key == column.key).map(|(_, array)| array).ok_or_else(|| {
                        error::contract(&format!(
                            "the observation `{}` is missing; the policy observes {}",
                            column.key,
                            names()
                        ))
                    })?
                }
            };
            let what = if column.key.is_empty() { "obs" } else { &column.key };
            array.expect(what, column.dtype, rows, &column.shape)?;
            call.write_observations(index, array.bytes()).map_err(|error| to_python(&error))?;
        }
        Ok(())
    }
}

/// A mask as bytes, 0 where an action is not allowed.
fn mask_bytes<'py>(mask: &Bound<'py, PyAny>, rows: usize) -> PyResult<Contiguous<'py>> {
    let mut bytes = Contiguous::new(mask)?;
    if !matches!(bytes.dtype(), Some(DType::Bool | DType::UInt8 | DType::Int8)) {
        bytes = Contiguous::converted(mask, "bool")?;
    }
    match bytes.shape() {
        [found, _] if *found == rows => Ok(bytes),
        shape => Err(error::contract(&format!(
            "mask must have a row for each of the {rows} actors and a column for each action, but has the shape {}",
            relevo_core::spec::shape_text(shape)
        ))),
    }
}

enum RecordArgument {
    Same(bool),
    /// Copied: the call runs with the interpreter lock released.
    Each(Vec<u8>),
}

impl RecordArgument {
    fn new(record: &Bound<'_, PyAny>, rows: usize) -> PyResult<Self> {
        if let Ok(record) = record.cast::<PyBool>() {
            return Ok(Self::Same(record.is_true()));
        }
        let array = Contiguous::new(record)?;
        array.expect("record", DType::Bool, rows, &[])?;
        Ok(Self::Each(array.bytes().to_vec()))
    }
}
