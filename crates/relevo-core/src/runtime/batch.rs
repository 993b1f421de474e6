//! A batch of single calls: rows of several actors, one forward pass for all of them, an answer for each.

use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use arrow_buffer::MutableBuffer;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use smallvec::SmallVec;

use super::{
    handover::{Latch, NEVER},
    memory::{Memory, gather_next, lay_out, nan_state},
};
use crate::{
    error::{Error, Result},
    policy::{HeadError, HeadRequest, HeadRows, PolicySlot, PolicyVersion, Worker, random::Stream},
    tensor::Tensor,
    trajectory::StepSchema,
};

/// Raw outputs by name.
pub(super) type NamedTensors = Vec<(String, Tensor)>;

/// Rows of several actors of one policy, and their answers.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) latch: Latch,
    /// Callers that have not let go of it.
    callers: AtomicUsize,
    /// Not held while the batch runs, as `rows` is.
    tally: Mutex<Tally>,
    rows: RwLock<Rows>,
}

/// Who of a batch's actors is out.
#[derive(Debug, Default)]
struct Tally {
    rows: usize,
    /// Rows whose actors are waited for once they have their answers.
    expected: usize,
    /// Those among them whose caller does not wait any more.
    abandoned: usize,
    /// Since when the answered actors are out, in epochs of the hand-over; `None` before the batch has run.
    epoch: Option<u64>,
}

/// What a caller adds to a batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row<'a> {
    /// The bytes of each observation column.
    pub(super) observations: &'a [&'a [u8]],
    /// One byte for each choice, 0 where it is not allowed.
    pub(super) mask: Option<&'a [u8]>,
    pub(super) deterministic: Option<bool>,
    pub(super) stream: Stream,
    /// What the policy remembers of the actor.
    pub(super) memory: &'a Memory,
    /// When it came, in nanoseconds of the router's clock.
    pub(super) came: u64,
}

/// What answers a batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Policy<'a> {
    pub(super) slot: &'a PolicySlot,
    pub(super) version: &'a PolicyVersion,
    /// The run's seed.
    pub(super) seed: u64,
}

/// The rows of a batch, and after its run their answers.
#[derive(Debug)]
pub(super) struct Rows {
    schema: Arc<StepSchema>,
    mask_width: usize,
    pub(super) observations: Vec<MutableBuffer>,
    pub(super) masks: Vec<u8>,
    /// For each state, the rows one behind the other, and the same for the next step.
    states: Vec<MutableBuffer>,
    pub(super) next_states: Vec<MutableBuffer>,
    /// A state's rows as the model takes them, where they do not lie one behind the other there.
    laid_out: Vec<MutableBuffer>,
    masked: bool,
    streams: Vec<Stream>,
    deterministic: Vec<Option<bool>>,
    /// Sum of the times when they came.
    pub(super) came: u128,
    pub(super) answers: Answers,
    /// Answers of one kind of row, where a batch has several.
    other_answers: Answers,
    /// The version that answered.
    pub(super) version: u64,
    /// Whether the model panicked, and its worker is not to be used again.
    panicked: bool,
    /// Whether it was the policy that failed.
    pub(super) policy_failed: bool,
    /// Why a row has no answer. Empty where all have.
    failures: Vec<Option<Error>>,
    /// Raw outputs of each row, where they are kept.
    outputs: Vec<Option<NamedTensors>>,
}

/// Actions and what the policy said of them, a row for each actor.
#[derive(Debug, Default)]
pub(super) struct Answers {
    pub(super) actions: Vec<MutableBuffer>,
    pub(super) log_probs: Vec<f32>,
    pub(super) values: Vec<f32>,
}

impl Batch {
    /// An empty batch.
    pub(super) fn new(slot: &PolicySlot) -> Self {
        let version = slot.current();
        let states = || version.memory.states.iter().map(|_| MutableBuffer::new(0)).collect();
        Self {
            latch: Latch::default(),
            callers: AtomicUsize::new(0),
            tally: Mutex::default(),
            rows: RwLock::new(Rows {
                schema: version.schema.clone(),
                mask_width: version.mask_width().unwrap_or(0),
                observations: version.schema.observations.iter().map(|_| MutableBuffer::new(0)).collect(),
                masks: Vec::new(),
                states: states(),
                next_states: states(),
                laid_out: states(),
                masked: false,
                streams: Vec::new(),
                deterministic: Vec::new(),
                came: 0,
                answers: Answers::default(),
                other_answers: Answers::default(),
                version: 0,
                panicked: false,
                policy_failed: false,
                failures: Vec::new(),
                outputs: Vec::new(),
            }),
        }
    }

