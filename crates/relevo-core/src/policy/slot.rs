//! A policy: a named slot that serves one version of a model at a time. The version can be exchanged while calls run; a
//! batch uses one version from its start to its end.

use std::{
    collections::BTreeMap,
    ops::{Deref, DerefMut},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::{
    ActionBounds, Head, LoadedModel, MemorySpec, Normalizer, PolicyOptions, Worker,
    contract::{Contract, InputContract},
    convention::InputRole,
    pool::{PooledWorker, WorkerPool},
    probe::probe_input,
};
use crate::{
    error::{Error, Result},
    spec::DType,
    tensor::{Tensor, elements},
    trajectory::{ColumnSpec, StepSchema},
};

/// A unit that is off for one made-up observation is on for another.
const PROBE_FACTORS: [f32; 4] = [1.0, -1.0, 0.0, 10.0];

/// A named slot that serves one version of a model at a time.
#[derive(Debug)]
pub struct PolicySlot {
    name: Arc<str>,
    device: Arc<str>,
    options: PolicyOptions,
    /// Whether the bounds were asked for; otherwise they are those that the first model's file tells.
    bounds_are_given: bool,
    /// The bounds of the continuous actions, and the action column that holds these.
    bounds: Option<(usize, ActionBounds)>,
    current: ArcSwap<PolicyVersion>,
    /// Held while a new version is prepared, so that two updates cannot take the same number.
    update: Mutex<()>,
    /// What was served so far, over all versions.
    pub stats: PolicyStats,
}

/// One version of a policy.
#[derive(Debug)]
pub struct PolicyVersion {
    /// Rises with each update, by one where no number is given; the first is 1.
    pub version: u64,
    /// The model that serves it.
    pub loaded: LoadedModel,
    /// The head on its outputs.
    pub head: Head,
    /// The columns that its steps record, without a mask.
    pub schema: Arc<StepSchema>,
    /// The branches that a mask speaks of, with their numbers of choices; empty where the policy can use no mask.
    mask_branches: Vec<usize>,
    /// Normalisers of observations, by the names of the inputs.
    statistics: BTreeMap<String, Normalizer>,
    /// The same for every input, in the model's order.
    normalizers: Vec<Option<Normalizer>>,
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
    /// A slot that serves `loaded` as version 1, as `options` say.
    ///
    /// # Errors
    /// [`Error::Contract`] where the head does not fit the model, or a state that the model depends on is handed on by no output.
    pub fn new(name: &str, loaded: LoadedModel, options: PolicyOptions) -> Result<Self> {
        let device = loaded.options.device.as_str().into();
        let first = PolicyVersion::new(1, loaded, options.normalizers.clone(), &options)?;
        let (path, kind) = (first.loaded.path.display(), first.head.describe());
        tracing::info!(policy = name, version = 1, head = %kind, %path, "policy `{name}` serves {path} with the head {kind}");
        let unused = first.head.unused_actions(&first.loaded.contract).join(", ");
        if !unused.is_empty() {
            tracing::info!(policy = name, unused, "policy `{name}` leaves out {unused}, which its head does not read");
        }
        let doubts = if options.head.is_none() { first.loaded.contract.doubts(&first.head) } else { Vec::new() };
        for doubt in doubts {
            tracing::warn!(policy = name, "policy `{name}`: {doubt}");
        }
        let bounds_are_given = options.bounds.is_some();
        // Later versions keep the bounds of the first one.
        let known = options.bounds.or_else(|| first.head.bounds().map(|(_, bounds)| bounds.clone()));
        let options = PolicyOptions { bounds: known, ..options };
        Ok(Self {
            bounds_are_given,
            name: name.into(),
            device,
            bounds: first.head.bounds().cloned(),
            options,
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

    /// The bounds that its continuous actions are brought into, and which action column they are.
    pub fn bounds(&self) -> Option<&(usize, ActionBounds)> {
        self.bounds.as_ref()
    }

    /// Whether it normalises observations itself, before the model gets them.
    pub fn normalizes(&self) -> bool {
        !self.current().statistics.is_empty()
    }

    /// Whether raw outputs are kept for the callers.
    pub fn keeps_outputs(&self) -> bool {
        self.options.keep_outputs
    }

    /// The version that serves now.
    pub fn current(&self) -> Arc<PolicyVersion> {
        self.current.load_full()
    }

    /// Exchanges the model; the new version's number is returned: the one given, or else the next. The new model is
    /// checked and warmed first, and where it does not fit, the old one keeps serving. What a recurrent model remembers of
    /// its actors is handed to the new one, whose states must be of the same types and shapes, in the same order.
    ///
    /// # Errors
    /// [`Error::Contract`] where the new model takes other observations, gives other actions, misses an output or has other states,
    /// [`Error::Config`] where it was loaded for another device, or the number is not above the current one.
    pub fn update(&self, loaded: LoadedModel, version: Option<u64>) -> Result<u64> {
        self.update_normalizing(loaded, version, None)
    }

    /// The same; `normalizers` take the place of those that normalised observations for the version before.
    ///
    /// # Errors
    /// As [`PolicySlot::update`], and [`Error::Contract`] where they do not fit the model, or it normalises by itself.
    pub fn update_normalizing(
        &self,
        loaded: LoadedModel,
        version: Option<u64>,
        normalizers: Option<BTreeMap<String, Normalizer>>,
    ) -> Result<u64> {
        let _one_at_a_time = self.update.lock();
        if *loaded.options.device != *self.device {
            return Err(Error::Config(format!(
                "the policy `{}` runs on {}, but the new model was loaded for {}; load it for the policy's device",
                self.name, self.device, loaded.options.device
            )));
        }
        let old = self.current();
        let version = version.unwrap_or(old.version.saturating_add(1));
        if version <= old.version {
            return Err(Error::Config(format!(
                "the policy `{}` serves version {}, so a new one must have a number above it, but {version} was given",
                self.name, old.version
            )));
        }
        self.check_bounds(&loaded)?;
        let statistics = normalizers.unwrap_or_else(|| old.statistics.clone());
        let new = PolicyVersion::new(version, loaded, statistics, &self.options)?;
        if new.schema != old.schema || new.mask_branches != old.mask_branches {
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
        if let Some(wild) = new.gives_wild()?
            && old.gives_wild()?.is_none()
        {
            return Err(Error::Contract(format!(
                "the new model for policy `{}` gives {wild} where the one that serves does not; it keeps serving. Look for {wild} \
                 in the new weights",
                self.name
            )));
        }
        let (policy, version, path) = (&*self.name, new.version, new.loaded.path.clone());
        self.current.store(Arc::new(new));
        let path = path.display();
        tracing::info!(policy, version, %path, "policy `{policy}` serves version {version} from now on: {path}");
        Ok(version)
    }

    /// Fails where the file of a new model tells other bounds than the policy has, and nobody gave any: its actions would come out
    /// otherwise than it means them.
    fn check_bounds(&self, new: &LoadedModel) -> Result<()> {
        let told = new.contract.declared.bounds.as_ref();
        if self.bounds_are_given || told.is_none() || told == self.options.bounds.as_ref() {
            return Ok(());
        }
        let words = |bounds: Option<&ActionBounds>| bounds.map_or("none".to_owned(), ToString::to_string);
        Err(Error::Contract(format!(
            "the new model for policy `{}` does not fit: its file says that its actions are brought into bounds ({}), but those of \
             the policy are: {}; build the agent with bounds=, or make another policy of it",
            self.name,
            words(told),
            words(self.options.bounds.as_ref())
        )))
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
    fn new(
        version: u64,
        loaded: LoadedModel,
        statistics: BTreeMap<String, Normalizer>,
        options: &PolicyOptions,
    ) -> Result<Self> {
        let memory = MemorySpec::new(&loaded.contract).map_err(|error| match error {
            Error::Contract(reason) => Error::Contract(format!("{}: {reason}", loaded.path.display())),
            other => other,
        })?;
        let random_graph = !loaded.model.facts().random_ops.is_empty();
        let head = Head::new(options, &loaded.contract, random_graph)?;
        let schema = Arc::new(step_schema(&loaded, &head));
        Ok(Self {
            version,
            mask_branches: mask_branches(&loaded.contract, &head),
            normalizers: normalizers(&loaded, &statistics)?,
            statistics,
            loaded,
            head,
            schema,
            memory: Arc::new(memory),
            pool: WorkerPool::new(),
            own_workers: AtomicU64::new(0),
            warm_workers: Mutex::default(),
        })
    }

    /// How many choices a mask speaks of; `None` where the policy can use no mask.
    pub fn mask_width(&self) -> Option<usize> {
        (!self.mask_branches.is_empty()).then(|| self.mask_branches.iter().sum())
    }

    /// The branches that a mask speaks of, with their numbers of choices: in each, one must be allowed.
    pub fn mask_branches(&self) -> &[usize] {
        &self.mask_branches
    }

    /// The mask, where the head is to apply it.
    pub(crate) fn head_mask<'a>(&self, mask: Option<&'a [u8]>, width: usize) -> Option<&'a [u8]> {
        mask.filter(|_| !self.head.branches().is_empty() && self.head.branches().iter().sum::<usize>() == width)
    }

    /// Names of the observation inputs, in the order of the schema's columns.
    pub fn observation_names(&self) -> Vec<String> {
        self.loaded.contract.observations().map(|input| input.spec.name.clone()).collect()
    }

    /// A new worker.
    pub(crate) fn worker(&self) -> Result<Worker> {
        let worker = Worker::new(&self.loaded, self.head.wanted(), self.memory.clone())?;
        Ok(worker.normalizing(self.normalizers.clone()))
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
            self.probe(&mut worker, 1.0)?;
            self.warm_workers.lock().push(worker);
        }
        Ok(())
    }

    /// A forward pass on a made-up observation, its floats multiplied by `factor`.
    fn probe(&self, worker: &mut Worker, factor: f32) -> Result<()> {
        let mut observations: Vec<_> = self.loaded.contract.observations().map(|input| probe_input(input, 1)).collect();
        for tensor in observations.iter_mut().filter(|tensor| tensor.dtype() == DType::Float32) {
            tensor.values_mut::<f32>().iter_mut().for_each(|value| *value *= factor);
        }
        worker.forward(1, &observations.iter().map(Tensor::bytes).collect::<Vec<_>>(), None, &[])
    }

    /// Whether forward passes on made-up observations give NaN, or infinite numbers: which of the two.
    fn gives_wild(&self) -> Result<Option<&'static str>> {
        let mut worker = self.checkout()?;
        let mut infinite = false;
        for factor in PROBE_FACTORS {
            self.probe(&mut worker, factor)?;
            for output in worker.outputs().iter().filter(|output| output.dtype() == DType::Float32) {
                if output.values::<f32>().iter().any(|value| value.is_nan()) {
                    return Ok(Some("NaN"));
                }
                infinite |= output.values::<f32>().iter().any(|value| value.is_infinite());
            }
        }
        Ok(infinite.then_some("infinite numbers"))
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
        actions: head.actions().to_vec(),
        mask: None,
        log_prob: head.gives_log_prob(),
        value: head.gives_value(),
        extras: Vec::new(),
    }
}

/// The branches that a mask speaks of: those that the head picks, else those of the graph's own mask input.
fn mask_branches(contract: &Contract, head: &Head) -> Vec<usize> {
    let Some(mask) = contract.mask() else { return head.branches().to_vec() };
    let width: usize = elements(&mask.row_shape);
    let known = [head.branches(), &contract.branches];
    known.into_iter().find(|branches| branches.iter().sum::<usize>() == width).map_or(vec![width], <[usize]>::to_vec)
}

/// The normalisers of every input, in the model's order.
fn normalizers(loaded: &LoadedModel, statistics: &BTreeMap<String, Normalizer>) -> Result<Vec<Option<Normalizer>>> {
    let inputs = &loaded.contract.inputs;
    for (name, normalizer) in statistics {
        if loaded.contract.declared.normalization.contains_key(name) {
            return Err(Error::Contract(format!(
                "a normalisation was given for the observation `{name}`, but the model {} normalises it itself, by the statistics \
                 that were exported with it; leave the normalisation out, or export the model without",
                loaded.path.display()
            )));
        }
        let fits = |input: &InputContract| {
            input.role == InputRole::Observation
                && input.spec.dtype == DType::Float32
                && input.row_shape.iter().product::<usize>() == normalizer.width()
        };
        if !inputs.iter().any(|input| input.spec.name == *name && fits(input)) {
            let has = loaded.contract.observations().map(|input| {
                format!(
                    "{} ({} of shape {})",
                    input.spec.name,
                    input.spec.dtype,
                    crate::spec::shape_text(&input.row_shape)
                )
            });
            let has: Vec<_> = has.collect();
            return Err(Error::Contract(format!(
                "a normalisation of {} elements was given for the observation `{name}`, but the model observes {}; \
                 normalisation is for float32 observations of as many elements",
                normalizer.width(),
                has.join(", ")
            )));
        }
    }
    Ok(inputs.iter().map(|input| statistics.get(&input.spec.name).cloned()).collect())
}

fn describe(version: &PolicyVersion) -> String {
    let schema = &version.schema;
    let column = |column: &ColumnSpec| {
        let named = if column.key.is_empty() { String::new() } else { format!("`{}` ", column.key) };
        format!("{named}{} {}", column.dtype, crate::spec::shape_text(&column.shape))
    };
    let observations: Vec<_> = schema.observations.iter().map(column).collect();
    format!(
        "observations [{}] and actions {}{}{}{}",
        observations.join(", "),
        schema.actions.iter().map(column).collect::<Vec<_>>().join(" and "),
        if schema.log_prob { ", with log-probabilities" } else { "" },
        if schema.value { ", with values" } else { "" },
        version.mask_width().map_or(String::new(), |width| format!(", {width} choices"))
    )
}
