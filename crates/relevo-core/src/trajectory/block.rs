//! A block: the steps of a group of actors, time-major. One row is one call of `act` for all of them. The runtime copies
//! observations in once, the policy reads them from here, and the recorder cuts episodes out of full blocks, off the
//! caller's path.

use std::sync::Arc;

use arrow_buffer::MutableBuffer;
use uuid::Uuid;

use super::{
    episode::StepSchema,
    extra::{ExtraCells, ExtraSpec},
};

/// A block is sealed when it holds about this many bytes: half of what a core's cache usually has.
const TARGET_BYTES: usize = 1 << 19;
/// But no more than this for each actor, so that thousands of handles on single actors stay small.
const TARGET_BYTES_PER_ACTOR: usize = 1 << 14;
/// Rows of a group's first block; later ones grow to the target.
const FIRST_ROWS: usize = 16;
/// Bounds on the rows of a block, whatever the size of a row. Two are needed where an open step moves on.
const ROW_BOUNDS: (usize, usize) = (2, 4096);

/// What happened to one actor in one row, as bits of a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// The actor was given an action in this row.
    pub const ACTED: u8 = 1;
    /// The step belongs into the trajectory.
    pub const RECORDED: u8 = 2;
    /// What the action earned has not been told yet.
    pub const OPEN: u8 = 4;
    /// The reward is known.
    pub const REWARDED: u8 = 8;
    /// The environment ended the episode.
    pub const TERMINATED: u8 = 16;
    /// Something outside the environment's rules ended the episode.
    pub const TRUNCATED: u8 = 32;
    /// The final observation is among the block's finals.
    pub const FINAL: u8 = 64;

    /// Whether all of `bits` are set.
    pub fn has(self, bits: u8) -> bool {
        self.0 & bits == bits
    }

    /// Whether the episode ended with this step.
    pub fn ended(self) -> bool {
        self.0 & (Self::TERMINATED | Self::TRUNCATED) != 0
    }
}

/// Which actor a column belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActorTag {
    /// Ordinal within the run.
    pub ordinal: u32,
    /// Id when the block was laid out.
    pub id: Uuid,
}

/// Neighbouring columns whose actors follow the same policy.
#[derive(Debug, Clone)]
pub struct Segment {
    /// First column.
    pub from: usize,
    /// One past the last column.
    pub until: usize,
    /// The policy's name.
    pub policy: Arc<str>,
    /// What its steps record.
    pub schema: Arc<StepSchema>,
}

/// How a block's columns are laid out. All segments share the observation and action columns.
#[derive(Debug, Clone)]
pub struct BlockLayout {
    /// The actors, in column order.
    pub actors: Vec<ActorTag>,
    /// The policies, in column order; together they cover all columns.
    pub segments: Vec<Segment>,
    /// Width of the action masks, if this block records masks.
    pub mask: Option<usize>,
    /// The columns that callers fill.
    pub extras: Arc<[ExtraSpec]>,
    /// Whether rows are kept for a recorder; if not, the one row is used again and again.
    pub recorded: bool,
}

impl BlockLayout {
    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.actors.len()
    }

    /// The columns that all segments share: those of the first.
    pub fn schema(&self) -> &StepSchema {
        &self.segments[0].schema
    }

    /// Whether any policy tells log-probabilities.
    pub fn log_prob(&self) -> bool {
        self.segments.iter().any(|segment| segment.schema.log_prob)
    }

    /// Whether any policy tells values.
    pub fn value(&self) -> bool {
        self.segments.iter().any(|segment| segment.schema.value)
    }

    fn row_bytes(&self) -> usize {
        let schema = self.schema();
        let tensors: usize = schema.observations.iter().chain(&schema.actions).map(super::ColumnSpec::row_bytes).sum();
        let extras: usize = self.extras.iter().map(ExtraSpec::cell_bytes).sum();
        // Reward, flags, log-probability and value, besides the tensors, the mask and the extra columns.
        (tensors + extras + self.mask.unwrap_or(0) + 8 + 1 + 4 + 4) * self.columns()
    }

    /// Bytes of a block of `rows` rows, without texts.
    pub fn bytes(&self, rows: usize) -> usize {
        self.row_bytes() * rows
    }

    /// Rows of the next block after a full one of `previous` rows (0 for the first).
    pub fn capacity_after(&self, previous: usize) -> usize {
        if !self.recorded {
            return 1;
        }
        let target = TARGET_BYTES.min(TARGET_BYTES_PER_ACTOR * self.columns());
        let full = (target / self.row_bytes().max(1)).clamp(ROW_BOUNDS.0, ROW_BOUNDS.1);
        full.min(if previous == 0 { FIRST_ROWS } else { previous * 4 })
    }
}

