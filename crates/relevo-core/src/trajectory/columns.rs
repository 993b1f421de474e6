//! The columns of a batch by their types, and the episodes in their rows.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{UInt32Type, UInt64Type};
use arrow_array::{Array, ArrayRef, BooleanArray, FixedSizeBinaryArray, PrimitiveArray, RecordBatch, StringArray};
use arrow_buffer::{Buffer, NullBuffer};
use uuid::Uuid;

use super::index::Part;
use super::{ColumnSpec, Episode, ExtraKind, ExtraSpec, ExtraValues, Piece, PolicyRun, StepSchema, Texts, schema};

/// The columns of a batch.
pub(crate) struct Columns<'a> {
    schema: Arc<StepSchema>,
    actor_ids: &'a FixedSizeBinaryArray,
    episodes: &'a PrimitiveArray<UInt64Type>,
    steps: &'a PrimitiveArray<UInt32Type>,
    observations: Vec<Rows>,
    actions: Vec<Rows>,
    masks: Option<Rows>,
    rewards: Rows,
    terminated: &'a BooleanArray,
    truncated: &'a BooleanArray,
    log_probs: Option<Rows>,
    values: Option<Rows>,
    policies: &'a StringArray,
    versions: &'a PrimitiveArray<UInt64Type>,
    timestamps: Rows,
    extras: Vec<Extra<'a>>,
}

impl<'a> Columns<'a> {
    /// Fails where a column is missing or of another type.
    pub(crate) fn of(batch: &'a RecordBatch, steps: &Arc<StepSchema>) -> Result<Self, String> {
        Self::find(batch, steps).ok_or_else(|| "its columns are not those of the segment's schema".into())
    }

    fn find(batch: &'a RecordBatch, steps: &Arc<StepSchema>) -> Option<Self> {
        let column = |name: &str| batch.column_by_name(name);
        let keyed = |kind, columns: &[ColumnSpec]| {
            let rows =
                columns.iter().map(|spec| Rows::of(column(&schema::keyed_name(kind, &spec.key))?, spec.row_bytes()));
            rows.collect::<Option<Vec<_>>>()
        };
        Some(Self {
            actor_ids: column(schema::ACTOR_ID)?.as_fixed_size_binary_opt()?,
            episodes: column(schema::EPISODE)?.as_primitive_opt()?,
            steps: column(schema::STEP)?.as_primitive_opt()?,
            observations: keyed(schema::OBSERVATION, &steps.observations)?,
            actions: keyed(schema::ACTION, &steps.actions)?,
            masks: steps.mask.and_then(|width| Rows::of(column(schema::ACTION_MASK)?, width)),
            rewards: Rows::of(column(schema::REWARD)?, 8)?,
            terminated: column(schema::TERMINATED)?.as_boolean_opt()?,
            truncated: column(schema::TRUNCATED)?.as_boolean_opt()?,
            log_probs: column(schema::LOG_PROB).and_then(|column| Rows::of(column, 4)),
            values: column(schema::VALUE).and_then(|column| Rows::of(column, 4)),
            policies: column(schema::POLICY)?.as_string_opt()?,
            versions: column(schema::POLICY_VERSION)?.as_primitive_opt()?,
            timestamps: Rows::of(column(schema::TIMESTAMP)?, 8)?,
            extras: steps
                .extras
                .iter()
                .map(|spec| Extra::of(spec, column(&schema::extra_name(spec))?))
                .collect::<Option<_>>()?,
            schema: steps.clone(),
        })
    }

    fn actor_id(&self, row: usize) -> Uuid {
        Uuid::from_slice(self.actor_ids.value(row)).unwrap_or_default()
    }

    /// Name of the policy that acted in a row.
    pub(crate) fn policy(&self, row: usize) -> &str {
        self.policies.value(row)
    }

    /// What a sidecar would tell of the rows; `policies` are the names that it tells already.
    pub(crate) fn parts(&self, policies: &mut Vec<Arc<str>>) -> Result<Vec<Part>, String> {
        let mut parts = Vec::new();
        let mut row = 0;
        while row < self.episodes.len() {
            let (number, actor_id) = (self.episodes.value(row), self.actor_id(row));
            let same = |next: &usize| self.episodes.value(*next) == number && self.actor_id(*next) == actor_id;
            let end = row + (row..self.episodes.len()).take_while(same).count();
            let episode = Arc::new(self.episode(row..end).map_err(|reason| format!("in episode {number}, {reason}"))?);
            // Which actor it was within the run, and whether more of the episode was to come, is not known.
            let last = episode.complete;
            let piece = Piece { episode, first_step: self.steps.value(row), last, ordinal: u32::MAX, draws: 0 };
            parts.push(Part::of(&piece, row as u32, policies));
            row = end;
        }
        Ok(parts)
    }

