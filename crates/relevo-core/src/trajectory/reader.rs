//! Reads the episodes of a run back, from whatever its writer left.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::vec::IntoIter;

use arrow_array::cast::AsArray;
use arrow_array::types::{UInt32Type, UInt64Type};
use arrow_array::{Array, ArrayRef, BooleanArray, FixedSizeBinaryArray, PrimitiveArray, RecordBatch, StringArray};
use arrow_buffer::{Buffer, MutableBuffer, NullBuffer};
use uuid::Uuid;

use super::ColumnSpec;
use super::run::{RunFolder, RunInfo};
use super::segment::SegmentReader;
use super::{Episode, PolicyRun, StepSchema, schema};
use crate::Result;

/// A run on disk: one that was closed, one whose writer was killed, or one that is still being written.
#[derive(Debug)]
pub struct Run {
    folder: RunFolder,
    info: RunInfo,
}

impl Run {
    /// Opens the run's folder.
    ///
    /// # Errors
    /// [`Error::Trajectory`](crate::Error::Trajectory) where `path` is no run folder, or one in a newer format.
    pub fn open(path: &Path) -> Result<Self> {
        let (folder, info) = RunFolder::open(path)?;
        Ok(Self { folder, info })
    }

    /// Where the steps came from.
    pub fn info(&self) -> &RunInfo {
        &self.info
    }

    /// The episodes: segment by segment, and in each in the order in which they were written, but for those that did not
    /// end: they come when their actor begins another episode, or at the segment's end.
    ///
    /// One batch is held in memory at a time, and the episodes that have not ended. A batch that its writer left cut is
    /// passed over. Damage is an error item; what was read before it and the other segments come all the same.
    ///
    /// # Errors
    /// [`Error::Trajectory`](crate::Error::Trajectory) where the segments cannot be listed.
    pub fn episodes(&self) -> Result<Episodes> {
        Ok(Episodes {
            segments: self.folder.list_segments()?.into_iter(),
            current: None,
            unfinished: HashMap::new(),
            finished: VecDeque::new(),
        })
    }
}

/// Iterator over the episodes of a [`Run`].
pub struct Episodes {
    segments: IntoIter<PathBuf>,
    current: Option<SegmentReader>,
    /// By actor: the episodes whose next rows may come in the next batch.
    unfinished: HashMap<Uuid, OpenEpisode>,
    finished: VecDeque<Episode>,
}

impl Iterator for Episodes {
    type Item = Result<Episode>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(episode) = self.finished.pop_front() {
                return Some(Ok(episode));
            }
            let read = match &mut self.current {
                Some(segment) => read_batch(segment, &mut self.unfinished, &mut self.finished),
                None => match SegmentReader::open(&self.segments.next()?) {
                    Ok(segment) => {
                        self.current = segment;
                        continue;
                    }
                    Err(error) => return Some(Err(error)),
                },
            };
            if !matches!(read, Ok(true)) {
                self.leave_segment();
            }
            if let Err(error) = read {
                return Some(Err(error));
            }
        }
    }
}

impl Episodes {
    /// An episode lies in one segment: none that has not ended by now will.
    fn leave_segment(&mut self) {
        self.current = None;
        let mut cut: Vec<Episode> = self.unfinished.drain().map(|(_, open)| open.finish(false)).collect();
        cut.sort_by_key(|episode| episode.number);
        self.finished.extend(cut);
    }
}

/// Takes the rows of the next batch. `false` where there was none.
fn read_batch(
    segment: &mut SegmentReader,
    unfinished: &mut HashMap<Uuid, OpenEpisode>,
    finished: &mut VecDeque<Episode>,
) -> Result<bool> {
    let Some(batch) = segment.next_batch()? else { return Ok(false) };
    let steps = segment.steps().clone();
    let columns = Columns::of(&batch, &steps)
        .ok_or_else(|| segment.contradicts("its columns are not those of the segment's schema"))?;
    let mut row = 0;
    while row < batch.num_rows() {
        let (number, actor_id) = (columns.episodes.value(row), columns.actor_id(row));
        let same = |next: &usize| columns.episodes.value(*next) == number && columns.actor_id(*next) == actor_id;
        let end = row + (row..batch.num_rows()).take_while(same).count();
        let mut open = match unfinished.remove(&actor_id) {
            Some(open) if open.number == number => open,
            earlier => {
                finished.extend(earlier.map(|open| open.finish(false)));
                OpenEpisode::new(number, actor_id, steps.clone())
            }
        };
        let ended = open
            .extend(&columns, row, end)
            .map_err(|reason| segment.contradicts(format!("in episode {number}, {reason}")))?;
        if ended {
            finished.push_back(open.finish(true));
        } else {
            unfinished.insert(actor_id, open);
        }
        row = end;
    }
    Ok(true)
}

/// An episode of which more rows may come.
struct OpenEpisode {
    number: u64,
    actor_id: Uuid,
    schema: Arc<StepSchema>,
    len: usize,
    observations: Vec<MutableBuffer>,
    has_final_observation: bool,
    actions: Vec<MutableBuffer>,
    masks: Option<MutableBuffer>,
    rewards: MutableBuffer,
    reward_known: MutableBuffer,
    log_probs: Option<MutableBuffer>,
    values: Option<MutableBuffer>,
    policies: Vec<PolicyRun>,
    timestamps: MutableBuffer,
    terminated: bool,
    truncated: bool,
}