/// The observation after an episode's last action.
#[derive(Debug, Clone, Copy)]
pub struct FinalObservation {
    /// Row of the last action.
    pub row: u32,
    /// Column of the actor.
    pub column: u32,
}

/// The steps of a group of actors, time-major: entry `row * columns + column` is one step.
#[derive(Debug)]
pub struct Block {
    /// How the columns are laid out.
    pub layout: Arc<BlockLayout>,
    /// How many rows fit.
    pub capacity: usize,
    /// How many rows are filled.
    pub rows: usize,
    /// One buffer for each observation column.
    pub observations: Vec<MutableBuffer>,
    /// One buffer for each action column.
    pub actions: Vec<MutableBuffer>,
    /// Masks, one byte for each choice.
    pub masks: Vec<u8>,
    /// Log-probabilities, if any policy tells them.
    pub log_probs: Vec<f32>,
    /// Values, if any policy tells them.
    pub values: Vec<f32>,
    /// Rewards; valid where [`Flags::REWARDED`].
    pub rewards: Vec<f64>,
    /// [`Flags`].
    pub flags: Vec<u8>,
    /// Policy version of each row and segment.
    pub versions: Vec<u64>,
    /// Nanoseconds since 1970 of each row.
    pub timestamps: Vec<i64>,
    /// How far each actor's random stream had been used when the block was sealed.
    pub draws: Vec<u64>,
    /// Final observations, in the order in which episodes ended.
    pub finals: Vec<FinalObservation>,
    /// Their bytes: all observation columns of the first, then of the second, and so on.
    pub final_bytes: Vec<u8>,
    /// Their texts: all that are observed of the first, then of the second, and so on.
    pub final_texts: Vec<String>,
    /// One for each extra column.
    pub extras: Vec<ExtraCells>,
}

impl Block {
    /// An empty block for `capacity` rows.
    pub fn new(layout: Arc<BlockLayout>, capacity: usize) -> Self {
        let cells = capacity * layout.columns();
        let schema = layout.schema();
        let zeroed = |columns: &[super::ColumnSpec]| {
            columns.iter().map(|column| MutableBuffer::from_len_zeroed(cells * column.row_bytes())).collect()
        };
        Self {
            capacity,
            rows: 0,
            observations: zeroed(&schema.observations),
            actions: zeroed(&schema.actions),
            masks: vec![1; cells * layout.mask.unwrap_or(0)],
            log_probs: vec![0.0; if layout.log_prob() { cells } else { 0 }],
            values: vec![0.0; if layout.value() { cells } else { 0 }],
            rewards: vec![0.0; cells],
            flags: vec![0; cells],
            versions: vec![0; capacity * layout.segments.len()],
            timestamps: vec![0; capacity],
            draws: Vec::new(),
            finals: Vec::new(),
            final_bytes: Vec::new(),
            final_texts: Vec::new(),
            extras: layout.extras.iter().map(|spec| ExtraCells::new(spec, cells)).collect(),
            layout,
        }
    }

    /// Forgets all rows; the allocations stay.
    pub fn clear(&mut self) {
        self.rows = 0;
        self.draws.clear();
        self.finals.clear();
        self.final_bytes.clear();
        self.final_texts.clear();
        self.extras.iter_mut().for_each(ExtraCells::clear);
    }

    /// Bytes that the block holds, texts among them.
    pub fn bytes(&self) -> usize {
        self.layout.bytes(self.capacity)
            + self.extras.iter().map(ExtraCells::text_bytes).sum::<usize>()
            + self.final_texts.iter().map(String::len).sum::<usize>()
    }

