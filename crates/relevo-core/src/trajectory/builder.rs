//! Cutting episodes out of blocks: the open episode of one actor, gathered column by column.

use std::{ops::Range, sync::Arc};

use arrow_buffer::{Buffer, MutableBuffer};

use super::{
    block::{ActorTag, Block, Flags},
    episode::{ColumnSpec, Episode, PolicyRun, StepSchema},
    extra::ExtraColumn,
    finals::LastObservation,
    piece::Piece,
};

/// How an episode ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) terminated: bool,
    pub(crate) truncated: bool,
    pub(crate) complete: bool,
}

/// Columns of larger episodes are not used again: to them an allocation is nothing, to the memory they are.
const SPARE_BYTES: usize = 1 << 20;
/// Nor are those that have room for so many times what the episode took: with thousands of actors, each would come to have room for
/// the longest episode there ever was.
const SPARE_ROOM: usize = 4;

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
    extras: Vec<ExtraColumn>,
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
            extras: Vec::new(),
        }
    }

    /// Bytes that the columns hold.
    pub(crate) fn bytes(&self) -> usize {
        self.all().into_iter().map(MutableBuffer::len).sum::<usize>()
            + self.extras.iter().map(ExtraColumn::bytes).sum::<usize>()
    }

    /// Row `from` and all behind it, as columns of their own.
    fn tail(&self, schema: &StepSchema, from: usize) -> Self {
        let copy = |column: &MutableBuffer, row_bytes: usize| {
            let mut tail = MutableBuffer::new(0);
            tail.extend_from_slice(&column.as_slice()[(from * row_bytes).min(column.len())..]);
            tail
        };
        let keyed = |columns: &[MutableBuffer], specs: &[ColumnSpec]| {
            columns.iter().zip(specs).map(|(column, spec)| copy(column, spec.row_bytes())).collect()
        };
        Self {
            observations: keyed(&self.observations, &schema.observations),
            actions: keyed(&self.actions, &schema.actions),
            masks: copy(&self.masks, schema.mask.unwrap_or(0)),
            rewards: copy(&self.rewards, 8),
            reward_known: copy(&self.reward_known, 1),
            log_probs: copy(&self.log_probs, 4),
            values: copy(&self.values, 4),
            timestamps: copy(&self.timestamps, 8),
            extras: self.extras.iter().zip(&schema.extras).map(|(column, spec)| column.tail(spec, from)).collect(),
        }
    }

    /// In the order in which [`EpisodeBuilder::episode`] takes them.
    fn all(&self) -> Vec<&MutableBuffer> {
        let Self { observations, actions, masks, rewards, reward_known, log_probs, values, timestamps, extras: _ } =
            self;
        let others = [masks, rewards, reward_known, log_probs, values, timestamps];
        observations.iter().chain(actions).chain(others).collect()
    }

    fn into_buffers(self) -> Vec<Buffer> {
        let Self { observations, actions, masks, rewards, reward_known, log_probs, values, timestamps, extras: _ } =
            self;
        let others = [masks, rewards, reward_known, log_probs, values, timestamps];
        observations.into_iter().chain(actions).chain(others).map(Buffer::from).collect()
    }

    /// The last step of an episode that others follow.
    fn of_last(episode: &Episode) -> Self {
        let last = |buffer: &Buffer| {
            let row_bytes = buffer.len() / episode.len;
            let mut row = MutableBuffer::new(0);
            row.extend_from_slice(&buffer.as_slice()[buffer.len() - row_bytes..]);
            row
        };
        let optional = |buffer: &Option<Buffer>| buffer.as_ref().map_or_else(|| MutableBuffer::new(0), last);
        let mut reward_known = optional(&episode.reward_known);
        reward_known.resize(1, 1);
        let extras = episode.schema.extras.iter().zip(&episode.extras);
        let extras = extras.map(|(spec, values)| ExtraColumn::of(&values.slice(spec, episode.len - 1..episode.len)));
        Self {
            observations: episode.observations.iter().map(last).collect(),
            actions: episode.actions.iter().map(last).collect(),
            masks: optional(&episode.masks),
            rewards: last(&episode.rewards),
            reward_known,
            log_probs: optional(&episode.log_probs),
            values: optional(&episode.values),
            timestamps: last(&episode.timestamps),
            extras: extras.collect(),
        }
    }

    fn clear(&mut self) {
        let Self { observations, actions, masks, rewards, reward_known, log_probs, values, timestamps, extras: _ } =
            self;
        let others = [masks, rewards, reward_known, log_probs, values, timestamps];
        observations.iter_mut().chain(actions).chain(others).for_each(MutableBuffer::clear);
    }
}

