//! A policy: a named slot that serves one version of a model at a time. The version can be exchanged while calls run; a
//! batch uses one version from its start to its end.

use std::{
    ops::{Deref, DerefMut},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::{
    Head, HeadKind, LoadedModel, MemorySpec, Worker,
    contract::probe_input,
    convention::InputRole,
    pool::{PooledWorker, WorkerPool},
};
use crate::{
    error::{Error, Result},
    spec::DType,
    tensor::Tensor,
    trajectory::{ColumnSpec, StepSchema},
};

/// A named slot that serves one version of a model at a time.
#[derive(Debug)]
pub struct PolicySlot {
    name: Arc<str>,
    device: Arc<str>,
    head: Option<HeadKind>,
    keep_outputs: bool,
    current: ArcSwap<PolicyVersion>,
    /// Held while a new version is prepared, so that two updates cannot take the same number.
    update: Mutex<()>,
    /// What was served so far, over all versions.
    pub stats: PolicyStats,
}

/// One version of a policy.
#[derive(Debug)]
pub struct PolicyVersion {
    /// Rises by one with each update; the first is 1.
    pub version: u64,
    /// The model that serves it.
    pub loaded: LoadedModel,
    /// The head on its outputs.
    pub head: Head,
    /// The columns that its steps record, without a mask.
    pub schema: Arc<StepSchema>,
    /// What it remembers of each actor.
    pub memory: Arc<MemorySpec>,
    pool: WorkerPool,
    /// Workers that routers have for themselves.
    own_workers: AtomicU64,
    /// Warm ones that no router has taken yet.
    warm_workers: Mutex<Vec<Worker>>,
}

/// What a policy served so far.
#[derive(Debug, Default)]
pub struct PolicyStats {
    /// Forward passes.
    pub calls: AtomicU64,
    /// Rows in them.
    pub rows: AtomicU64,
    /// Time spent in them, in nanoseconds, heads included.
    pub nanoseconds: AtomicU64,
    /// Forward passes that failed.
    pub errors: AtomicU64,
}

impl PolicySlot {
    /// A slot that serves `loaded` as version 1.
    ///
    /// # Errors
    /// [`Error::Contract`] where the head does not fit the model, or a state that the model depends on is handed on by no output.
    pub fn new(name: &str, loaded: LoadedModel, head: Option<HeadKind>, keep_outputs: bool) -> Result<Self> {
        let device = loaded.options.device.as_str().into();
        let first = PolicyVersion::new(1, loaded, head, keep_outputs)?;
        let (path, kind) = (first.loaded.path.display(), first.head.kind());
        tracing::info!(policy = name, version = 1, head = %kind, %path, "policy `{name}` serves {path} with the head {kind}");
        let unused = first.head.unused_actions(&first.loaded.contract).join(", ");
        if !unused.is_empty() {
            tracing::info!(policy = name, unused, "policy `{name}` leaves out {unused}: a head gives one tensor");
        }
        Ok(Self {
            name: name.into(),
            device,
            head,
            keep_outputs,
            current: ArcSwap::from_pointee(first),
            update: Mutex::new(()),
            stats: PolicyStats::default(),
        })
    }

    /// The policy's name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The device that its models run on.
    pub fn device(&self) -> &Arc<str> {
        &self.device
    }

    /// Whether raw outputs are kept for the callers.
    pub fn keeps_outputs(&self) -> bool {
        self.keep_outputs
    }

    /// The version that serves now.
    pub fn current(&self) -> Arc<PolicyVersion> {
        self.current.load_full()
    }

    /// Exchanges the model; the new version's number is returned. The new model is checked and warmed first, and where
    /// it does not fit, the old one keeps serving. What a recurrent model remembers of its actors is handed to the new one,
    /// whose states must be of the same types and shapes, in the same order.
    ///
    /// # Errors
    /// [`Error::Contract`] where the new model takes other observations, gives other actions, misses an output or has other states,
    /// [`Error::Config`] where it was loaded for another device.
    pub fn update(&self, loaded: LoadedModel) -> Result<u64> {
        let _one_at_a_time = self.update.lock();
        if *loaded.options.device != *self.device {
            return Err(Error::Config(format!(
                "the policy `{}` runs on {}, but the new model was loaded for {}; load it for the policy's device",
                self.name, self.device, loaded.options.device
            )));
        }
        let old = self.current();
        let new = PolicyVersion::new(old.version + 1, loaded, self.head, self.keep_outputs)?;
        if new.schema != old.schema || new.mask_width() != old.mask_width() {
            return Err(Error::Contract(format!(
                "the new model for policy `{}` does not fit: it has {}, but the one that serves has {}; keep the contract, or \
                 make another policy of it",
                self.name,
                describe(&new),
                describe(&old)
            )));
        }
        if !new.memory.fits(&old.memory) {
            return Err(Error::Contract(format!(
                "the new model for policy `{}` does not fit: it remembers {}, but the one that serves {}, which its actors have in \
                 memory; keep the states, or make another policy of it",
                self.name,
                new.memory.describe(),
                old.memory.describe()
            )));
        }
        // The first passes of a session are slow; a call that waits should not pay for them.
        new.warm(old.own_workers.load(Ordering::Relaxed))?;
        if new.gives_nan()? && !old.gives_nan()? {
            return Err(Error::Contract(format!(
                "the new model for policy `{}` gives NaN where the one that serves does not; it keeps serving. Look for NaN in \
                 the new weights",
                self.name
            )));
        }
        let (policy, version, path) = (&*self.name, new.version, new.loaded.path.clone());
        self.current.store(Arc::new(new));
        let path = path.display();
        tracing::info!(policy, version, %path, "policy `{policy}` serves version {version} from now on: {path}");
        Ok(version)
    }

    /// Counts a forward pass.
    pub fn count(&self, rows: usize, elapsed: std::time::Duration, failed: bool) {
        self.stats.calls.fetch_add(1, Ordering::Relaxed);
        self.stats.rows.fetch_add(rows as u64, Ordering::Relaxed);
        self.stats.nanoseconds.fetch_add(elapsed.as_nanos() as u64, Ordering::Relaxed);
        if failed {
            self.stats.errors.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl PolicyVersion {
    fn new(version: u64, loaded: LoadedModel, head: Option<HeadKind>, keep_outputs: bool) -> Result<Self> {
        let memory = MemorySpec::new(&loaded.contract).map_err(|error| match error {
            Error::Contract(reason) => Error::Contract(format!("{}: {reason}", loaded.path.display())),
            other => other,
        })?;
        let random_graph = !loaded.model.facts().random_ops.is_empty();
        let head = Head::new(head, &loaded.contract, random_graph, keep_outputs)?;
        let schema = Arc::new(step_schema(&loaded, &head));
        Ok(Self {
            version,
            loaded,
            head,
            schema,
            memory: Arc::new(memory),
            pool: WorkerPool::new(),
            own_workers: AtomicU64::new(0),
            warm_workers: Mutex::default(),
        })
    }

    /// How many actions a mask speaks of; `None` where the policy can use no mask.
    pub fn mask_width(&self) -> Option<usize> {
        let input = self.loaded.contract.mask().map(|mask| mask.row_shape.iter().product());
        input.or(self.head.choices())
    }

    /// Names of the observation inputs, in the order of the schema's columns.
    pub fn observation_names(&self) -> Vec<String> {
        self.loaded.contract.observations().map(|input| input.spec.name.clone()).collect()
    }

    /// A new worker.
    pub(crate) fn worker(&self) -> Result<Worker> {
        Worker::new(&self.loaded, self.head.wanted(), self.memory.clone())
    }

    /// A worker that its caller keeps.
    pub fn own_worker(self: &Arc<Self>) -> Result<OwnWorker> {
        let warm = self.warm_workers.lock().pop();
        let worker = warm.map_or_else(|| self.worker(), Ok)?;
        self.own_workers.fetch_add(1, Ordering::Relaxed);
        Ok(OwnWorker { version: self.clone(), worker })
    }

    /// Makes workers for as many routers as the version before had, and lets each run once.
    fn warm(&self, workers: u64) -> Result<()> {
        for _ in 0..workers {
            let mut worker = self.worker()?;
            self.probe(&mut worker)?;
            self.warm_workers.lock().push(worker);
        }
        Ok(())
    }

    /// A forward pass on a made-up observation.
    fn probe(&self, worker: &mut Worker) -> Result<()> {
        let observations: Vec<_> = self.loaded.contract.observations().map(|input| probe_input(input, 1)).collect();
        worker.forward(1, &observations.iter().map(Tensor::bytes).collect::<Vec<_>>(), None, &[])
    }

    /// Whether a forward pass on a made-up observation gives NaN.
    fn gives_nan(&self) -> Result<bool> {
        let mut worker = self.checkout()?;
        self.probe(&mut worker)?;
        let mut outputs = worker.outputs().iter().filter(|output| output.dtype() == DType::Float32);
        Ok(outputs.any(|output| output.values::<f32>().iter().any(|value| value.is_nan())))
    }

    /// A worker for one caller.
    pub fn checkout(&self) -> Result<PooledWorker<'_>> {
        self.pool.checkout(|| self.worker())
    }
}

/// A worker that its caller keeps for as long as the version serves.
#[derive(Debug)]
pub struct OwnWorker {
    version: Arc<PolicyVersion>,
    worker: Worker,
}

impl OwnWorker {
    /// Whether it is one of `version`.
    pub fn serves(&self, version: &Arc<PolicyVersion>) -> bool {
        Arc::ptr_eq(&self.version, version)
    }
}

impl Deref for OwnWorker {
    type Target = Worker;

    fn deref(&self) -> &Worker {
        &self.worker
    }
}

impl DerefMut for OwnWorker {
    fn deref_mut(&mut self) -> &mut Worker {
        &mut self.worker
    }
}

impl Drop for OwnWorker {
    fn drop(&mut self) {
        self.version.own_workers.fetch_sub(1, Ordering::Relaxed);
    }
}

fn step_schema(loaded: &LoadedModel, head: &Head) -> StepSchema {
    let inputs: Vec<_> = loaded.contract.inputs.iter().filter(|input| input.role == InputRole::Observation).collect();
    let observations = inputs
        .iter()
        .map(|input| ColumnSpec {
            key: if inputs.len() == 1 { String::new() } else { input.spec.name.clone() },
            dtype: input.spec.dtype,
            shape: input.row_shape.clone(),
        })
        .collect();
    StepSchema {
        observations,
        action: head.action().clone(),
        mask: None,
        log_prob: head.gives_log_prob(),
        value: head.gives_value(),
    }
}

fn describe(version: &PolicyVersion) -> String {
    let schema = &version.schema;
    let column = |column: &ColumnSpec| format!("{} {}", column.dtype, crate::spec::shape_text(&column.shape));
    let observations: Vec<_> = schema.observations.iter().map(column).collect();
    format!(
        "observations [{}] and actions {}{}{}{}",
        observations.join(", "),
        column(&schema.action),
        if schema.log_prob { ", with log-probabilities" } else { "" },
        if schema.value { ", with values" } else { "" },
        version.mask_width().map_or(String::new(), |width| format!(", {width} choices"))
    )
}
