//! Cutting episodes out of blocks: the open episode of one actor, gathered column by column.

use std::{ops::Range, sync::Arc};

use arrow_buffer::{Buffer, MutableBuffer};
use uuid::Uuid;

use super::{
    block::{Block, Flags},
    episode::{ColumnSpec, Episode, PolicyRun, StepSchema},
};

/// How an episode ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) terminated: bool,
    pub(crate) truncated: bool,
    pub(crate) complete: bool,
}

/// What a builder fills. It goes from one episode to the next, so that its buffers have grown to their size before long.
#[derive(Debug)]
pub(crate) struct Columns {
    observations: Vec<MutableBuffer>,
    actions: Vec<MutableBuffer>,
    masks: MutableBuffer,
    rewards: MutableBuffer,
    reward_known: MutableBuffer,
    log_probs: MutableBuffer,
    values: MutableBuffer,
    timestamps: MutableBuffer,
}

impl Columns {
    pub(crate) fn new() -> Self {
        let empty = || MutableBuffer::new(0);
        Self {
            observations: Vec::new(),
            actions: Vec::new(),
            masks: empty(),
            rewards: empty(),
            reward_known: empty(),
            log_probs: empty(),
            values: empty(),
            timestamps: empty(),
        }
    }

    /// Bytes that the columns hold.
    pub(crate) fn bytes(&self) -> usize {
        let Self { observations, actions, masks, rewards, reward_known, log_probs, values, timestamps } = self;
        let others = [masks, rewards, reward_known, log_probs, values, timestamps];
        observations.iter().chain(actions).chain(others).map(MutableBuffer::len).sum()
    }

    fn clear(&mut self) {
        let Self { observations, actions, masks, rewards, reward_known, log_probs, values, timestamps } = self;
        let others = [masks, rewards, reward_known, log_probs, values, timestamps];
        observations.iter_mut().chain(actions).chain(others).for_each(MutableBuffer::clear);
    }
}

/// The open episode of one actor.
#[derive(Debug)]
pub(crate) struct EpisodeBuilder {
    number: u64,
    actor_id: Uuid,
    schema: Arc<StepSchema>,
    len: usize,
    columns: Columns,
    rewards_missing: usize,
    policies: Vec<PolicyRun>,
}

impl EpisodeBuilder {
    pub(crate) fn new(number: u64, actor_id: Uuid, schema: Arc<StepSchema>, mut columns: Columns) -> Self {
        columns.clear();
        columns.observations.resize_with(schema.observations.len(), || MutableBuffer::new(0));
        columns.actions.resize_with(schema.actions.len(), || MutableBuffer::new(0));
        Self { number, actor_id, len: 0, columns, rewards_missing: 0, policies: Vec::new(), schema }
    }

    /// Whether steps of `schema` can go on in this episode: everything but the mask must be the same.
    pub(crate) fn continues(&self, schema: &Arc<StepSchema>) -> bool {
        Arc::ptr_eq(&self.schema, schema)
            || (self.schema.observations == schema.observations
                && self.schema.actions == schema.actions
                && self.schema.log_prob == schema.log_prob
                && self.schema.value == schema.value)
    }

    /// Adds the steps of `column` in `rows`, all recorded, of the policy in segment `segment`.
    pub(crate) fn append(&mut self, block: &Block, column: usize, segment: usize, rows: Range<usize>) {
        let width = block.layout.columns();
        let cells = || rows.clone().map(|row| row * width + column);
        let count = rows.len();
        let columns = &mut self.columns;
        for (index, target) in columns.observations.iter_mut().enumerate() {
            gather(target, block.observations[index].as_slice(), block.observation_bytes(index), count, cells());
        }
        let sizes = block.layout.schema().actions.iter().map(ColumnSpec::row_bytes);
        for (size, (target, source)) in sizes.zip(columns.actions.iter_mut().zip(&block.actions)) {
            gather(target, source.as_slice(), size, count, cells());
        }
        gather(&mut columns.rewards, bytemuck::cast_slice(&block.rewards), 8, count, cells());
        let known = grow(&mut columns.reward_known, count);
        for (known, cell) in known.iter_mut().zip(cells()) {
            *known = u8::from(Flags(block.flags[cell]).has(Flags::REWARDED));
        }
        let missing = known.iter().map(|known| usize::from(*known == 0)).sum::<usize>();
        if missing > 0 {
            self.rewards_missing += missing;
            let rewards: &mut [f64] = bytemuck::cast_slice_mut(columns.rewards.as_slice_mut());
            let unknown = known.iter().zip(&mut rewards[self.len..]).filter(|(known, _)| **known == 0);
            unknown.for_each(|(_, reward)| *reward = 0.0);
        }
        if self.schema.log_prob {
            gather(&mut columns.log_probs, bytemuck::cast_slice(&block.log_probs), 4, count, cells());
        }
        if self.schema.value {
            gather(&mut columns.values, bytemuck::cast_slice(&block.values), 4, count, cells());
        }
        columns.timestamps.extend_from_slice(&block.timestamps[rows.clone()]);
        self.append_masks(block, count, cells());
        let (segments, policy) = (block.layout.segments.len(), &block.layout.segments[segment].policy);
        for row in rows.clone() {
            let version = block.versions[row * segments + segment];
            if !self.policies.last().is_some_and(|run| run.version == version && run.policy == *policy) {
                self.policies.push(PolicyRun { from: self.len + row - rows.start, policy: policy.clone(), version });
            }
        }
        self.len += count;
    }

