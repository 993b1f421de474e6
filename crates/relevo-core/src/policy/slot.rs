//! A policy: a named slot that serves one version of a model at a time. The version can be exchanged while calls run; a
//! batch uses one version from its start to its end.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::{Head, HeadKind, LoadedModel, Worker, convention::InputRole};
use crate::{
    error::{Error, Result},
    fork::Birthplace,
    trajectory::{ColumnSpec, StepSchema},
};

/// A named slot that serves one version of a model at a time.
#[derive(Debug)]
pub struct PolicySlot {
    name: Arc<str>,
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
    idle: IdleWorkers,
}

/// Workers that wait for the next caller.
struct IdleWorkers {
    workers: Mutex<Vec<Worker>>,
    birthplace: Birthplace,
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
    /// [`Error::Contract`] where the head does not fit the model, or the model is recurrent.
    pub fn new(name: &str, loaded: LoadedModel, head: Option<HeadKind>, keep_outputs: bool) -> Result<Self> {
        let first = PolicyVersion::new(1, loaded, head, keep_outputs)?;
        Ok(Self {
            name: name.into(),
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

    /// The version that serves now.
    pub fn current(&self) -> Arc<PolicyVersion> {
        self.current.load_full()
    }

    /// Exchanges the model; the new version's number is returned. The new model is checked and warmed first, and where
    /// it does not fit, the old one keeps serving.
    ///
    /// # Errors
    /// [`Error::Contract`] where the new model takes other observations, gives other actions or misses an output.
    pub fn update(&self, loaded: LoadedModel) -> Result<u64> {
        let _one_at_a_time = self.update.lock();
        let old = self.current();
        let new = PolicyVersion::new(old.version + 1, loaded, self.head, self.keep_outputs)?;
        if new.schema != old.schema || new.mask_width() != old.mask_width() {
            return Err(Error::Contract(format!(
                "the new model for policy `{}` does not fit: it takes and gives {}, but the one that serves {}; keep the \
                 contract, or make another policy of it",
                self.name,
                describe(&new),
                describe(&old)
            )));
        }
        // The first passes of a session are slow; a call that waits should not pay for them.
        let mut worker = new.checkout()?;
        let zeros: Vec<Vec<u8>> = new.schema.observations.iter().map(|column| vec![0; column.row_bytes()]).collect();
        worker.forward(1, &zeros.iter().map(Vec::as_slice).collect::<Vec<_>>(), None)?;
        new.check_in(worker);
        let version = new.version;
        self.current.store(Arc::new(new));
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
        if loaded.contract.recurrent {
            return Err(Error::Contract(format!(
                "{} is recurrent, and actors do not carry a recurrent state yet; `forward` runs it with states given by \
                 hand",
                loaded.path.display()
            )));
        }
        let random_graph = !loaded.model.facts().random_ops.is_empty();
        let head = Head::new(head, &loaded.contract, random_graph, keep_outputs)?;
        let schema = Arc::new(step_schema(&loaded, &head));
        Ok(Self {
            version,
            loaded,
            head,
            schema,
            idle: IdleWorkers { workers: Mutex::default(), birthplace: Birthplace::here() },
        })
    }

    /// How many actions a mask speaks of; `None` where the policy can use no mask.
    pub fn mask_width(&self) -> Option<usize> {
        let input = self.loaded.contract.mask().map(|mask| mask.row_shape.iter().product());
        input.or(self.head.choices())
    }

    /// A worker for one caller, made if none is idle.
    pub fn checkout(&self) -> Result<Worker> {
        let idle = self.idle.workers.lock().pop();
        match idle {
            Some(worker) => Ok(worker),
            None => Worker::new(&self.loaded, self.head.wanted()),
        }
    }

    /// Hands a worker back.
    pub fn check_in(&self, worker: Worker) {
        self.idle.workers.lock().push(worker);
    }
}

impl Drop for IdleWorkers {
    fn drop(&mut self) {
        if self.birthplace.is_elsewhere() {
            // A session's threads stayed in the parent; joining them here would wait forever.
            std::mem::forget(std::mem::take(self.workers.get_mut()));
        }
    }
}

impl std::fmt::Debug for IdleWorkers {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("IdleWorkers")
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
