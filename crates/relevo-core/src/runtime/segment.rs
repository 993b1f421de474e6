//! One forward pass of a vectorised call: the actors of one policy, which lie side by side in the block, and the head on what
//! the model gives for them.

use std::time::Instant;

use smallvec::SmallVec;

use super::{
    batch::NamedTensors,
    group::Work,
    memory::{Memory, nan_state},
    placed::Placed,
};
use crate::{
    error::{Error, Result},
    policy::{HeadError, HeadRequest, HeadRows, PooledWorker},
    trajectory::StepSchema,
};

/// What a call asks of each of its policies.
#[derive(Debug, Clone, Copy)]
pub(super) struct SegmentCall<'a> {
    /// The row of the block.
    pub(super) row: usize,
    /// Whether the caller gave a mask.
    pub(super) masked: bool,
    /// Observations that lie on a device.
    pub(super) placed: Option<&'a Placed<'a>>,
    /// The run's seed.
    pub(super) seed: u64,
    pub(super) deterministic: Option<bool>,
    pub(super) keep_outputs: bool,
}

impl Work {
    /// One forward pass for the actors of one policy, and its head.
    pub(super) fn run_segment(
        &mut self,
        index: usize,
        call: &SegmentCall<'_>,
    ) -> Result<Option<NamedTensors>, Failure> {
        let SegmentCall { row, masked, placed, seed, deterministic, keep_outputs } = *call;
        let segment = &self.layout.segments[index];
        let slot = &self.policies[index];
        let version = placed.map_or_else(|| slot.current(), |placed| placed.version.clone());
        let mut worker = version.checkout()?;
        let started = Instant::now();
        let rows = segment.until - segment.from;
        let first = self.block.cells(row).start;
        let cells = first + segment.from..first + segment.until;
        let scaled = |size: usize| cells.start * size..cells.end * size;

        let schema = &segment.schema;
        let observations: SmallVec<[&[u8]; 8]> = schema
            .observations
            .iter()
            .zip(&self.block.observations)
            .enumerate()
            .map(|(index, (column, buffer))| match placed {
                // The block holds those of an earlier call there.
                Some(placed) if placed.is_away(index) => &[],
                _ => &buffer.as_slice()[scaled(column.row_bytes())],
            })
            .collect();
        let there = placed.map_or(&[][..], |placed| &placed.columns);
        let mask = masked.then(|| &self.block.masks[scaled(self.layout.mask.unwrap_or(0))]);
        let memory = &mut self.memories[index];
        memory.adopt(&version.memory);
        let memory = &self.memories[index];
        let mut result = worker.forward_placed(rows, &observations, there, mask, &memory.states()).map_err(|error| {
            let text =
                format!("policy `{}` (version {}) failed on a batch of {rows}: {error}", slot.name(), version.version);
            match culprit(&mut worker, schema, rows, &observations, placed, mask, memory) {
                None => Error::Inference(text).into(),
                Some(row) => {
                    let column = segment.from + row;
                    let (actor, row) = (self.layout.actors[column].id, self.caller_row(column));
                    let error = Error::Inference(format!("{text}; alone, it fails for actor {actor} (row {row})"));
                    Failure { error: error.of_actor(actor), column: Some(column) }
                }
            }
        });
        if result.is_ok() {
            let (outputs, scratch) = worker.outputs_and_scratch();
            let request = HeadRequest {
                seed,
                streams: &self.streams[segment.from..segment.until],
                deterministic,
                mask: version.head_mask(mask, self.layout.mask.unwrap_or(0)),
            };
            let targets = HeadRows {
                actions: schema
                    .actions
                    .iter()
                    .zip(&mut self.block.actions)
                    .map(|(column, buffer)| &mut buffer.as_slice_mut()[scaled(column.row_bytes())])
                    .collect(),
                log_probs: schema.log_prob.then(|| &mut self.block.log_probs[cells.clone()]),
                values: schema.value.then(|| &mut self.block.values[cells.clone()]),
            };
            result = version.head.run(outputs, &request, targets, scratch).map_err(|error| match error {
                HeadError::Request(reason) => Error::Contract(format!("policy `{}`: {reason}", slot.name())).into(),
                HeadError::Row { row, what } => {
                    let column = segment.from + row;
                    let actor = self.layout.actors[column].id;
                    let error = Error::Inference(format!(
                        "policy `{}` (version {}) {what} actor {actor} (row {}); nothing was recorded for this call",
                        slot.name(),
                        version.version,
                        self.caller_row(column)
                    ));
                    Failure { error: error.of_actor(actor), column: Some(column) }
                }
            });
        }
        if result.is_ok()
            && let Some((row, state)) = nan_state(&version.memory, &worker, rows)
        {
            let column = segment.from + row;
            let actor = self.layout.actors[column].id;
            let error = Error::Inference(format!(
                "policy `{}` (version {}) gave NaN in the state `{state}` for actor {actor} (row {}); nothing was recorded for \
                 this call, and what it remembers stays as it was",
                slot.name(),
                version.version,
                self.caller_row(column)
            ));
            result = Err(Failure { error: error.of_actor(actor), column: Some(column) });
        }
        slot.count(rows, started.elapsed(), result.is_err());
        result?;
        let segments = self.layout.segments.len();
        self.block.versions[row * segments + index] = version.version;
        let raw = keep_outputs.then(|| {
            let named = version.head.wanted().iter().zip(worker.outputs());
            let outputs = &version.loaded.contract.outputs;
            named.map(|(index, tensor)| (outputs[*index].spec.name.clone(), tensor.copy())).collect()
        });
        self.memories[index].catch(&mut worker);
        Ok(raw)
    }
}

/// The first row for which a pass fails that is made for it alone.
fn culprit(
    worker: &mut PooledWorker<'_>,
    schema: &StepSchema,
    rows: usize,
    observations: &[&[u8]],
    placed: Option<&Placed<'_>>,
    mask: Option<&[u8]>,
    memory: &Memory,
) -> Option<usize> {
    (0..rows).find(|row| {
        let one = |bytes: &'_ [u8], size: usize| row * size..(row * size + size).min(bytes.len());
        let columns = schema.observations.iter().zip(observations);
        let observation: SmallVec<[&[u8]; 8]> =
            columns.map(|(column, bytes)| bytes.get(one(bytes, column.row_bytes())).unwrap_or(&[])).collect();
        let there = placed.map(|placed| placed.row(*row)).unwrap_or_default();
        let mask = mask.map(|mask| &mask[one(mask, mask.len() / rows)]);
        worker.forward_placed(1, &observation, &there, mask, &memory.of_one(*row).states()).is_err()
    })
}

/// Why a policy has no actions, and which actor it failed for, if that is known.
pub(super) struct Failure {
    pub(super) error: Error,
    pub(super) column: Option<usize>,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, column: None }
    }
}
