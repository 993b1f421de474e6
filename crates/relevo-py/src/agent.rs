//! `relevo.Agent`: the runtime, with RelayRL's names as thin aliases.

use std::{
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use pyo3::{
    prelude::*,
    types::{PyDict, PyTuple},
};
use relevo_core::{
    policy::{LoadedModel, PolicyOptions, PolicySlot},
    runtime::{self, AgentConfig, Batching, OnError, RouterCounts, RouterReport},
    trajectory::{MemoryLimit, WhenFull},
};
use uuid::Uuid;

use crate::{
    action_batch::ActionBatch,
    actor_id::{ActorId, ActorIds},
    actors::Actors,
    array::{self, Contiguous},
    detach::{detach, detach_and_log, wait},
    episode::Episode,
    error::{self, to_python},
    extras::{self, Declared},
    model::ModelModule,
    outcome::OutcomeArguments,
    policy_settings::PolicySettings,
    record_settings::{RecordSettings, named},
    subscription::Subscription,
    update,
};

#[pyclass(frozen, weakref, module = "relevo")]
pub(crate) struct Agent {
    runtime: runtime::Agent,
    keep_outputs: bool,
    threads: usize,
    device: String,
    /// Numbers the policies of actors that brought a model of their own.
    own_models: AtomicU64,
}

/// A policy as the builder describes it: its name, its model and what it does with that.
type PolicyArgument = (String, ModelModule, PolicySettings);

#[pymethods]
impl Agent {
    #[new]
    #[pyo3(signature = (policies, *, actor_count, routers, max_batch, max_wait, on_error, record, memory_trajectories, memory_bytes, most_steps, seed, keep_outputs, extras, threads, device, description))]
    #[expect(clippy::too_many_arguments, reason = "called by AgentBuilder alone")]
    fn new(
        py: Python<'_>,
        policies: Vec<PolicyArgument>,
        actor_count: usize,
        routers: usize,
        max_batch: usize,
        max_wait: f64,
        on_error: &str,
        record: Option<RecordSettings>,
        memory_trajectories: usize,
        memory_bytes: usize,
        most_steps: Option<NonZeroUsize>,
        seed: Option<u64>,
        keep_outputs: bool,
        extras: Vec<Declared>,
        threads: usize,
        device: String,
        description: &str,
    ) -> PyResult<Self> {
        let description = serde_json::from_str(description).map_err(|error| error::config(&error.to_string()))?;
        let max_wait =
            Duration::try_from_secs_f64(max_wait).map_err(|error| error::config(&format!("max_wait: {error}")))?;
        let on_error = match on_error {
            "raise" => OnError::Raise,
            "drop_actor" => OnError::DropActor,
            other => {
                return Err(error::config(&format!(
                    "on_error must be \"raise\" or \"drop_actor\", but is \"{other}\""
                )));
            }
        };
        let record = record.map(RecordSettings::recording).transpose()?;
        let extras = extras::specs(extras)?;
        let agent = detach_and_log(py, || {
            let policies = policies
                .into_iter()
                .map(|(name, model, settings)| slot(&name, model.0, settings.options(keep_outputs)?))
                .collect::<relevo_core::Result<_>>()?;
            runtime::Agent::new(AgentConfig {
                policies,
                actor_count,
                routers,
                batching: Batching { max_batch, max_wait },
                on_error,
                record,
                memory: MemoryLimit { trajectories: memory_trajectories, bytes: memory_bytes },
                most_steps,
                seed,
                keep_outputs,
                extras,
                description,
            })
        })?;
        Ok(Self { runtime: agent, keep_outputs, threads, device, own_models: AtomicU64::new(0) })
    }

    fn start(&self, py: Python<'_>) -> PyResult<()> {
        detach_and_log(py, || self.runtime.start())
    }

    #[pyo3(signature = (capacity=1_000, when_full="drop_oldest"))]
    fn subscribe(&self, py: Python<'_>, capacity: usize, when_full: &str) -> PyResult<Subscription> {
        let when_full = named("when_full", when_full, &WhenFull::NAMES)?;
        Ok(Subscription(detach(py, || self.runtime.subscribe(capacity, when_full))?))
    }

    fn shutdown(&self, py: Python<'_>) -> PyResult<()> {
        wait(py, |keep_waiting| self.runtime.shutdown(keep_waiting))
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        wait(py, |keep_waiting| self.runtime.flush(keep_waiting))
    }

    #[getter]
    fn running(&self) -> bool {
        self.runtime.is_running()
    }

    fn __enter__<'py>(slf: Bound<'py, Self>, py: Python<'py>) -> PyResult<Bound<'py, Self>> {
        if !slf.get().running() {
            slf.get().start(py)?;
        }
        Ok(slf)
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.shutdown(py)
    }

    #[pyo3(signature = (ids=None))]
    fn actors(&self, py: Python<'_>, ids: Option<ActorIds>) -> PyResult<Actors> {
        let group = detach(py, || match ids {
            Some(ids) => self.runtime.group(&ids.0),
            None => self.runtime.group(&self.runtime.actor_ids()?),
        })?;
        Actors::new(group)
    }

    fn get_actor_ids(&self, py: Python<'_>) -> PyResult<Vec<Uuid>> {
        detach(py, || self.runtime.actor_ids())
    }

    #[pyo3(signature = (device=None, model=None, policy=None, head=None))]
    fn new_actor(
        &self,
        py: Python<'_>,
        device: Option<&str>,
        model: Option<&Bound<'_, PyAny>>,
        policy: Option<&str>,
        head: Option<&str>,
    ) -> PyResult<Uuid> {
        let ids = self.new_actors(py, 1_i64.into_pyobject(py)?.as_any(), device, model, policy, head)?;
        ids.first().copied().ok_or_else(|| error::config("no actor was made"))
    }

    #[pyo3(signature = (count, device=None, model=None, policy=None, head=None))]
    fn new_actors(
        &self,
        py: Python<'_>,
        count: &Bound<'_, PyAny>,
        device: Option<&str>,
        model: Option<&Bound<'_, PyAny>>,
        policy: Option<&str>,
        head: Option<&str>,
    ) -> PyResult<Vec<Uuid>> {
        let count = whole_number("the number of new actors", count)?;
        let count = usize::try_from(count)
            .map_err(|_| error::config(&format!("the number of new actors must be at least 0, but is {count}")))?;
        let Some(model) = model else {
            if head.is_some() {
                return Err(error::config("head= goes with model=; the policies that are there have their heads"));
            }
            let slot = self.runtime.policy(policy.unwrap_or("default")).ok();
            let served_on = slot.as_ref().map_or(&*self.device, |slot| slot.device());
            if device.is_some_and(|device| device != served_on) {
                return Err(error::config(&format!(
                    "another device than the policy's (\"{served_on}\") was asked for; give the actors a model of their own by \
                     model="
                )));
            }
            return detach(py, || {
                let policy = policy.map(|policy| self.runtime.policy(policy)).transpose()?;
                self.runtime.add_actors(count, policy)
            });
        };
        if policy.is_some() {
            return Err(error::config("give either a model of their own or the name of a policy, not both"));
        }
        let model = self.load(py, model, device)?;
        let name = format!("model-{}", self.own_models.fetch_add(1, Ordering::Relaxed) + 1);
        detach_and_log(py, || {
            let settings = PolicySettings { head: head.map(str::to_owned), ..PolicySettings::default() };
            let policy = slot(&name, model.0, settings.options(self.keep_outputs)?)?;
            self.runtime.add_actors_with_model(count, policy)
        })
    }

    fn remove_actor(&self, py: Python<'_>, actor: ActorId) -> PyResult<()> {
        detach(py, || self.runtime.remove_actor(actor.0))
    }

    fn set_actor_id(&self, py: Python<'_>, old: ActorId, new: ActorId) -> PyResult<()> {
        detach(py, || self.runtime.rename_actor(old.0, new.0))
    }

    fn assign(&self, py: Python<'_>, ids: ActorIds, policy: &str) -> PyResult<()> {
        detach(py, || self.runtime.assign(&ids.0, policy))
    }

    #[pyo3(signature = (model, policy="default", version=None, *, normalization=None))]
    fn update_model(
        &self,
        py: Python<'_>,
        model: &Bound<'_, PyAny>,
        policy: &str,
        version: Option<&Bound<'_, PyAny>>,
        normalization: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let slot = self.runtime.policy(policy).map_err(|error| to_python(&error))?;
        let version = version.map(version_number).transpose()?;
        let normalizers = update::normalizers(py, normalization, &slot)?;
        let model = update::load(py, model, &slot, normalizers.is_some() || slot.normalizes())?;
        detach_and_log(py, || self.runtime.update_model_normalizing(policy, model, version, normalizers))
    }

    #[pyo3(signature = (ids=None))]
    fn get_model_version(&self, py: Python<'_>, ids: Option<ActorIds>) -> PyResult<Vec<u64>> {
        detach(py, || match ids {
            Some(ids) => self.runtime.model_versions(&ids.0),
            None => self.runtime.model_versions(&self.runtime.actor_ids()?),
        })
    }

    #[pyo3(signature = (ids, obs, mask=None, reward=None, extra=None))]
    fn request_action(
        &self,
        py: Python<'_>,
        ids: ActorIds,
        obs: &Bound<'_, PyAny>,
        mask: Option<&Bound<'_, PyAny>>,
        reward: Option<&Bound<'_, PyAny>>,
        extra: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<ActionBatch> {
        let (actors, obs, mask) = self.requested(py, &ids.0, obs, mask, reward)?;
        actors.act(py, &obs, mask.as_ref(), None, None, extra)
    }

    #[pyo3(signature = (ids, obs, mask=None, reward=None, extra=None))]
    fn request_action_async<'py>(
        &self,
        py: Python<'py>,
        ids: ActorIds,
        obs: &Bound<'py, PyAny>,
        mask: Option<&Bound<'py, PyAny>>,
        reward: Option<&Bound<'py, PyAny>>,
        extra: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (actors, obs, mask) = self.requested(py, &ids.0, obs, mask, reward)?;
        Actors::act_async(&Bound::new(py, actors)?, &obs, mask.as_ref(), None, None, extra)
    }

    #[pyo3(signature = (ids, reward=None, truncated=false, final_obs=None))]
    fn flag_last_action(
        &self,
        py: Python<'_>,
        ids: ActorIds,
        reward: Option<&Bound<'_, PyAny>>,
        truncated: bool,
        final_obs: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let reward = reward.cloned().unwrap_or_else(|| py.None().into_bound(py));
        let (terminated, truncated) = (!truncated, truncated);
        let flag = |value: bool| pyo3::types::PyBool::new(py, value).to_owned().into_any();
        self.tell(py, &ids.0, &reward, Some(&flag(terminated)), Some(&flag(truncated)), final_obs)
    }

    fn scale_throughput(&self, py: Python<'_>, change: &Bound<'_, PyAny>) -> PyResult<usize> {
        let change = whole_number("the number of routers to add or take away", change)?;
        detach(py, || self.runtime.scale_routers(change))
    }

    fn pause_recording(&self) -> PyResult<()> {
        self.runtime.set_recording(false).map_err(|error| to_python(&error))
    }

    fn resume_recording(&self) -> PyResult<()> {
        self.runtime.set_recording(true).map_err(|error| to_python(&error))
    }

    #[getter]
    fn recording(&self) -> bool {
        self.runtime.is_recording()
    }

    fn trajectories(&self, py: Python<'_>) -> PyResult<Vec<Episode>> {
        let episodes = wait(py, |keep_waiting| {
            if self.runtime.is_running() {
                self.runtime.flush(keep_waiting)?;
            }
            Ok(self.runtime.trajectories())
        })?;
        Ok(episodes.into_iter().map(Episode::new).collect())
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = detach(py, || self.runtime.stats())?;
        let policies = PyDict::new(py);
        for policy in &stats.policies {
            let entry = PyDict::new(py);
            entry.set_item("version", policy.version)?;
            entry.set_item("calls", policy.calls)?;
            entry.set_item("rows", policy.rows)?;
            entry.set_item("inference_seconds", policy.inference_seconds)?;
            entry.set_item("errors", policy.errors)?;
            policies.set_item(&policy.name, entry)?;
        }
        let result = PyDict::new(py);
        result.set_item("actors", stats.actors)?;
        result.set_item("actors_dropped", stats.actors_dropped)?;
        let routers = stats.routers.iter().map(|router| describe_router(py, router));
        result.set_item("routers", routers.collect::<PyResult<Vec<_>>>()?)?;
        let retired = PyDict::new(py);
        describe_counts(&retired, &stats.retired_routers)?;
        result.set_item("retired_routers", retired)?;
        result.set_item("policies", policies)?;
        result.set_item("steps_recorded", stats.steps_recorded)?;
        result.set_item("steps_written", stats.steps_written)?;
        result.set_item("batches_written", stats.batches_written)?;
        result.set_item("bytes_written", stats.bytes_written)?;
        result.set_item("recording_queue_bytes", stats.recording_queue_bytes)?;
        result.set_item("recording_waits", stats.recording_waits)?;
        result.set_item("recording_wait_seconds", stats.recording_wait_seconds)?;
        result.set_item("recording_error", stats.recording_error)?;
        result.set_item("episodes_recorded", stats.episodes_recorded)?;
        result.set_item("episodes_interrupted", stats.episodes_interrupted)?;
        result.set_item("rewards_missing", stats.rewards_missing)?;
        result.set_item("final_observations_missing", stats.final_observations_missing)?;
        result.set_item("episodes_lost", stats.episodes_lost)?;
        Ok(result)
    }

    fn __repr__(&self) -> String {
        let state = if self.runtime.is_running() { "running" } else { "not running" };
        match self.runtime.stats() {
            Ok(stats) => format!("Agent({} actors, {} policies, {state})", stats.actors, stats.policies.len()),
            Err(_) => "Agent(of another process)".into(),
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // A call in another thread may hold a group's lock while it waits for the interpreter lock, which we hold. Whoever
        // wants to see an error calls `shutdown`.
        Python::try_attach(|py| py.detach(|| self.runtime.shutdown(&mut || Ok(())).ok()));
    }
}

impl Agent {
    /// A model given as such, or by its path.
    fn load(&self, py: Python<'_>, model: &Bound<'_, PyAny>, device: Option<&str>) -> PyResult<ModelModule> {
        if let Ok(model) = model.cast::<ModelModule>() {
            return Ok(model.get().clone());
        }
        let device = device.unwrap_or(&self.device).to_owned();
        let path = model.extract().map_err(|_| {
            let kind = model.get_type().name().map_or_else(|_| "something else".into(), |name| name.to_string());
            error::config(&format!("model must be a path or a relevo.ModelModule, but {kind} came"))
        })?;
        ModelModule::load_from_path(py, path, self.threads, Some(device), None, None)
    }

    /// Makes `act`'s arguments of RelayRL's, and tells the rewards of the actions before.
    fn requested<'py>(
        &self,
        py: Python<'py>,
        ids: &[Uuid],
        obs: &Bound<'py, PyAny>,
        mask: Option<&Bound<'py, PyAny>>,
        reward: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Actors, Bound<'py, PyAny>, Option<Bound<'py, PyAny>>)> {
        let group = detach(py, || self.runtime.group(ids))?;
        let obs = broadcast(obs, ids.len())?;
        let mask = mask.map(|mask| broadcast(mask, ids.len())).transpose()?;
        if let Some(reward) = reward {
            self.tell(py, ids, reward, None, None, None)?;
        }
        Ok((Actors::new(group)?, obs, mask))
    }

    /// Tells some actors what their last actions earned; those without an open step are passed over.
    fn tell<'py>(
        &self,
        py: Python<'py>,
        ids: &[Uuid],
        reward: &Bound<'py, PyAny>,
        terminated: Option<&Bound<'py, PyAny>>,
        truncated: Option<&Bound<'py, PyAny>>,
        final_obs: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let observed = match ids.first() {
            None => return Ok(()),
            Some(first) => detach(py, || self.runtime.observed(*first))?,
        };
        let owned = OutcomeArguments::new(reward, terminated, truncated, final_obs, ids.len(), || Ok(observed))?
            .into_owned(ids.len());
        detach(py, || self.runtime.observe(ids, &owned.outcome(), &owned.finals))
    }
}