    /// Forgets all rows; the allocations stay.
    pub(super) fn clear(&mut self) {
        self.latch.reset();
        *self.callers.get_mut() = 0;
        *self.tally.get_mut() = Tally::default();
        self.rows.get_mut().clear();
    }

    /// Keeps it for one caller more, until that lets go.
    pub(super) fn join(&self) {
        self.callers.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds a row; gives its number.
    pub(super) fn add(&self, row: &Row<'_>, expected: bool) -> usize {
        self.join();
        let mut tally = self.tally.lock();
        tally.rows += 1;
        tally.expected += usize::from(expected);
        drop(tally);
        self.rows.write().add(row)
    }

    /// Rows so far.
    pub(super) fn len(&self) -> usize {
        self.tally.lock().rows
    }

    /// Since when the answered actors are out.
    pub(super) fn epoch(&self) -> u64 {
        self.tally.lock().epoch.unwrap_or(NEVER)
    }

    /// The rows, and the answers once the latch is open.
    pub(super) fn rows(&self) -> RwLockReadGuard<'_, Rows> {
        self.rows.read()
    }

    /// Tells that the caller of an expected row does not wait for its answer any more. Gives the epoch since which its actor
    /// counts as out, if it does already.
    pub(super) fn abandon(&self) -> Option<u64> {
        let mut tally = self.tally.lock();
        tally.abandoned += 1;
        tally.epoch
    }

    /// Lets go of it; whether nobody else holds it.
    pub(super) fn let_go(&self) -> bool {
        self.callers.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Works out the answers with a worker of the policy's, which must not be used again where `false` is given.
    pub(super) fn infer(&self, policy: &Policy<'_>, worker: &mut Worker) -> bool {
        let rows = &mut *self.rows.write();
        rows.infer_all(policy, worker);
        !rows.panicked
    }

    /// Answers all rows with an error.
    pub(super) fn fail(&self, error: &Error) {
        let rows = &mut *self.rows.write();
        // It may have failed half-way.
        rows.policy_failed = false;
        rows.failures.clear();
        rows.failures.resize(rows.streams.len(), Some(error.clone()));
    }

    /// Lets `finish` count the actors that have their answer, and notes the epoch that it gives.
    pub(super) fn finish(&self, finish: impl FnOnce(usize) -> u64) {
        let mut tally = self.tally.lock();
        tally.epoch = Some(finish(tally.expected - tally.abandoned));
    }
}

impl Rows {
    fn clear(&mut self) {
        self.observations.iter_mut().for_each(MutableBuffer::clear);
        self.masks.clear();
        self.states.iter_mut().for_each(MutableBuffer::clear);
        self.masked = false;
        self.streams.clear();
        self.deterministic.clear();
        self.came = 0;
        self.panicked = false;
        self.policy_failed = false;
        self.failures.clear();
        self.outputs.clear();
    }

    fn add(&mut self, row: &Row<'_>) -> usize {
        for (buffer, bytes) in self.observations.iter_mut().zip(row.observations) {
            buffer.extend_from_slice(bytes);
        }
        match row.mask {
            Some(mask) => {
                self.masked = true;
                self.masks.extend(mask.iter().map(|allowed| u8::from(*allowed != 0)));
            }
            None => self.masks.resize(self.masks.len() + self.mask_width, 1),
        }
        for (buffer, state) in self.states.iter_mut().zip(row.memory.states()) {
            buffer.extend_from_slice(state);
        }
        self.streams.push(row.stream);
        self.deterministic.push(row.deterministic);
        self.came += u128::from(row.came);
        self.streams.len() - 1
    }

    /// Rows that have no answer.
    pub(super) fn failed(&self) -> usize {
        self.failures.iter().flatten().count()
    }

    /// Why `row` has no answer.
    pub(super) fn failure(&self, row: usize) -> Option<&Error> {
        self.failures.get(row)?.as_ref()
    }