    /// Masks may be used in some calls and not in others: a step without one was free to do everything.
    fn append_masks(&mut self, block: &Block, rows: usize, cells: impl Iterator<Item = usize>) {
        let masks = &mut self.columns.masks;
        match (block.layout.mask, self.schema.mask) {
            (Some(width), known) => {
                if known.is_none() {
                    self.schema = Arc::new(StepSchema { mask: Some(width), ..(*self.schema).clone() });
                }
                masks.resize(self.len * width, 1);
                gather(masks, &block.masks, width, rows, cells);
            }
            (None, Some(width)) => masks.resize((self.len + rows) * width, 1),
            (None, None) => {}
        }
    }

    /// Number of steps whose reward never came.
    pub(crate) fn rewards_missing(&self) -> usize {
        self.rewards_missing
    }

    /// Closes the episode, and gives the columns back. `last` holds the bytes of all observation columns of the final
    /// observation, if it is known.
    pub(crate) fn finish(mut self, end: End, last: Option<&[u8]>) -> (Episode, Columns) {
        if let Some(mut last) = last {
            for (target, column) in self.columns.observations.iter_mut().zip(&self.schema.observations) {
                let (row, rest) = last.split_at(column.row_bytes());
                target.extend_from_slice(row);
                last = rest;
            }
        }
        let Columns { observations, actions, masks, rewards, reward_known, log_probs, values, timestamps } =
            &self.columns;
        let columns: Vec<&MutableBuffer> = observations
            .iter()
            .chain(actions)
            .chain([rewards, timestamps, masks, reward_known, log_probs, values])
            .collect();
        let mut packed = pack(&columns).into_iter();
        let mut next = || packed.next().unwrap_or_default();
        let episode = Episode {
            number: self.number,
            actor_id: self.actor_id,
            len: self.len,
            observations: observations.iter().map(|_| next()).collect(),
            has_final_observation: last.is_some(),
            actions: actions.iter().map(|_| next()).collect(),
            rewards: next(),
            timestamps: next(),
            masks: Some(next()).filter(|_| self.schema.mask.is_some()),
            reward_known: Some(next()).filter(|_| self.rewards_missing > 0),
            log_probs: Some(next()).filter(|_| self.schema.log_prob),
            values: Some(next()).filter(|_| self.schema.value),
            schema: self.schema,
            policies: self.policies,
            terminated: end.terminated,
            truncated: end.truncated,
            complete: end.complete,
        };
        (episode, self.columns)
    }
}

/// Copies the columns into one allocation, each at a place that is aligned for every type.
fn pack(columns: &[&MutableBuffer]) -> Vec<Buffer> {
    let places = |end: usize| end.next_multiple_of(64);
    let mut packed = MutableBuffer::with_capacity(columns.iter().map(|column| places(column.len())).sum());
    let ranges: Vec<(usize, usize)> = columns
        .iter()
        .map(|column| {
            let start = packed.len();
            packed.extend_from_slice(column.as_slice());
            packed.resize(places(packed.len()), 0);
            (start, column.len())
        })
        .collect();
    let packed = Buffer::from(packed);
    ranges.into_iter().map(|(start, len)| packed.slice_with_length(start, len)).collect()
}

/// Makes room for `bytes` more, and gives the new place.
fn grow(target: &mut MutableBuffer, bytes: usize) -> &mut [u8] {
    let start = target.len();
    target.resize(start + bytes, 0);
    &mut target.as_slice_mut()[start..]
}

/// Appends the `count` entries of `size` bytes at `cells` of `source`.
fn gather(target: &mut MutableBuffer, source: &[u8], size: usize, count: usize, cells: impl Iterator<Item = usize>) {
    let target = grow(target, count * size);
    match size {
        // The usual sizes as single moves: a copy of a length known only at run time costs a call each.
        4 => gather_sized::<4>(target, source, cells),
        8 => gather_sized::<8>(target, source, cells),
        16 => gather_sized::<16>(target, source, cells),
        32 => gather_sized::<32>(target, source, cells),
        0 => {}
        _ => {
            for (entry, cell) in target.chunks_exact_mut(size).zip(cells) {
                entry.copy_from_slice(&source[cell * size..(cell + 1) * size]);
            }
        }
    }
}

fn gather_sized<const N: usize>(target: &mut [u8], source: &[u8], cells: impl Iterator<Item = usize>) {
    let (target, source) = (target.as_chunks_mut::<N>().0, source.as_chunks::<N>().0);
    for (entry, cell) in target.iter_mut().zip(cells) {
        *entry = source[cell];
    }
}
