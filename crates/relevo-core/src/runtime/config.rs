//! How an agent is made.

use std::{num::NonZeroUsize, path::PathBuf, sync::Arc, time::Duration};

use super::routers::MOST_ROUTERS;
use crate::{
    error::{Error, Result},
    policy::PolicySlot,
    trajectory::{CsvWriter, ExtraSpec, Format, MemoryLimit, StepSchema, WriterOptions, check_extras},
};

/// How single calls are batched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batching {
    /// Rows of a batch at most.
    pub max_batch: usize,
    /// How long the first row of a batch may wait for others.
    pub max_wait: Duration,
}

impl Default for Batching {
    fn default() -> Self {
        Self { max_batch: 256, max_wait: Duration::from_micros(500) }
    }
}

impl Batching {
    /// The longest wait in nanoseconds.
    pub(super) fn patience(self) -> u64 {
        self.max_wait.as_nanos().try_into().unwrap_or(u64::MAX)
    }
}

/// What becomes of an actor whose policy fails, or gives NaN, for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnError {
    /// It stays, and its caller gets the error.
    #[default]
    Raise,
    /// It is removed, its open episode is kept as an interrupted one, and its caller gets the error.
    DropActor,
}

/// Where and how an agent records.
#[derive(Debug, Clone)]
pub struct RecordConfig {
    /// The run folder.
    pub folder: PathBuf,
    /// What files it is made of.
    pub format: Format,
    /// How they are written.
    pub options: WriterOptions,
    /// Whether a run that is there is gone on with; if not, it is an error.
    pub resume: bool,
    /// Whether actors may go on acting after recording has failed. The error reaches one caller in any case.
    pub goes_on: bool,
}

/// How an agent is made: [`AgentConfig::new`] has the defaults, and every field may be changed after it.
#[derive(Debug)]
pub struct AgentConfig {
    /// The policies; the first is the one that new actors follow.
    pub policies: Vec<Arc<PolicySlot>>,
    /// Actors to begin with.
    pub actor_count: usize,
    /// Workers that batch single calls, for each device. Calls for many actors at once run on the caller's thread.
    pub routers: usize,
    /// How single calls are batched.
    pub batching: Batching,
    /// What becomes of an actor whose policy fails for it.
    pub on_error: OnError,
    /// The run folder to record into, and how.
    pub record: Option<RecordConfig>,
    /// How much is kept in memory.
    pub memory: MemoryLimit,
    /// An episode is recorded as truncated when it has so many steps and goes on; what follows is another one.
    pub most_steps: Option<NonZeroUsize>,
    /// Seed of all random streams; without one, that of the run that is gone on with, or else a drawn one.
    pub seed: Option<u64>,
    /// Whether raw outputs are handed out with the actions.
    pub keep_outputs: bool,
    /// Columns that callers fill: each call that is recorded gives a value for each of them.
    pub extras: Vec<ExtraSpec>,
    /// The resolved configuration in words of the caller's, for `run.json`.
    pub description: serde_json::Value,
}

impl AgentConfig {
    /// One actor, one router, a drawn seed; trajectories are kept in memory alone. The first policy is the one that new actors
    /// follow.
    pub fn new(policies: Vec<Arc<PolicySlot>>) -> Self {
        Self {
            policies,
            actor_count: 1,
            routers: 1,
            batching: Batching::default(),
            on_error: OnError::default(),
            record: None,
            memory: MemoryLimit::default(),
            most_steps: None,
            seed: None,
            keep_outputs: false,
            extras: Vec::new(),
            description: serde_json::Value::Null,
        }
    }

    /// Checks what can be checked before anything is made.
    pub(super) fn validate(&self) -> Result<()> {
        if self.policies.is_empty() {
            return Err(Error::Config("an agent needs a policy; give one by default_model(path)".into()));
        }
        if !(1..=MOST_ROUTERS).contains(&self.routers) {
            return Err(Error::Config(format!(
                "routers must be between 1 and {MOST_ROUTERS}, but is {}; each is a thread, and more than there are processors \
                 only wait for each other",
                self.routers
            )));
        }
        if self.batching.max_batch == 0 {
            return Err(Error::Config("max_batch must be at least 1, but is 0".into()));
        }
        let csv = self.record.as_ref().filter(|record| record.format == Format::Csv);
        if csv.is_some_and(|record| record.resume) {
            return Err(Error::Config(
                "a run of CSV files cannot be gone on with, as they do not say how far random streams had come; record as \
                 format=\"arrow\", or into another folder"
                    .into(),
            ));
        }
        for policy in &self.policies {
            let schema = policy.current().schema.clone();
            check_extras(&schema, &self.extras)?;
            if csv.is_some() {
                CsvWriter::check_schema(&StepSchema { extras: self.extras.clone(), ..(*schema).clone() })?;
            }
        }
        for (index, policy) in self.policies.iter().enumerate() {
            if self.policies[..index].iter().any(|other| other.name() == policy.name()) {
                return Err(Error::Config(format!(
                    "two policies are named `{}`; give each a name of its own",
                    policy.name()
                )));
            }
        }
        Ok(())
    }
}

/// 64 random bits. A random id has a few bits that are always the same, in other places in each half.
pub(super) fn drawn_seed() -> u64 {
    let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
    high ^ low
}
