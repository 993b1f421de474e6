//! `relevo.Actors`: a handle on some actors, and the two calls of the hot path.

use std::{collections::BTreeMap, sync::Arc};

use pyo3::{
    prelude::*,
    types::{PyBool, PyTuple},
};
use relevo_core::{
    runtime::{ActCall, ActOptions, ActorGroup, Recording, Request},
    spec::DType,
};
use uuid::Uuid;

use crate::{
    action_batch::ActionBatch,
    array::Contiguous,
    detach::detach,
    error::{self, to_python},
    observations::Observations,
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
        let observations = Observations::new(obs, || self.observation_names())?;
        let mask = mask.map(|mask| mask_bytes(mask, rows)).transpose()?;
        let record = record.map(|record| RecordArgument::new(record, rows)).transpose()?;
        let record = match &record {
            None | Some(RecordArgument::Same(true)) => Recording::All,
            Some(RecordArgument::Same(false)) => Recording::Nothing,
            Some(RecordArgument::Each(rows)) => Recording::Rows(rows),
        };

        let mut call = self.begin(py)?;
        observations.check(&call.schema(), rows)?;
        if let Some(mask) = &mask {
            call.check_mask(mask.shape()[1], mask.bytes()).map_err(|error| to_python(&error))?;
        }
        let masked = mask.is_some();
        if call.needs_preparation(masked) {
            detach(py, || call.prepare(masked))?;
        }
        if rows == 1 {
            let request = Request {
                observations: &observations.bytes(),
                mask: mask.as_ref().map(Contiguous::bytes),
                deterministic,
                record: record.keeps(0),
            };
            let ticket = call.submit(&request, true).map_err(|error| to_python(&error))?;
            return detach(py, || ticket.wait()).map(ActionBatch::new);
        }
        observations.write(&mut call)?;
        if let Some(mask) = &mask {
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
        let observed = || Ok((detach(py, || Ok(self.0.actors[0].observed()))?, self.observation_names()));
        let given = OutcomeArguments::new(reward, terminated, truncated, final_obs, rows, observed)?;
        if self.0.try_observe(&given.outcome(), &given.finals).map_err(|error| to_python(&error))? {
            return Ok(());
        }
        let owned = given.into_owned(rows);
        detach(py, || self.0.observe(&owned.outcome(), &owned.finals))
    }
}

impl Actors {
    fn observation_names(&self) -> Vec<String> {
        self.0.actors[0].policy().current().observation_names()
    }

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

/// A mask as bytes, 0 where an action is not allowed.
fn mask_bytes<'py>(mask: &Bound<'py, PyAny>, rows: usize) -> PyResult<Contiguous<'py>> {
    let mut bytes = Contiguous::new(mask)?;
    match bytes.dtype() {
        Some(DType::Bool | DType::UInt8 | DType::Int8) => {}
        Some(_) => bytes = bytes.converted("bool")?,
        None => {
            return Err(error::contract(
                "mask must be an array of truth values, or of numbers that are 0 where an action is not allowed",
            ));
        }
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
