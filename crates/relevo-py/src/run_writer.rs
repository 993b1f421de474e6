//! `relevo.RunWriter`: writes episodes that were played elsewhere into a run folder.

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use pyo3::{prelude::*, types::PyDict};
use relevo_core::{
    Error, Result,
    fork::Birthplace,
    trajectory::{self, Compression, Episode, Piece, PolicyRun, RunInfo, WriterOptions},
};
use uuid::Uuid;

use crate::{
    actor_id::ActorId,
    detach::{detach, detach_and_log},
    episode_arrays::{Given, episode},
    error::to_python,
    record_settings::named,
};

#[pyclass(frozen, module = "relevo")]
pub(crate) struct RunWriter {
    path: PathBuf,
    state: Mutex<State>,
    birthplace: Birthplace,
}

struct State {
    /// `None` once it is closed.
    writer: Option<trajectory::RunWriter>,
    numbers: HashSet<u64>,
    next_number: u64,
    /// Ordinals of the actors.
    actors: HashMap<Uuid, u32>,
    steps: u64,
}

#[pymethods]
impl RunWriter {
    #[new]
    #[pyo3(signature = (path, *, compression="none", seed=0, config=None))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        compression: &str,
        seed: u64,
        config: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let compression = named("compression", compression, &Compression::NAMES)?;
        let config = config.map_or(Ok(serde_json::Value::Null), |config| {
            let text: String = py.import("json")?.call_method1("dumps", (config,))?.extract()?;
            serde_json::from_str(&text).map_err(|error| to_python(&Error::Config(format!("config: {error}"))))
        })?;
        let options = WriterOptions { compression, ..WriterOptions::default() };
        let writer = detach_and_log(py, || {
            trajectory::RunWriter::create(&path, &RunInfo::new(seed, config, Vec::new()), options)
        })?;
        let state =
            State { writer: Some(writer), numbers: HashSet::new(), next_number: 0, actors: HashMap::new(), steps: 0 };
        Ok(Self { path, state: Mutex::new(state), birthplace: Birthplace::here() })
    }

    #[getter]
    fn path(&self) -> &Path {
        &self.path
    }

    #[getter]
    fn step_count(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.state.lock().steps)
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        py.detach(|| self.state.lock().numbers.len())
    }

    #[expect(clippy::too_many_arguments, reason = "one for each thing that is known of an episode")]
    #[pyo3(signature = (
        observations, actions, rewards, *, terminated=false, truncated=false, rewards_known=None, log_probs=None,
        values=None, action_masks=None, policy_runs=None, timestamps=None, actor_id=None, number=None, extras=None,
        texts=None
    ))]
    fn add(
        &self,
        py: Python<'_>,
        observations: &Bound<'_, PyAny>,
        actions: &Bound<'_, PyAny>,
        rewards: &Bound<'_, PyAny>,
        terminated: bool,
        truncated: bool,
        rewards_known: Option<&Bound<'_, PyAny>>,
        log_probs: Option<&Bound<'_, PyAny>>,
        values: Option<&Bound<'_, PyAny>>,
        action_masks: Option<&Bound<'_, PyAny>>,
        policy_runs: Option<Vec<(usize, String, u64)>>,
        timestamps: Option<&Bound<'_, PyAny>>,
        actor_id: Option<ActorId>,
        number: Option<u64>,
        extras: Option<&Bound<'_, PyDict>>,
        texts: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<u64> {
        let given = Given {
            observations,
            actions,
            rewards,
            rewards_known,
            log_probs,
            values,
            action_masks,
            timestamps,
            extras,
            texts,
        };
        let runs = policy_runs.unwrap_or_else(|| vec![(0, String::new(), 0)]);
        let policies =
            runs.into_iter().map(|(from, policy, version)| PolicyRun { from, policy: policy.into(), version });
        let episode = Episode {
            actor_id: actor_id.map_or(Uuid::nil(), |ActorId(id)| id),
            policies: policies.collect(),
            ..episode(&given, terminated, truncated)?
        };
        detach(py, || self.push(episode, number))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        detach_and_log(py, || {
            // What a child has of it is its parent's to write.
            let writer = if self.birthplace.is_elsewhere() { None } else { self.state.lock().writer.take() };
            writer.map_or(Ok(()), |mut writer| writer.close(&[]))
        })
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        format!("RunWriter({})", self.path.display())
    }
}

impl RunWriter {
    /// Gives the episode's number.
    fn push(&self, mut episode: Episode, number: Option<u64>) -> Result<u64> {
        if self.birthplace.is_elsewhere() {
            return Err(Error::State(
                "a RunWriter cannot be used in a process that was forked off; open one there".into(),
            ));
        }
        let mut state = self.state.lock();
        let State { writer, numbers, next_number, actors, steps } = &mut *state;
        let Some(writer) = writer else {
            return Err(Error::State("the RunWriter is closed; nothing more can be added".into()));
        };
        episode.number = number.unwrap_or(*next_number);
        let (number, actor, count) = (episode.number, episode.actor_id, episode.len as u64);
        let Some(following) = number.checked_add(1).filter(|_| !numbers.contains(&number)) else {
            return Err(Error::Contract(format!("there is an episode {number} already; numbers must differ")));
        };
        let ordinal = actors.get(&actor).copied().unwrap_or(actors.len() as u32);
        writer.push(Piece::whole(Arc::new(episode), ordinal, 0))?;
        actors.insert(actor, ordinal);
        numbers.insert(number);
        *next_number = following.max(*next_number);
        *steps += count;
        Ok(number)
    }
}

impl Drop for RunWriter {
    fn drop(&mut self) {
        if let Some(mut writer) = self.state.get_mut().writer.take() {
            if self.birthplace.is_elsewhere() {
                // See `close`.
                std::mem::forget(writer);
            } else if let Err(error) = writer.close(&[]) {
                tracing::error!("{error}");
            }
        }
    }
}