impl OpenEpisode {
    fn new(number: u64, actor_id: Uuid, schema: Arc<StepSchema>) -> Self {
        let empty = || MutableBuffer::new(0);
        Self {
            number,
            actor_id,
            len: 0,
            observations: schema.observations.iter().map(|_| empty()).collect(),
            has_final_observation: false,
            actions: schema.actions.iter().map(|_| empty()).collect(),
            masks: schema.mask.map(|_| empty()),
            rewards: empty(),
            reward_known: empty(),
            log_probs: schema.log_prob.then(empty),
            values: schema.value.then(empty),
            policies: Vec::new(),
            timestamps: empty(),
            terminated: false,
            truncated: false,
            schema,
        }
    }

    /// Takes the rows from `start` to before `end`. Returns whether the last of them is the closing row.
    fn extend(&mut self, columns: &Columns<'_>, start: usize, end: usize) -> Result<bool, String> {
        let numbers = columns.steps.values()[start..end].iter().map(|step| *step as usize);
        if !numbers.eq(self.len..self.len + (end - start)) {
            return Err(format!("the rows after step {} are not numbered one by one", self.len));
        }
        let unacted = |start, end| columns.actions.iter().any(|column| column.nulls(start, end) > 0);
        let ended = unacted(end - 1, end);
        let acted = end - usize::from(ended);
        if unacted(start, acted) {
            return Err("an action is missing in a step".into());
        }
        self.len += acted - start;
        if self.len == 0 {
            return Err("there are no steps".into());
        }
        let observations = self.observations.iter_mut().zip(&columns.observations);
        for (own, column) in observations.chain(self.actions.iter_mut().zip(&columns.actions)) {
            own.extend_from_slice(column.bytes(start, acted));
        }
        self.rewards.extend_from_slice(columns.rewards.bytes(start, acted));
        self.timestamps.extend_from_slice(columns.timestamps.bytes(start, acted));
        for (own, column) in [
            (&mut self.masks, &columns.masks),
            (&mut self.log_probs, &columns.log_probs),
            (&mut self.values, &columns.values),
        ] {
            if let (Some(own), Some(column)) = (own, column) {
                own.extend_from_slice(column.bytes(start, acted));
            }
        }
        match &columns.rewards.nulls {
            Some(nulls) if columns.rewards.nulls(start, acted) > 0 => {
                self.reward_known.extend((start..acted).map(|row| u8::from(nulls.is_valid(row))));
            }
            _ => self.reward_known.resize(self.len, 1),
        }
        self.take_policies(columns, start, acted);
        if acted > start {
            self.terminated = columns.terminated.value(acted - 1);
            self.truncated = columns.truncated.value(acted - 1);
        }
        if ended && columns.observations.iter().all(|column| column.nulls(acted, end) == 0) {
            self.has_final_observation = true;
            for (own, column) in self.observations.iter_mut().zip(&columns.observations) {
                own.extend_from_slice(column.bytes(acted, end));
            }
        }
        Ok(ended)
    }

    fn take_policies(&mut self, columns: &Columns<'_>, start: usize, end: usize) {
        let from = self.len - (end - start);
        for row in start..end {
            let (policy, version) = (columns.policies.value(row), columns.versions.value(row));
            if self.policies.last().is_none_or(|run| run.version != version || *run.policy != *policy) {
                self.policies.push(PolicyRun { from: from + row - start, policy: policy.into(), version });
            }
        }
    }

    fn finish(self, complete: bool) -> Episode {
        let all_known = self.reward_known.iter().all(|known| *known != 0);
        Episode {
            number: self.number,
            actor_id: self.actor_id,
            schema: self.schema,
            len: self.len,
            observations: self.observations.into_iter().map(Buffer::from).collect(),
            has_final_observation: self.has_final_observation,
            actions: self.actions.into_iter().map(Buffer::from).collect(),
            masks: self.masks.map(Buffer::from),
            rewards: self.rewards.into(),
            reward_known: (!all_known).then(|| self.reward_known.into()),
            log_probs: self.log_probs.map(Buffer::from),
            values: self.values.map(Buffer::from),
            policies: self.policies,
            timestamps: self.timestamps.into(),
            terminated: self.terminated,
            truncated: self.truncated,
            complete,
        }
    }
}

/// The columns of a batch, by their types.
struct Columns<'a> {
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
}

impl<'a> Columns<'a> {
    /// `None` where a column is missing or of another type.
    fn of(batch: &'a RecordBatch, steps: &StepSchema) -> Option<Self> {
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
        })
    }

    fn actor_id(&self, row: usize) -> Uuid {
        Uuid::from_slice(self.actor_ids.value(row)).unwrap_or_default()
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

    fn bytes(&self, start: usize, end: usize) -> &[u8] {
        &self.bytes[start * self.row_bytes..end * self.row_bytes]
    }

    /// How many of these rows are null.
    fn nulls(&self, start: usize, end: usize) -> usize {
        self.nulls.as_ref().map_or(0, |nulls| nulls.slice(start, end - start).null_count())
    }
}
