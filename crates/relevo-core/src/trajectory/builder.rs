//! Cutting episodes out of blocks: the open episode of one actor, gathered column by column.

use std::sync::Arc;

use arrow_buffer::MutableBuffer;
use uuid::Uuid;

use super::{
    block::{Block, Flags},
    episode::{Episode, PolicyRun, StepSchema},
};

/// How an episode ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) terminated: bool,
    pub(crate) truncated: bool,
    pub(crate) complete: bool,
}

/// The open episode of one actor.
#[derive(Debug)]
pub(crate) struct EpisodeBuilder {
    number: u64,
    actor_id: Uuid,
    schema: Arc<StepSchema>,
    len: usize,
    observations: Vec<MutableBuffer>,
    actions: MutableBuffer,
    masks: Option<MutableBuffer>,
    rewards: MutableBuffer,
    reward_known: MutableBuffer,
    rewards_missing: usize,
    log_probs: Option<MutableBuffer>,
    values: Option<MutableBuffer>,
    policies: Vec<PolicyRun>,
    timestamps: MutableBuffer,
}

impl EpisodeBuilder {
    pub(crate) fn new(number: u64, actor_id: Uuid, schema: Arc<StepSchema>) -> Self {
        let empty = || MutableBuffer::new(0);
        Self {
            number,
            actor_id,
            len: 0,
            observations: schema.observations.iter().map(|_| empty()).collect(),
            actions: empty(),
            masks: schema.mask.map(|_| empty()),
            rewards: empty(),
            reward_known: empty(),
            rewards_missing: 0,
            log_probs: schema.log_prob.then(empty),
            values: schema.value.then(empty),
            policies: Vec::new(),
            timestamps: empty(),
            schema,
        }
    }

    /// Whether steps of `schema` can go on in this episode: everything but the mask must be the same.
    pub(crate) fn continues(&self, schema: &Arc<StepSchema>) -> bool {
        Arc::ptr_eq(&self.schema, schema)
            || (self.schema.observations == schema.observations
                && self.schema.action == schema.action
                && self.schema.log_prob == schema.log_prob
                && self.schema.value == schema.value)
    }

    /// Adds the steps of `column` in rows `from..until`, all recorded, of the policy in segment `segment`.
    pub(crate) fn append(&mut self, block: &Block, column: usize, segment: usize, from: usize, until: usize) {
        let columns = block.layout.columns();
        let cells = || (from..until).map(|row| row * columns + column);
        for (index, target) in self.observations.iter_mut().enumerate() {
            gather(target, block.observations[index].as_slice(), block.observation_bytes(index), cells());
        }
        gather(&mut self.actions, block.actions.as_slice(), block.layout.schema().action.row_bytes(), cells());
        self.append_masks(block, until - from, cells());
        for cell in cells() {
            let known = Flags(block.flags[cell]).has(Flags::REWARDED);
            self.rewards.push(if known { block.rewards[cell] } else { 0.0 });
            self.reward_known.push(u8::from(known));
            self.rewards_missing += usize::from(!known);
        }
        if let Some(log_probs) = &mut self.log_probs {
            gather(log_probs, bytemuck::cast_slice(&block.log_probs), 4, cells());
        }
        if let Some(values) = &mut self.values {
            gather(values, bytemuck::cast_slice(&block.values), 4, cells());
        }
        self.timestamps.extend_from_slice(&block.timestamps[from..until]);
        let (segments, policy) = (block.layout.segments.len(), &block.layout.segments[segment].policy);
        for row in from..until {
            let version = block.versions[row * segments + segment];
            if !self.policies.last().is_some_and(|run| run.version == version && run.policy == *policy) {
                self.policies.push(PolicyRun { from: self.len + row - from, policy: policy.clone(), version });
            }
        }
        self.len += until - from;
    }

    /// Masks may be used in some calls and not in others: a step without one was free to do everything.
    fn append_masks(&mut self, block: &Block, rows: usize, cells: impl Iterator<Item = usize>) {
        match (block.layout.mask, &mut self.masks) {
            (Some(width), masks) => {
                let masks = masks.get_or_insert_with(|| {
                    let mut all_allowed = MutableBuffer::new(0);
                    all_allowed.resize(self.len * width, 1);
                    all_allowed
                });
                gather(masks, &block.masks, width, cells);
                if self.schema.mask.is_none() {
                    self.schema = Arc::new(StepSchema { mask: Some(width), ..(*self.schema).clone() });
                }
            }
            (None, Some(masks)) => {
                let width = self.schema.mask.unwrap_or(0);
                masks.resize(masks.len() + rows * width, 1);
            }
            (None, None) => {}
        }
    }

    /// Number of steps whose reward never came.
    pub(crate) fn rewards_missing(&self) -> usize {
        self.rewards_missing
    }

    /// Closes the episode. `last` holds the bytes of all observation columns of the final observation, if it is known.
    pub(crate) fn finish(mut self, end: End, last: Option<&[u8]>) -> Episode {
        if let Some(mut last) = last {
            for (target, column) in self.observations.iter_mut().zip(&self.schema.observations) {
                let (row, rest) = last.split_at(column.row_bytes());
                target.extend_from_slice(row);
                last = rest;
            }
        }
        Episode {
            number: self.number,
            actor_id: self.actor_id,
            schema: self.schema,
            len: self.len,
            observations: self.observations.into_iter().map(Into::into).collect(),
            has_final_observation: last.is_some(),
            actions: self.actions.into(),
            masks: self.masks.map(Into::into),
            rewards: self.rewards.into(),
            reward_known: (self.rewards_missing > 0).then(|| self.reward_known.into()),
            log_probs: self.log_probs.map(Into::into),
            values: self.values.map(Into::into),
            policies: self.policies,
            timestamps: self.timestamps.into(),
            terminated: end.terminated,
            truncated: end.truncated,
            complete: end.complete,
        }
    }
}

/// Appends the entries of `size` bytes at `cells` of `source`.
fn gather(target: &mut MutableBuffer, source: &[u8], size: usize, cells: impl Iterator<Item = usize>) {
    match size {
        // The usual sizes as single moves: a copy of a length known only at run time costs a call each.
        4 => cells.for_each(|cell| target.push(u32::from_ne_bytes(word(source, cell)))),
        8 => cells.for_each(|cell| target.push(u64::from_ne_bytes(word(source, cell)))),
        _ => cells.for_each(|cell| target.extend_from_slice(&source[cell * size..(cell + 1) * size])),
    }
}

fn word<const N: usize>(source: &[u8], cell: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&source[cell * N..(cell + 1) * N]);
    bytes
}