/// The open episode of one actor.
#[derive(Debug)]
pub(crate) struct EpisodeBuilder {
    number: u64,
    actor: ActorTag,
    schema: Arc<StepSchema>,
    /// Steps that the columns hold.
    len: usize,
    columns: Columns,
    rewards_missing: usize,
    policies: Vec<PolicyRun>,
    /// How far the actor's random stream has been used.
    draws: u64,
    /// Steps before those that the columns hold: they went to the disk, and were let go.
    gone: usize,
    /// Steps of the columns that went to the disk, and bytes of those.
    written: usize,
    written_bytes: usize,
}

impl EpisodeBuilder {
    pub(crate) fn new(number: u64, actor: ActorTag, schema: Arc<StepSchema>, mut columns: Columns) -> Self {
        columns.clear();
        columns.observations.resize_with(schema.observations.len(), || MutableBuffer::new(0));
        columns.actions.resize_with(schema.actions.len(), || MutableBuffer::new(0));
        columns.extras = schema.extras.iter().map(ExtraColumn::new).collect();
        Self {
            number,
            actor,
            len: 0,
            columns,
            rewards_missing: 0,
            policies: Vec::new(),
            schema,
            draws: 0,
            gone: 0,
            written: 0,
            written_bytes: 0,
        }
    }

