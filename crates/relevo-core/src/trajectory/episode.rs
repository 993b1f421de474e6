//! One finished piece of experience: the steps of one actor from a reset to an end, column by column.

use std::{ops::Range, sync::Arc};

use arrow_buffer::{Buffer, MutableBuffer};
use uuid::Uuid;

use super::{
    builder::policies_from,
    extra::{ExtraSpec, ExtraValues},
};
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
    /// The columns that the caller fills.
    pub extras: Vec<ExtraSpec>,
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
    /// The values of each extra column: T rows, and one more of what is observed where `has_final_observation`.
    pub extras: Vec<ExtraValues>,
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
            + self.extras.iter().map(ExtraValues::bytes).sum::<usize>()
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

    /// These steps of it, as an episode of their own, without a copy. Unless they are the last, it has no end.
    pub(crate) fn part(&self, steps: Range<usize>) -> Self {
        let ends = steps.end == self.len;
        let acted = |buffer: &Buffer| {
            let row_bytes = buffer.len() / self.len;
            buffer.slice_with_length(steps.start * row_bytes, steps.len() * row_bytes)
        };
        let has_final_observation = self.has_final_observation && ends;
        let observation = |buffer: &Buffer| {
            let row_bytes = buffer.len() / (self.len + usize::from(self.has_final_observation));
            let count = steps.len() + usize::from(has_final_observation);
            buffer.slice_with_length(steps.start * row_bytes, count * row_bytes)
        };
        let extras = self.schema.extras.iter().zip(&self.extras).map(|(spec, values)| {
            values.slice(spec, steps.start..steps.start + spec.rows(steps.len(), has_final_observation))
        });
        let mut policies = policies_from(&self.policies, steps.start);
        policies.retain(|run| run.from < steps.len());
        Self {
            number: self.number,
            actor_id: self.actor_id,
            schema: self.schema.clone(),
            len: steps.len(),
            observations: self.observations.iter().map(observation).collect(),
            has_final_observation,
            actions: self.actions.iter().map(acted).collect(),
            masks: self.masks.as_ref().map(acted),
            rewards: acted(&self.rewards),
            reward_known: self.reward_known.as_ref().map(acted),
            log_probs: self.log_probs.as_ref().map(acted),
            values: self.values.as_ref().map(acted),
            extras: extras.collect(),
            policies,
            timestamps: acted(&self.timestamps),
            terminated: self.terminated && ends,
            truncated: self.truncated && ends,
            complete: self.complete && ends,
        }
    }

    /// One episode of the parts that it was written in, in order; `None` where there are none. All but the last lack an end.
    pub(crate) fn joined(mut parts: Vec<Self>) -> Option<Self> {
        let last = parts.pop()?;
        if parts.is_empty() {
            return Some(last);
        }
        parts.push(last);
        let mut first_step = 0;
        let mut policies: Vec<PolicyRun> = Vec::new();
        for part in &parts {
            for run in &part.policies {
                if policies.last().is_none_or(|before| before.policy != run.policy || before.version != run.version) {
                    policies.push(PolicyRun { from: first_step + run.from, ..run.clone() });
                }
            }
            first_step += part.len;
        }
        let one = |column: &dyn Fn(&Self) -> Option<Buffer>| {
            let mut joined = MutableBuffer::new(0);
            for part in &parts {
                joined.extend_from_slice(column(part)?.as_slice());
            }
            Some(Buffer::from(joined))
        };
        let many = |columns: &dyn Fn(&Self) -> &Vec<Buffer>| {
            let count = parts.iter().map(|part| columns(part).len()).min().unwrap_or_default();
            (0..count).filter_map(|index| one(&|part| Some(columns(part)[index].clone()))).collect()
        };
        let knows_all = parts.iter().all(|part| part.reward_known.is_none());
        let known =
            |part: &Self| Some(part.reward_known.clone().unwrap_or_else(|| Buffer::from_vec(vec![1_u8; part.len])));
        // Masks may be used from some step on: before it, all was allowed.
        let schema = parts.iter().map(|part| &part.schema).find(|schema| schema.mask.is_some());
        let masks = schema.and_then(|schema| schema.mask).and_then(|width| {
            one(&|part| Some(part.masks.clone().unwrap_or_else(|| Buffer::from_vec(vec![1_u8; part.len * width]))))
        });
        let last = parts.last()?;
        let extras = (0..last.extras.len())
            .map(|index| ExtraValues::joined(parts.iter().filter_map(|part| part.extras.get(index))));
        let extras = extras.collect::<Option<_>>()?;
        Some(Self {
            number: last.number,
            actor_id: last.actor_id,
            schema: schema.unwrap_or(&last.schema).clone(),
            len: first_step,
            observations: many(&|part| &part.observations),
            has_final_observation: last.has_final_observation,
            actions: many(&|part| &part.actions),
            masks,
            rewards: one(&|part| Some(part.rewards.clone()))?,
            reward_known: if knows_all { None } else { one(&known) },
            log_probs: one(&|part| part.log_probs.clone()),
            values: one(&|part| part.values.clone()),
            extras,
            policies,
            timestamps: one(&|part| Some(part.timestamps.clone()))?,
            terminated: last.terminated,
            truncated: last.truncated,
            complete: last.complete,
        })
    }
}
