//! What the policies of a group remember of its actors, kept as the models take it: a pass reads it in place, and what it gives
//! for the next step takes its place once the whole call has worked.

use std::{ops::Range, sync::Arc};

use arrow_buffer::MutableBuffer;
use smallvec::SmallVec;

use super::{
    act::first_nan,
    actor::Actor,
    batch::Rows,
    group::{ActorGroup, GroupState, Work},
};
use crate::{
    error::Result,
    policy::{MemorySpec, Worker},
    tensor::Tensor,
};

/// The memories of actors that lie side by side in a block and follow one policy.
#[derive(Debug)]
pub(super) struct Memory {
    spec: Arc<MemorySpec>,
    rows: usize,
    /// One tensor for each state.
    current: Vec<Tensor>,
    /// What the last pass gave, until its call has worked.
    next: Vec<Tensor>,
    /// Whether the only actor's state is on its way with a single call, and has not been forgotten since.
    pub(super) sent: bool,
}

impl Memory {
    /// Memories of actors that begin their episodes.
    pub(super) fn new(spec: Arc<MemorySpec>, rows: usize) -> Self {
        let tensors = || spec.states.iter().map(|state| Tensor::zeros(state.dtype, &state.shape(rows))).collect();
        let mut memory = Self { rows, current: tensors(), next: tensors(), sent: false, spec: spec.clone() };
        (0..rows).for_each(|row| memory.forget(row));
        memory
    }

    /// Lays everything out as another version of the policy takes it, if that is not the same.
    pub(super) fn adopt(&mut self, spec: &Arc<MemorySpec>) {
        if Arc::ptr_eq(&self.spec, spec) {
            return;
        }
        let mut other = Self::new(spec.clone(), self.rows);
        (0..self.rows).for_each(|row| other.load(row, &self.save(row)));
        *self = Self { sent: self.sent, ..other };
    }

    /// The bytes of each state, as the model takes them.
    pub(super) fn states(&self) -> SmallVec<[&[u8]; 4]> {
        self.current.iter().map(Tensor::bytes).collect()
    }

    /// Takes over what a pass gave for the next step.
    pub(super) fn catch(&mut self, worker: &mut Worker) {
        worker.exchange_states(&mut self.next);
    }

    /// The call has worked: its step is over.
    pub(super) fn advance(&mut self) {
        std::mem::swap(&mut self.current, &mut self.next);
    }

    /// The actor in `row` begins an episode.
    pub(super) fn forget(&mut self, row: usize) {
        self.load(row, &[]);
        self.sent = false;
    }

    /// What the actor in `row` remembers: the rows of all states, one behind the other. Empty where there are none.
    pub(super) fn save(&self, row: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.spec.states.iter().map(crate::policy::StateSpec::row_bytes).sum()];
        let mut rest = &mut bytes[..];
        for (state, tensor) in self.spec.states.iter().zip(&self.current) {
            let (own, others) = rest.split_at_mut(state.row_bytes());
            state.read_row(tensor.bytes(), self.rows, row, own);
            rest = others;
        }
        bytes
    }

    /// Gives the actor in `row` what [`Memory::save`] told; nothing stands for the beginning of an episode.
    pub(super) fn load(&mut self, row: usize, mut bytes: &[u8]) {
        for (state, tensor) in self.spec.states.iter().zip(&mut self.current) {
            let (own, others) = bytes.split_at_checked(state.row_bytes()).unwrap_or_default();
            state.write_row(tensor.bytes_mut(), self.rows, row, own);
            bytes = others;
        }
    }

    /// The memory of the actor in `row`, for a pass of its own.
    pub(super) fn of_one(&self, row: usize) -> Self {
        let mut memory = Self::new(self.spec.clone(), 1);
        memory.load(0, &self.save(row));
        memory
    }

    /// Takes over what a batch gave for the next step of the only actor, in its row `from`, unless it was forgotten meanwhile.
    pub(super) fn take_answer(&mut self, rows: &Rows, from: usize) {
        if !std::mem::take(&mut self.sent) {
            return;
        }
        for ((state, tensor), next) in self.spec.states.iter().zip(&mut self.current).zip(&rows.next_states) {
            let size = state.row_bytes();
            tensor.bytes_mut().copy_from_slice(&next.as_slice()[from * size..][..size]);
        }
    }
}