    /// The raw outputs of `row`, where they are kept.
    pub(super) fn outputs(&self, row: usize) -> Option<NamedTensors> {
        let outputs = self.outputs.get(row)?.as_ref()?;
        Some(outputs.iter().map(|(name, tensor)| (name.clone(), tensor.copy())).collect())
    }

    fn infer_all(&mut self, policy: &Policy<'_>, worker: &mut Worker) {
        let rows = self.streams.len();
        self.version = policy.version.version;
        self.answers.resize(&self.schema, rows);
        for (next, state) in self.next_states.iter_mut().zip(&self.states) {
            next.resize(state.len(), 0);
        }
        if policy.slot.keeps_outputs() {
            self.outputs.resize_with(rows, || None);
        }
        let Err(error) = self.infer_caught(policy, worker, 0..rows) else { return };
        self.policy_failed = true;
        self.failures.resize(rows, None);
        if rows == 1 {
            self.failures[0] = Some(error);
            return;
        }
        // One row has spoilt the pass for all: alone, each of the others gets its answer.
        for row in 0..rows {
            self.failures[row] = self.infer_caught(policy, worker, row..row + 1).err();
        }
    }

    /// The same as [`Rows::infer`]; a panic becomes an error, and the next pass gets another worker.
    fn infer_caught(&mut self, policy: &Policy<'_>, worker: &mut Worker, rows: Range<usize>) -> Result<()> {
        if self.panicked {
            *worker = policy.caught(|| policy.version.worker())?;
        }
        let mut returned = false;
        let result = policy.caught(|| {
            let result = self.infer(policy, worker, rows);
            returned = true;
            result
        });
        self.panicked = !returned;
        result
    }

    fn infer(&mut self, policy: &Policy<'_>, worker: &mut Worker, rows: Range<usize>) -> Result<()> {
        let Policy { slot, version, seed } = *policy;
        let scaled = |size: usize| rows.start * size..rows.end * size;
        let columns = self.schema.observations.iter().zip(&self.observations);
        let observations: SmallVec<[&[u8]; 8]> =
            columns.map(|(column, buffer)| &buffer.as_slice()[scaled(column.row_bytes())]).collect();
        let mask = self.masked.then(|| &self.masks[scaled(self.mask_width)]);
        let states = lay_out(&version.memory, &self.states, &rows, &mut self.laid_out);
        worker
            .forward(rows.len(), &observations, mask, &states)
            .map_err(|error| policy.told(&format!("failed on a batch of {}: {error}", rows.len())))?;
        drop(states);
        drop(observations);

        let streams = &self.streams[rows.clone()];
        let mask = version.head_mask(mask, self.mask_width);
        let head = |worker: &mut Worker, deterministic: Option<bool>, targets: HeadRows<'_>| {
            let request = HeadRequest { seed, streams, deterministic, mask };
            let (outputs, scratch) = worker.outputs_and_scratch();
            version.head.run(outputs, &request, targets, scratch)
        };
        let kinds = &self.deterministic[rows.clone()];
        let mut result = Ok(());
        if kinds.iter().all(|kind| *kind == kinds[0]) {
            result = head(worker, kinds[0], self.answers.rows_mut(&self.schema, rows.clone()));
        } else {
            self.other_answers.resize(&self.schema, rows.len());
            for kind in [None, Some(false), Some(true)] {
                if result.is_ok() && kinds.contains(&kind) {
                    result = head(worker, kind, self.other_answers.rows_mut(&self.schema, 0..rows.len()));
                    for (at, row) in rows.clone().enumerate().filter(|(at, _)| kinds[*at] == kind) {
                        self.answers.copy_row(&self.schema, row, &self.other_answers, at);
                    }
                }
            }
        }
        match result {
            Ok(()) => {}
            // The pass is good for the other rows.
            Err(HeadError::Row { .. }) if rows.len() > 1 => self.answer_one_by_one(policy, worker),
            Err(error) => return Err(policy.failed(error)),
        }
        if let Some((_, state)) = nan_state(&version.memory, worker, rows.len()) {
            return Err(policy
                .told(&format!("gave NaN in the state `{state}` for this actor; what it remembers stays as it was")));
        }
        gather_next(&version.memory, worker, &rows, &mut self.next_states);
        if slot.keeps_outputs() {
            for (at, row) in rows.enumerate() {
                self.outputs[row] = Some(named_outputs(version, worker, at));
            }
        }
        Ok(())
    }

