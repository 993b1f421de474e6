//! What is sampled.

use relevo_core::trajectory::ColumnSpec;

use crate::{ring::Ticket, schema::WORD};

/// Rows of one type, one behind the other, in memory that is aligned for every type.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rows {
    words: Vec<u64>,
    bytes: usize,
}

impl Rows {
    /// So many bytes, of 0.
    pub fn new(bytes: usize) -> Self {
        Self { words: vec![0; bytes.div_ceil(WORD)], bytes }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.bytes]
    }

    /// The bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.bytes]
    }
}

/// Some transitions, column by column.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// How many there are.
    pub len: usize,
    /// The columns of the buffer's schema: of each transition's first step; the reward is the return of its steps.
    pub columns: Vec<Rows>,
    /// What was observed after the last step.
    pub next_observations: Rows,
    /// Whether the last step ended the episode by the environment's rules: then there is no value behind it.
    pub terminated: Vec<u8>,
    /// Whether something else ended the episode with it.
    pub truncated: Vec<u8>,
    /// How many steps each has.
    pub steps: Vec<u32>,
    /// γ to the power of that: by which the value behind it is multiplied.
    pub discounts: Vec<f32>,
    /// The environments.
    pub envs: Vec<u32>,
    /// Places in the buffer, 0 to its capacity.
    pub indices: Vec<i64>,
    /// What each step is called by in [`update_priorities`](crate::ReplayBuffer::update_priorities): no other step ever is.
    pub keys: Vec<u64>,
    /// Importance weights, at most 1.
    pub weights: Vec<f32>,
}

impl Batch {
    /// Room for `len` transitions.
    pub(crate) fn new(columns: &[ColumnSpec], observation: &ColumnSpec, len: usize) -> Self {
        Self {
            len,
            columns: columns.iter().map(|column| Rows::new(len * column.row_bytes())).collect(),
            next_observations: Rows::new(len * observation.row_bytes()),
            terminated: vec![0; len],
            truncated: vec![0; len],
            steps: vec![0; len],
            discounts: vec![0.0; len],
            envs: vec![0; len],
            indices: vec![0; len],
            keys: vec![0; len],
            weights: vec![1.0; len],
        }
    }
}

/// What a sampler has drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Draw {
    pub(crate) ticket: Ticket,
    /// The chance that it had.
    pub(crate) probability: f64,
}
