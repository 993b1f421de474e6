//! One finished piece of experience: the steps of one actor from a reset to an end, column by column.

use std::sync::Arc;

use arrow_buffer::Buffer;
use uuid::Uuid;

use crate::spec::DType;

/// A tensor column of the steps: its name, element type and the shape of one row.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ColumnSpec {
    /// The observation's or action's key; empty for the only one.
    pub key: String,
    /// Element type.
    pub dtype: DType,
    /// Shape of one row, without the batch axis; `[]` is a scalar.
    pub shape: Vec<usize>,
}

impl ColumnSpec {
    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }
}

/// Which columns the steps of an episode have. Episodes of equal schemas may share a segment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StepSchema {
    /// The observation columns, in the order of the policy's inputs.
    pub observations: Vec<ColumnSpec>,
    /// The action columns: one, or several where a policy gives actions of different kinds.
    pub actions: Vec<ColumnSpec>,
    /// Width of the action mask, if masks are used.
    pub mask: Option<usize>,
    /// Whether the policy tells the log-probability of its actions.
    pub log_prob: bool,
    /// Whether the policy tells the value of observations.
    pub value: bool,
}

/// The policy that acted from step `from` on, until the next run of the list begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyRun {
    /// First step of the run.
    pub from: usize,
    /// Name of the policy.
    pub policy: Arc<str>,
    /// Version of the policy.
    pub version: u64,
}

/// The steps of one actor from a reset to an end. All columns are contiguous, row-major, and have [`Episode::len`] rows,
/// but for the observations, which have one more when the final observation is known.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each says something else of the end")]
pub struct Episode {
    /// Ordinal within the run, unique.
    pub number: u64,
    /// The actor's id when the episode began.
    pub actor_id: Uuid,
    /// Which columns there are.
    pub schema: Arc<StepSchema>,
    /// Number of steps (actions taken), T; at least 1.
    pub len: usize,
    /// One buffer for each observation column: T rows, or T + 1 where `has_final_observation`.
    pub observations: Vec<Buffer>,
    /// Whether the observation after the last action is known; only where `complete`.
    pub has_final_observation: bool,
    /// One buffer of T rows for each action column.
    pub actions: Vec<Buffer>,
    /// T × mask width bytes, 1 where the action was allowed.
    pub masks: Option<Buffer>,
    /// T rewards, float64; NaN is a reward of NaN, a missing one is told by `reward_known`.
    pub rewards: Buffer,
    /// T bytes, 0 where the reward never came; `None` where all came.
    pub reward_known: Option<Buffer>,
    /// T log-probabilities, float32.
    pub log_probs: Option<Buffer>,
    /// T values, float32.
    pub values: Option<Buffer>,
    /// Which policy acted when; the first run begins at step 0.
    pub policies: Vec<PolicyRun>,
    /// T times in nanoseconds since 1970, UTC, int64.
    pub timestamps: Buffer,
    /// Whether the last step ended the episode by the environment's rules.
    pub terminated: bool,
    /// Whether the last step ended the episode for an outside reason, such as a time limit.
    pub truncated: bool,
    /// Whether the episode ended at all; `false` where its actor was removed or the run closed in its midst.
    pub complete: bool,
}

impl Episode {
    /// Sum of the rewards that came.
    pub fn episode_return(&self) -> f64 {
        let rewards = self.rewards.typed_data::<f64>();
        match &self.reward_known {
            None => rewards.iter().fold(0.0, |sum, reward| sum + reward),
            Some(known) => rewards
                .iter()
                .zip(known.as_slice())
                .filter(|(_, known)| **known != 0)
                .fold(0.0, |sum, (reward, _)| sum + reward),
        }
    }

    /// Bytes of all columns.
    pub fn bytes(&self) -> usize {
        let optional = [&self.masks, &self.reward_known, &self.log_probs, &self.values];
        self.observations.iter().chain(&self.actions).map(Buffer::len).sum::<usize>()
            + [&self.rewards, &self.timestamps].into_iter().map(Buffer::len).sum::<usize>()
            + optional.into_iter().flatten().map(Buffer::len).sum::<usize>()
    }

    /// The policy version of every step.
    pub fn policy_versions(&self) -> Vec<u64> {
        let mut versions = Vec::with_capacity(self.len);
        for (index, run) in self.policies.iter().enumerate() {
            let until = self.policies.get(index + 1).map_or(self.len, |next| next.from);
            versions.resize(until, run.version);
        }
        versions
    }
}