fn describe_router<'py>(py: Python<'py>, router: &RouterReport) -> PyResult<Bound<'py, PyDict>> {
    let entry = PyDict::new(py);
    entry.set_item("device", &router.device)?;
    entry.set_item("index", router.index)?;
    entry.set_item("actors", router.actors)?;
    entry.set_item("queue", router.queue)?;
    describe_counts(&entry, &router.counts)?;
    Ok(entry)
}

fn describe_counts(entry: &Bound<'_, PyDict>, counts: &RouterCounts) -> PyResult<()> {
    entry.set_item("batches", counts.batches)?;
    entry.set_item("rows", counts.rows)?;
    entry.set_item("failed", counts.failed)?;
    let sizes = PyDict::new(entry.py());
    let mut from = 1;
    for (until, batches) in &counts.batch_sizes {
        let bucket = match *until {
            usize::MAX => format!("{from}+"),
            until if until == from => format!("{from}"),
            until => format!("{from}-{until}"),
        };
        sizes.set_item(bucket, batches)?;
        from = until.saturating_add(1);
    }
    entry.set_item("batch_sizes", sizes)?;
    entry.set_item("queue_seconds", counts.queue_seconds)?;
    entry.set_item("inference_seconds", counts.inference_seconds)?;
    entry.set_item("restarts", counts.restarts)
}

