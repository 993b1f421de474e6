//! `relevo.Episode`: one trajectory, from memory or from disk.

use std::{path::PathBuf, sync::Arc};

use arrow_buffer::Buffer;
use pyo3::{prelude::*, types::PyDict};
use relevo_core::{
    spec::DType,
    trajectory::{self, ExtraKind, ExtraValues, Piece},
};
use uuid::Uuid;

use crate::{array, detach::detach};

#[pyclass(frozen, module = "relevo")]
pub(crate) struct Episode(Arc<trajectory::Episode>);

impl Episode {
    pub(crate) fn new(episode: Arc<trajectory::Episode>) -> Self {
        Self(episode)
    }

    /// The extra columns by name: those that are observations, or the others.
    fn extra_columns<'py>(slf: &Bound<'py, Self>, observed: bool) -> PyResult<Bound<'py, PyDict>> {
        let episode = &slf.get().0;
        let columns = PyDict::new(slf.py());
        for (spec, values) in episode.schema.extras.iter().zip(&episode.extras) {
            match (&spec.kind, values) {
                _ if spec.observed != observed => {}
                (ExtraKind::Tensor(column), ExtraValues::Tensor(bytes)) => {
                    let shape: Vec<usize> = std::iter::once(episode.len).chain(column.shape.iter().copied()).collect();
                    let array = array::shared_view(slf.as_any(), bytes, column.dtype, &shape)?;
                    columns.set_item(&spec.name, array)?;
                }
                (_, ExtraValues::Text(texts)) => columns.set_item(&spec.name, texts.iter().collect::<Vec<_>>())?,
                (ExtraKind::Text, ExtraValues::Tensor(_)) => {}
            }
        }
        Ok(columns)
    }
}

#[pymethods]
impl Episode {
    #[getter]
    fn number(&self) -> u64 {
        self.0.number
    }

    #[getter]
    fn actor_id(&self) -> Uuid {
        self.0.actor_id
    }

    #[getter]
    fn observations<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let episode = &slf.get().0;
        let rows = episode.len + usize::from(episode.has_final_observation);
        let columns = episode.schema.observations.iter().zip(&episode.observations);
        let arrays = columns.map(|(column, buffer)| {
            let shape: Vec<usize> = std::iter::once(rows).chain(column.shape.iter().copied()).collect();
            Ok((column.key.as_str(), array::shared_view(slf.as_any(), buffer, column.dtype, &shape)?))
        });
        array::one_or_dict(slf.py(), arrays)
    }

    #[getter]
    fn actions<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let episode = &slf.get().0;
        let columns = episode.schema.actions.iter().zip(&episode.actions);
        let arrays = columns.map(|(column, buffer)| {
            let shape: Vec<usize> = std::iter::once(episode.len).chain(column.shape.iter().copied()).collect();
            Ok((column.key.as_str(), array::shared_view(slf.as_any(), buffer, column.dtype, &shape)?))
        });
        array::one_or_dict(slf.py(), arrays)
    }

    #[getter]
    fn action_masks<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let episode = &slf.get().0;
        let width = episode.schema.mask.unwrap_or(0);
        optional(slf, episode.masks.as_ref(), DType::UInt8, &[episode.len, width])
    }

    #[getter]
    fn rewards<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let episode = &slf.get().0;
        let rewards = array::shared_view(slf.as_any(), &episode.rewards, DType::Float64, &[episode.len])?;
        let Some(known) = &episode.reward_known else { return Ok(rewards) };
        // A reward that never came reads as NaN.
        let known = array::shared_view(slf.as_any(), known, DType::Bool, &[episode.len])?;
        array::numpy_function(slf.py(), "where")?.call1((known, rewards, f64::NAN))
    }

    #[getter]
    fn rewards_known<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let episode = &slf.get().0;
        optional(slf, episode.reward_known.as_ref(), DType::Bool, &[episode.len])
    }

    #[getter]
    fn log_probs<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        optional(slf, slf.get().0.log_probs.as_ref(), DType::Float32, &[slf.get().0.len])
    }

    #[getter]
    fn values<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        optional(slf, slf.get().0.values.as_ref(), DType::Float32, &[slf.get().0.len])
    }

    #[getter]
    fn extras<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        Self::extra_columns(slf, false)
    }

    #[getter]
    fn texts<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        Self::extra_columns(slf, true)
    }

    #[getter]
    fn policy_versions<'py>(&self, py: Python<'py>) -> Bound<'py, numpy::PyArray1<u64>> {
        numpy::PyArray1::from_vec(py, self.0.policy_versions())
    }

    #[getter]
    fn policy_runs(&self) -> Vec<(usize, String, u64)> {
        self.0.policies.iter().map(|run| (run.from, run.policy.to_string(), run.version)).collect()
    }

    #[getter]
    fn policies(&self) -> Vec<String> {
        let mut names: Vec<String> = self.0.policies.iter().map(|run| run.policy.to_string()).collect();
        names.dedup();
        names
    }

    #[getter]
    fn timestamps<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let episode = &slf.get().0;
        array::shared_view(slf.as_any(), &episode.timestamps, DType::Int64, &[episode.len])?
            .call_method1("view", ("datetime64[ns]",))
    }

    #[getter]
    fn terminated(&self) -> bool {
        self.0.terminated
    }

    #[getter]
    fn truncated(&self) -> bool {
        self.0.truncated
    }

    #[getter]
    fn complete(&self) -> bool {
        self.0.complete
    }

    #[getter]
    fn has_final_observation(&self) -> bool {
        self.0.has_final_observation
    }

    #[getter]
    fn episode_return(&self) -> f64 {
        self.0.episode_return()
    }

    /// For `relevo.trajectories.to_csv`.
    fn _write_csv(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        detach(py, || trajectory::write_csv(&Piece::whole(self.0.clone(), 0, 0), &path))
    }

    fn __len__(&self) -> usize {
        self.0.len
    }

    fn __repr__(&self) -> String {
        let end = match (self.0.complete, self.0.terminated, self.0.truncated) {
            (false, ..) => "interrupted",
            (_, true, true) => "terminated and truncated",
            (_, true, _) => "terminated",
            _ => "truncated",
        };
        format!("Episode(number={}, steps={}, return={}, {end})", self.0.number, self.0.len, self.0.episode_return())
    }
}

fn optional<'py>(
    slf: &Bound<'py, Episode>,
    buffer: Option<&Buffer>,
    dtype: DType,
    shape: &[usize],
) -> PyResult<Option<Bound<'py, PyAny>>> {
    buffer.map(|buffer| array::shared_view(slf.as_any(), buffer, dtype, shape)).transpose()
}