/// The first of `rows` rows for which a pass gave a state with NaN, and the state's name.
pub(super) fn nan_state<'a>(spec: &'a MemorySpec, worker: &Worker, rows: usize) -> Option<(usize, &'a str)> {
    spec.states.iter().zip(worker.next_states()).find_map(|(state, tensor)| {
        let element = first_nan(tensor.bytes(), state.dtype)?;
        Some((state.row_of(element, rows), state.name.as_str()))
    })
}

/// The states of `rows` of a batch as the model takes them. `given` has them row after row; where that is not how the model takes
/// them, they are laid out in `buffers`.
pub(super) fn lay_out<'a>(
    spec: &MemorySpec,
    given: &'a [MutableBuffer],
    rows: &Range<usize>,
    buffers: &'a mut [MutableBuffer],
) -> SmallVec<[&'a [u8]; 4]> {
    let states = spec.states.iter().zip(given.iter().zip(buffers));
    let laid_out = states.map(|(state, (given, buffer))| {
        let size = state.row_bytes();
        let given = &given.as_slice()[rows.start * size..rows.end * size];
        if state.rows_come_first() {
            return given;
        }
        buffer.resize(given.len(), 0);
        for (row, bytes) in given.chunks_exact(size.max(1)).enumerate() {
            state.write_row(buffer.as_slice_mut(), rows.len(), row, bytes);
        }
        buffer.as_slice()
    });
    laid_out.collect()
}

/// Copies what a pass for `rows` of a batch gave for the next step into `next`, row after row.
pub(super) fn gather_next(spec: &MemorySpec, worker: &Worker, rows: &Range<usize>, next: &mut [MutableBuffer]) {
    for ((state, tensor), next) in spec.states.iter().zip(worker.next_states()).zip(next) {
        let size = state.row_bytes();
        let next = &mut next.as_slice_mut()[rows.start * size..rows.end * size];
        for (row, bytes) in next.chunks_exact_mut(size.max(1)).enumerate() {
            state.read_row(tensor.bytes(), rows.len(), row, bytes);
        }
    }
}

impl ActorGroup {
    /// Lets actors begin anew: what a recurrent policy remembers of them is as at the start of an episode. `rows` has a byte for
    /// each actor, not 0 for those; without it, all begin anew. Where an actor still waits for an action, what that one would
    /// be remembered by is lost.
    ///
    /// # Errors
    /// [`Error::State`](crate::Error::State) where the agent is gone, or stayed in the process that this one was forked off.
    pub fn reset_state(&self, rows: Option<&[u8]>) -> Result<()> {
        let agent = self.agent()?;
        agent.check_here()?;
        let chosen = |row: usize| rows.is_none_or(|rows| rows[row] != 0);
        {
            let mut state = self.state.lock();
            if let GroupState { leased: true, work: Some(work), .. } = &mut *state {
                let columns = 0..work.layout.columns();
                for column in columns {
                    if chosen(work.caller_row(column)) {
                        work.forget(column);
                    }
                }
                return Ok(());
            }
        }
        let _structure = agent.structure.lock();
        let actors = self.actors.iter().enumerate();
        actors.filter(|(row, _)| chosen(*row)).for_each(|(_, actor)| actor.forget());
        Ok(())
    }
}

impl Work {
    /// The actor in `column` begins an episode.
    pub(super) fn forget(&mut self, column: usize) {
        if let Some((segment, row)) = self.place(column) {
            let memory = &mut self.memories[segment];
            // What episodes begin with may be another version's.
            memory.adopt(&self.policies[segment].current().memory);
            memory.forget(row);
        }
    }

    /// What `actor` in `column` takes along; nothing, if it follows another policy than it did here.
    pub(super) fn remembered(&self, actor: &Actor, column: usize) -> Vec<u8> {
        let place = self.place(column).filter(|(segment, _)| Arc::ptr_eq(&self.policies[*segment], &actor.policy()));
        place.map(|(segment, row)| self.memories[segment].save(row)).unwrap_or_default()
    }

    /// The segment of `column`, and its place there.
    fn place(&self, column: usize) -> Option<(usize, usize)> {
        let mut segments = self.layout.segments.iter();
        let segment = segments.position(|segment| (segment.from..segment.until).contains(&column))?;
        Some((segment, column - self.layout.segments[segment].from))
    }
}