    /// The episode, or the part of one, in these rows, of which there is at least one. Without a copy.
    pub(crate) fn episode(&self, rows: Range<usize>) -> Result<Episode, String> {
        let Range { start, end } = rows;
        if start >= end || end > self.episodes.len() {
            return Err(format!("there are no rows {start} to {end}"));
        }
        let (number, actor_id) = (self.episodes.value(start), self.actor_id(start));
        if (start..end).any(|row| self.episodes.value(row) != number || self.actor_id(row) != actor_id) {
            return Err("there are rows of another episode".into());
        }
        let steps = &self.steps.values()[start..end];
        if !steps.iter().zip(0..).all(|(step, at)| u64::from(*step) == u64::from(steps[0]) + at) {
            return Err(format!("the rows from step {} on are not numbered one by one", steps[0]));
        }
        let unacted = |start, end| self.actions.iter().any(|column| column.nulls(start, end) > 0);
        let complete = unacted(end - 1, end);
        let acted = end - usize::from(complete);
        if unacted(start, acted) {
            return Err("an action is missing in a step".into());
        }
        let len = acted - start;
        if len == 0 {
            return Err("there are no steps".into());
        }
        let has_final_observation = complete && self.observations.iter().all(|column| column.nulls(acted, end) == 0);
        let observed = acted + usize::from(has_final_observation);
        let bytes = |column: &Rows| column.bytes(start, acted);
        let reward_known = match &self.rewards.nulls {
            Some(nulls) if self.rewards.nulls(start, acted) > 0 => {
                Some((start..acted).map(|row| u8::from(nulls.is_valid(row))).collect())
            }
            _ => None,
        };
        let extras = self.schema.extras.iter().zip(&self.extras).map(|(spec, column)| {
            let until = start + spec.rows(len, has_final_observation);
            column.values(start..until).ok_or_else(|| format!("the texts of `{}` are damaged", spec.name))
        });
        let extras = extras.collect::<Result<_, _>>()?;
        Ok(Episode {
            number,
            actor_id,
            schema: self.schema.clone(),
            len,
            observations: self.observations.iter().map(|column| column.bytes(start, observed)).collect(),
            has_final_observation,
            actions: self.actions.iter().map(bytes).collect(),
            masks: self.masks.as_ref().map(bytes),
            rewards: bytes(&self.rewards),
            reward_known,
            log_probs: self.log_probs.as_ref().map(bytes),
            values: self.values.as_ref().map(bytes),
            policies: self.policies(start, acted),
            timestamps: bytes(&self.timestamps),
            extras,
            terminated: complete && self.terminated.value(acted - 1),
            truncated: complete && self.truncated.value(acted - 1),
            complete,
        })
    }

    fn policies(&self, start: usize, end: usize) -> Vec<PolicyRun> {
        let mut runs: Vec<PolicyRun> = Vec::new();
        for row in start..end {
            let (policy, version) = (self.policies.value(row), self.versions.value(row));
            if runs.last().is_none_or(|run| run.version != version || *run.policy != *policy) {
                runs.push(PolicyRun { from: row - start, policy: policy.into(), version });
            }
        }
        runs
    }
}

/// An extra column.
enum Extra<'a> {
    Tensor(Rows),
    Text(&'a StringArray),
}

impl<'a> Extra<'a> {
    fn of(spec: &ExtraSpec, array: &'a ArrayRef) -> Option<Self> {
        match &spec.kind {
            ExtraKind::Tensor(column) => Rows::of(array, column.row_bytes()).map(Self::Tensor),
            ExtraKind::Text => array.as_string_opt().map(Self::Text),
        }
    }

    /// The values in these rows; `None` where they cannot be.
    fn values(&self, rows: Range<usize>) -> Option<ExtraValues> {
        Some(match self {
            Self::Tensor(column) => ExtraValues::Tensor(column.bytes(rows.start, rows.end)),
            Self::Text(array) => {
                let offsets = array.value_offsets().get(rows.start..=rows.end)?;
                ExtraValues::Text(Texts::new(offsets, array.values().clone())?)
            }
        })
    }
}

/// A fixed-width column as bytes.
struct Rows {
    bytes: Buffer,
    row_bytes: usize,
    nulls: Option<NullBuffer>,
}

impl Rows {
    /// `None` where the column is not `row_bytes` wide.
    fn of(array: &ArrayRef, row_bytes: usize) -> Option<Self> {
        let data = array.to_data();
        let elements = data.child_data().first().unwrap_or(&data);
        let bytes = elements.buffers().first()?.clone();
        (bytes.len() >= array.len() * row_bytes).then(|| Self { bytes, row_bytes, nulls: array.nulls().cloned() })
    }

    fn bytes(&self, start: usize, end: usize) -> Buffer {
        self.bytes.slice_with_length(start * self.row_bytes, (end - start) * self.row_bytes)
    }

    /// How many of these rows are null.
    fn nulls(&self, start: usize, end: usize) -> usize {
        self.nulls.as_ref().map_or(0, |nulls| nulls.slice(start, end - start).null_count())
    }
}