    /// Whether it is to be sealed before another row comes.
    pub fn is_full(&self) -> bool {
        self.rows == self.capacity || self.extras.iter().map(ExtraCells::text_bytes).sum::<usize>() > TARGET_BYTES
    }

    /// How many texts belong to an observation.
    pub(crate) fn observed_texts(&self) -> usize {
        self.layout.extras.iter().filter(|spec| spec.observed).count()
    }

    /// The observed texts of one entry, as finals have them.
    pub(crate) fn texts_of(&self, row: usize, column: usize) -> Vec<String> {
        let cell = row * self.layout.columns() + column;
        let observed = self.layout.extras.iter().zip(&self.extras).filter(|(spec, _)| spec.observed);
        observed.map(|(_, cells)| String::from_utf8_lossy(cells.get(cell)).into_owned()).collect()
    }

    /// The cells of `row`.
    pub fn cells(&self, row: usize) -> std::ops::Range<usize> {
        let columns = self.layout.columns();
        row * columns..(row + 1) * columns
    }

    /// Bytes of one entry of an observation column.
    pub fn observation_bytes(&self, index: usize) -> usize {
        self.layout.schema().observations[index].row_bytes()
    }

    /// The bytes of observation column `index` in `row`, to be written.
    pub fn observation_row_mut(&mut self, index: usize, row: usize) -> &mut [u8] {
        let (size, cells) = (self.observation_bytes(index), self.cells(row));
        &mut self.observations[index].as_slice_mut()[cells.start * size..cells.end * size]
    }

    /// Bytes of all observation columns of one final observation.
    pub fn final_size(&self) -> usize {
        self.layout.schema().observations.iter().map(super::ColumnSpec::row_bytes).sum()
    }

    /// The bytes of all observation columns of one entry, one behind the other, as finals have them.
    pub(crate) fn observation_of(&self, row: usize, column: usize) -> Vec<u8> {
        let cell = row * self.layout.columns() + column;
        let mut bytes = Vec::with_capacity(self.final_size());
        for (index, buffer) in self.observations.iter().enumerate() {
            let size = self.observation_bytes(index);
            bytes.extend_from_slice(&buffer.as_slice()[cell * size..(cell + 1) * size]);
        }
        bytes
    }

    /// Copies `row` of `from`, whose layout is the same, into the next free row, all but the flags; gives the new row.
    pub fn copy_row(&mut self, from: &Block, row: usize) -> usize {
        let to = self.rows;
        let (source, target) = (from.cells(row), self.cells(to));
        for index in 0..self.observations.len() {
            let size = self.observation_bytes(index);
            self.observations[index].as_slice_mut()[target.start * size..target.end * size]
                .copy_from_slice(&from.observations[index].as_slice()[source.start * size..source.end * size]);
        }
        let columns = self.layout.schema().actions.iter().map(super::ColumnSpec::row_bytes);
        for (size, (to, from)) in columns.zip(self.actions.iter_mut().zip(&from.actions)) {
            to.as_slice_mut()[target.start * size..target.end * size]
                .copy_from_slice(&from.as_slice()[source.start * size..source.end * size]);
        }
        if let Some(width) = self.layout.mask {
            self.masks[target.start * width..target.end * width]
                .copy_from_slice(&from.masks[source.start * width..source.end * width]);
        }
        if !self.log_probs.is_empty() {
            self.log_probs[target.clone()].copy_from_slice(&from.log_probs[source.clone()]);
        }
        if !self.values.is_empty() {
            self.values[target.clone()].copy_from_slice(&from.values[source.clone()]);
        }
        self.rewards[target.clone()].copy_from_slice(&from.rewards[source.clone()]);
        for (to, from) in self.extras.iter_mut().zip(&from.extras) {
            to.copy(target.start, from, source.clone());
        }
        let segments = self.layout.segments.len();
        self.versions[to * segments..(to + 1) * segments]
            .copy_from_slice(&from.versions[row * segments..(row + 1) * segments]);
        self.timestamps[to] = from.timestamps[row];
        self.rows += 1;
        to
    }
}