    /// Works out each row's answer for itself, from what the model gave for all of them.
    fn answer_one_by_one(&mut self, policy: &Policy<'_>, worker: &mut Worker) {
        let version = policy.version;
        let width = self.mask_width;
        self.policy_failed = true;
        self.failures.clear();
        for row in 0..self.streams.len() {
            let request = HeadRequest {
                seed: policy.seed,
                streams: &self.streams[row..=row],
                deterministic: self.deterministic[row],
                mask: version.head_mask(self.masked.then(|| &self.masks[row * width..][..width]), width),
            };
            let outputs: Vec<_> = outputs_of(version, worker, row).map(|(_, tensor)| tensor).collect();
            let (_, scratch) = worker.outputs_and_scratch();
            let targets = self.answers.rows_mut(&self.schema, row..row + 1);
            let answered = version.head.run(&outputs, &request, targets, scratch);
            self.failures.push(answered.err().map(|error| policy.failed(error)));
        }
    }
}

impl Policy<'_> {
    fn told(&self, what: &str) -> Error {
        Error::Inference(format!("policy `{}` (version {}) {what}", self.slot.name(), self.version.version))
    }

    fn failed(&self, error: HeadError) -> Error {
        match error {
            HeadError::Request(reason) => Error::Contract(format!("policy `{}`: {reason}", self.slot.name())),
            HeadError::Row { what, .. } => self.told(&format!("{what} this actor")),
        }
    }

    /// Does something with the model; a panic of it becomes an error.
    pub(super) fn caught<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
            let text =
                panic.downcast_ref::<&str>().map(ToString::to_string).or(panic.downcast_ref::<String>().cloned());
            Err(Error::Inference(format!(
                "policy `{}` (version {}) panicked: {}; please report this",
                self.slot.name(),
                self.version.version,
                text.unwrap_or_else(|| "no message".into())
            )))
        })
    }
}

impl Answers {
    fn resize(&mut self, schema: &StepSchema, rows: usize) {
        self.actions.resize_with(schema.actions.len(), MutableBuffer::default);
        for (buffer, column) in self.actions.iter_mut().zip(&schema.actions) {
            buffer.resize(rows * column.row_bytes(), 0);
        }
        self.log_probs.resize(if schema.log_prob { rows } else { 0 }, 0.0);
        self.values.resize(if schema.value { rows } else { 0 }, 0.0);
    }

    fn rows_mut(&mut self, schema: &StepSchema, rows: Range<usize>) -> HeadRows<'_> {
        let columns = self.actions.iter_mut().zip(&schema.actions);
        HeadRows {
            actions: columns
                .map(|(buffer, column)| {
                    let size = column.row_bytes();
                    &mut buffer.as_slice_mut()[rows.start * size..rows.end * size]
                })
                .collect(),
            log_probs: schema.log_prob.then(|| &mut self.log_probs[rows.clone()]),
            values: schema.value.then(|| &mut self.values[rows]),
        }
    }

    fn copy_row(&mut self, schema: &StepSchema, row: usize, from: &Self, at: usize) {
        for (column, (to, from)) in schema.actions.iter().zip(self.actions.iter_mut().zip(&from.actions)) {
            let size = column.row_bytes();
            to.as_slice_mut()[row * size..][..size].copy_from_slice(&from.as_slice()[at * size..][..size]);
        }
        if schema.log_prob {
            self.log_probs[row] = from.log_probs[at];
        }
        if schema.value {
            self.values[row] = from.values[at];
        }
    }
}

/// What the model gave for row `row` of its last pass, by name, in the order of the outputs that the head wants.
fn outputs_of<'a>(
    version: &'a PolicyVersion,
    worker: &'a Worker,
    row: usize,
) -> impl Iterator<Item = (&'a str, Tensor)> {
    let outputs = version.head.wanted().iter().map(|index| &version.loaded.contract.outputs[*index]);
    outputs.zip(worker.outputs()).map(move |(output, tensor)| {
        (&*output.spec.name, output.batch_axis.map_or_else(|| tensor.copy(), |axis| tensor.row(axis, row)))
    })
}

fn named_outputs(version: &PolicyVersion, worker: &Worker, row: usize) -> NamedTensors {
    outputs_of(version, worker, row).map(|(name, tensor)| (name.to_owned(), tensor)).collect()
}
