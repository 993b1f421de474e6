//! How an agent is made.

use std::{path::PathBuf, sync::Arc};

use crate::{
    error::{Error, Result},
    policy::PolicySlot,
    trajectory::MemoryLimit,
};

/// How an agent is made.
#[derive(Debug)]
pub struct AgentConfig {
    /// The policies; the first is the one that new actors follow.
    pub policies: Vec<Arc<PolicySlot>>,
    /// Actors to begin with.
    pub actor_count: usize,
    /// Workers that batch single calls. Calls for many actors at once run on the caller's thread and need none.
    pub routers: usize,
    /// The run folder to record into.
    pub record: Option<PathBuf>,
    /// How much is kept in memory.
    pub memory: MemoryLimit,
    /// Seed of all random streams.
    pub seed: u64,
    /// Whether raw outputs are handed out with the actions.
    pub keep_outputs: bool,
    /// The resolved configuration in words of the caller's, for `run.json`.
    pub description: serde_json::Value,
}

impl AgentConfig {
    /// Checks what can be checked before anything is made.
    pub(super) fn validate(&self) -> Result<()> {
        if self.policies.is_empty() {
            return Err(Error::Config("an agent needs a policy; give one by default_model(path)".into()));
        }
        if self.routers == 0 {
            return Err(Error::Config("routers must be at least 1, but is 0".into()));
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