/// A Python integer, NumPy's as well.
fn whole_number(what: &str, given: &Bound<'_, PyAny>) -> PyResult<i64> {
    given.extract().map_err(|_| {
        let came = given.repr().map_or_else(|_| "something else".into(), |text| text.to_string());
        error::config(&format!("{what} must be a whole number between -2**63 and 2**63 - 1, but {came} came"))
    })
}

/// The number of a version that is given.
fn version_number(given: &Bound<'_, PyAny>) -> PyResult<u64> {
    given.extract().map_err(|_| {
        let came = given.repr().map_or_else(|_| "something else".into(), |text| text.to_string());
        error::config(&format!("a version must be a whole number above 0 and below 2**64, but {came} came"))
    })
}

fn slot(name: &str, model: LoadedModel, options: PolicyOptions) -> relevo_core::Result<Arc<PolicySlot>> {
    PolicySlot::new(name, model, options).map(Arc::new)
}

/// RelayRL's habit: one observation for many actors is the observation of each.
fn broadcast<'py>(given: &Bound<'py, PyAny>, rows: usize) -> PyResult<Bound<'py, PyAny>> {
    if given.cast::<PyDict>().is_ok() || given.cast::<PyTuple>().is_ok() {
        return Ok(given.clone());
    }
    let array = Contiguous::new(given)?;
    match array.shape() {
        [1, rest @ ..] if rows != 1 => {
            let shape: Vec<usize> = std::iter::once(rows).chain(rest.iter().copied()).collect();
            let shape = PyTuple::new(given.py(), shape)?;
            match array.device() {
                None => array::numpy_function(given.py(), "broadcast_to")?.call1((array.object(), shape)),
                Some(_) => given.call_method1("expand", (shape,)),
            }
        }
        _ if array.device().is_some() => Ok(given.clone()),
        _ => Ok(array.object().clone().into_any()),
    }
}