    /// Whether steps of `schema` can go on in this episode: everything must be the same, but that either may be without masks.
    pub(crate) fn continues(&self, schema: &Arc<StepSchema>) -> bool {
        let masks_differ = self.schema.mask.zip(schema.mask).is_some_and(|(known, new)| known != new);
        Arc::ptr_eq(&self.schema, schema)
            || (!masks_differ
                && self.schema.observations == schema.observations
                && self.schema.actions == schema.actions
                && self.schema.log_prob == schema.log_prob
                && self.schema.value == schema.value
                && self.schema.extras == schema.extras)
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
        for (target, source) in columns.extras.iter_mut().zip(&block.extras) {
            cells().for_each(|cell| target.push(source.get(cell)));
        }
        self.append_masks(block, count, cells());
        let (segments, policy) = (block.layout.segments.len(), &block.layout.segments[segment].policy);
        for row in rows.clone() {
            let version = block.versions[row * segments + segment];
            if !self.policies.last().is_some_and(|run| run.version == version && run.policy == *policy) {
                self.policies.push(PolicyRun { from: self.len + row - rows.start, policy: policy.clone(), version });
            }
        }
        self.len += count;
        self.draws = block.draws.get(column).copied().unwrap_or(self.draws);
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

    /// Steps so far.
    pub(crate) fn steps(&self) -> usize {
        self.gone + self.len
    }

    /// Bytes of the steps that it holds.
    pub(crate) fn bytes(&self) -> usize {
        self.columns.bytes()
    }

    /// Bytes of those that have not gone to the disk.
    pub(crate) fn unwritten_bytes(&self) -> usize {
        self.columns.bytes() - self.written_bytes
    }

    /// The steps that have not gone to the disk, but for the last, which says how the episode ends: as a piece for it. With
    /// `keep`, they stay for the whole episode as well.
    pub(crate) fn part(&mut self, keep: bool) -> Option<Piece> {
        let (from, until) = (self.written, self.len - 1);
        if from >= until {
            return None;
        }
        let end = End { terminated: false, truncated: false, complete: false };
        let first_step = (self.gone + from) as u32;
        let columns = if keep {
            self.columns.tail(&self.schema, from)
        } else {
            std::mem::replace(&mut self.columns, Columns::new())
        };
        let (start, len) = if keep { (from, self.len - from) } else { (0, self.len) };
        let policies = policies_from(&self.policies, start);
        let (all, _) = self.episode(columns, len, policies, end, false);
        if keep {
            (self.written, self.written_bytes) = (until, self.columns.bytes());
        } else {
            self.written_bytes = 0;
            self.columns = Columns::of_last(&all);
            self.policies = policies_from(&self.policies, until);
            (self.gone, self.written, self.len) = (self.gone + until, 0, 1);
        }
        let episode = all.part(from - start..until - start);
        Some(Piece {
            episode: Arc::new(episode),
            first_step,
            last: false,
            ordinal: self.actor.ordinal,
            draws: self.draws,
        })
    }

    /// Closes the episode, with its final observation if that is known.
    pub(crate) fn finish(mut self, end: End, last: Option<LastObservation<'_>>) -> Finished {
        if let Some(LastObservation { mut bytes, texts }) = last {
            for (target, column) in self.columns.observations.iter_mut().zip(&self.schema.observations) {
                let (row, rest) = bytes.split_at(column.row_bytes());
                target.extend_from_slice(row);
                bytes = rest;
            }
            let observed = self.columns.extras.iter_mut().zip(&self.schema.extras).filter(|(_, spec)| spec.observed);
            observed.zip(texts).for_each(|((target, _), text)| target.push(text.as_bytes()));
        }
        let columns = std::mem::replace(&mut self.columns, Columns::new());
        let policies = std::mem::take(&mut self.policies);
        let (episode, spare) = self.episode(columns, self.len, policies, end, last.is_some());
        let episode = Arc::new(episode);
        let rest = if self.written == 0 { episode.clone() } else { Arc::new(episode.part(self.written..self.len)) };
        let piece = Piece {
            episode: rest,
            first_step: (self.gone + self.written) as u32,
            last: true,
            ordinal: self.actor.ordinal,
            draws: self.draws,
        };
        Finished { steps: self.gone + self.len, whole: (self.gone == 0).then_some(episode), piece, spare }
    }

    /// An episode of these columns; they come back where they are small.
    fn episode(
        &self,
        columns: Columns,
        len: usize,
        policies: Vec<PolicyRun>,
        end: End,
        has_final_observation: bool,
    ) -> (Episode, Option<Columns>) {
        let extras = columns.extras.iter().map(ExtraColumn::values).collect();
        let (counts, bytes) = ((columns.observations.len(), columns.actions.len()), columns.bytes());
        let (buffers, spare) = if bytes <= SPARE_BYTES {
            let is_snug = columns.all().into_iter().map(MutableBuffer::capacity).sum::<usize>() <= SPARE_ROOM * bytes;
            (pack(&columns.all()), Some(columns).filter(|_| is_snug))
        } else {
            (columns.into_buffers(), None)
        };
        let mut buffers = buffers.into_iter();
        let mut next = || buffers.next().unwrap_or_default();
        let episode = Episode {
            number: self.number,
            actor_id: self.actor.id,
            len,
            observations: (0..counts.0).map(|_| next()).collect(),
            has_final_observation,
            actions: (0..counts.1).map(|_| next()).collect(),
            masks: Some(next()).filter(|_| self.schema.mask.is_some()),
            rewards: next(),
            reward_known: Some(next()).filter(|_| self.rewards_missing > 0),
            log_probs: Some(next()).filter(|_| self.schema.log_prob),
            values: Some(next()).filter(|_| self.schema.value),
            timestamps: next(),
            extras,
            schema: self.schema.clone(),
            policies,
            terminated: end.terminated,
            truncated: end.truncated,
            complete: end.complete,
        };
        (episode, spare)
    }
}

/// An episode that has come to its end.
pub(crate) struct Finished {
    /// Steps of all its pieces.
    pub(crate) steps: usize,
    /// All of it, unless some went to the disk and was let go.
    pub(crate) whole: Option<Arc<Episode>>,
    /// What is left for the disk.
    pub(crate) piece: Piece,
    /// Its columns, for the next one.
    pub(crate) spare: Option<Columns>,
}

/// The runs of policies from step `first` on, counted from there.
pub(crate) fn policies_from(runs: &[PolicyRun], first: usize) -> Vec<PolicyRun> {
    let before = runs.iter().rposition(|run| run.from <= first).unwrap_or(0);
    runs[before..].iter().map(|run| PolicyRun { from: run.from.saturating_sub(first), ..run.clone() }).collect()
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
