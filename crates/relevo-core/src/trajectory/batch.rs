//! Episodes, or pieces of them, as one Arrow record batch.

use std::sync::Arc;

use arrow_array::types::{
    Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow_array::{
    ArrayRef, ArrowPrimitiveType, BooleanArray, FixedSizeBinaryArray, FixedSizeListArray, PrimitiveArray, RecordBatch,
    StringArray, TimestampNanosecondArray,
};
use arrow_buffer::{
    BooleanBufferBuilder, Buffer, MutableBuffer, NullBuffer, NullBufferBuilder, OffsetBuffer, ScalarBuffer,
};
use arrow_schema::{ArrowError, DataType, SchemaRef};

use super::schema::{ACTOR_ID_BYTES, UTC, mask_column};
use super::{ColumnSpec, Episode, Piece, StepSchema};
use crate::spec::DType;

/// One record batch of these pieces, which are of the schema `steps` and passed [`check`].
pub(crate) fn record_batch(schema: &SchemaRef, steps: &StepSchema, pieces: &[Piece]) -> Result<RecordBatch, String> {
    let rows = Rows { pieces, count: pieces.iter().map(Piece::rows).sum() };
    let columns = rows.columns(steps)?;
    RecordBatch::try_new(schema.clone(), columns).map_err(|error| error.to_string())
}

/// Fails where a piece of an episode contradicts itself, so that its rows could not be written or read back.
pub(crate) fn check(piece: &Piece) -> Result<(), String> {
    let Piece { episode, first_step, .. } = piece;
    let steps = &episode.schema;
    if episode.len == 0 || u32::try_from(episode.len + 1 + *first_step as usize).is_err() {
        return Err(format!("it has {} steps from step {first_step} on; an episode has 1 to 2^32 - 2", episode.len));
    }
    if !episode.complete && (episode.has_final_observation || episode.terminated || episode.truncated) {
        return Err("it did not end, but has a final observation or an end's flag".into());
    }
    let mut lengths = vec![
        ("rewards", Some(&episode.rewards), Some(8)),
        ("timestamps", Some(&episode.timestamps), Some(8)),
        ("masks", episode.masks.as_ref(), steps.mask),
        ("log-probabilities", episode.log_probs.as_ref(), steps.log_prob.then_some(4)),
        ("values", episode.values.as_ref(), steps.value.then_some(4)),
    ];
    if let Some(known) = &episode.reward_known {
        lengths.push(("flags of known rewards", Some(known), Some(1)));
    }
    if episode.actions.len() != steps.actions.len() {
        return Err(format!("it has {} action columns instead of {}", episode.actions.len(), steps.actions.len()));
    }
    for (buffer, column) in episode.actions.iter().zip(&steps.actions) {
        lengths.push(("actions", Some(buffer), Some(column.row_bytes())));
    }
    for (name, found, row_bytes) in lengths {
        let found = found.map(Buffer::len);
        let expected = row_bytes.map(|row_bytes| row_bytes * episode.len);
        if found != expected {
            let bytes = |len: Option<usize>| len.map_or("none".into(), |len| format!("{len} bytes"));
            return Err(format!("of its {name} there should be {}, and there are {}", bytes(expected), bytes(found)));
        }
    }
    let observation_rows = episode.len + usize::from(episode.has_final_observation);
    let found = episode.observations.iter().map(Buffer::len);
    if !found.eq(steps.observations.iter().map(|column| column.row_bytes() * observation_rows)) {
        return Err(format!("its observations are not {observation_rows} rows of each column"));
    }
    let starts = episode.policies.iter().map(|run| run.from);
    if !starts.clone().take(1).eq([0]) || !starts.is_sorted_by(|a, b| a < b && *b < episode.len) {
        return Err("its policy runs do not cover its steps in order".into());
    }
    Ok(())
}

/// The rows of all the pieces, in order.
struct Rows<'a> {
    pieces: &'a [Piece],
    count: usize,
}

impl Rows<'_> {
    /// All columns, in the order of [`to_arrow`](super::schema::to_arrow).
    fn columns(&self, steps: &StepSchema) -> Result<Vec<ArrayRef>, String> {
        let text = |error: ArrowError| error.to_string();
        // What a closing row has not: an action and all that comes with one.
        let acted = self.validity(|episode, valid| {
            valid.append_n_non_nulls(episode.len);
            valid.append_n_nulls(usize::from(episode.complete));
        });
        let observed = self.validity(|episode, valid| {
            valid.append_n_non_nulls(episode.len + usize::from(episode.has_final_observation));
            valid.append_n_nulls(usize::from(episode.complete && !episode.has_final_observation));
        });
        let rewarded = self.validity(|episode, valid| {
            match &episode.reward_known {
                None => valid.append_n_non_nulls(episode.len),
                Some(known) => known.iter().for_each(|known| valid.append(*known != 0)),
            }
            valid.append_n_nulls(usize::from(episode.complete));
        });

        let actor_ids = Buffer::from_vec(self.repeated(|episode| i128::from_ne_bytes(episode.actor_id.into_bytes())));
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(FixedSizeBinaryArray::try_new(ACTOR_ID_BYTES, actor_ids, None).map_err(text)?),
            primitive::<UInt64Type>(Buffer::from_vec(self.repeated(|episode| episode.number)), None).map_err(text)?,
            primitive::<UInt32Type>(self.step_numbers(), None).map_err(text)?,
        ];
        for (index, column) in steps.observations.iter().enumerate() {
            let bytes = self.gathered(column.row_bytes(), |episode| Some(&episode.observations[index]));
            columns.push(tensors(column, bytes, observed.clone(), self.count).map_err(text)?);
        }
        for (index, column) in steps.actions.iter().enumerate() {
            let bytes = self.gathered(column.row_bytes(), |episode| Some(&episode.actions[index]));
            columns.push(tensors(column, bytes, acted.clone(), self.count).map_err(text)?);
        }
        if let Some(width) = steps.mask {
            let masks = self.gathered(width, |episode| episode.masks.as_ref());
            columns.push(tensors(&mask_column(width), masks, acted.clone(), self.count).map_err(text)?);
        }
        let rewards = self.gathered(8, |episode| Some(&episode.rewards));
        columns.push(primitive::<Float64Type>(rewards, rewarded).map_err(text)?);
        columns.push(Arc::new(self.flags(|episode| episode.terminated)));
        columns.push(Arc::new(self.flags(|episode| episode.truncated)));
        if steps.log_prob {
            let log_probs = self.gathered(4, |episode| episode.log_probs.as_ref());
            columns.push(primitive::<Float32Type>(log_probs, acted.clone()).map_err(text)?);
        }
        if steps.value {
            let values = self.gathered(4, |episode| episode.values.as_ref());
            columns.push(primitive::<Float32Type>(values, acted).map_err(text)?);
        }
        let (policies, versions) = self.policies()?;
        columns.push(Arc::new(policies));
        columns.push(primitive::<UInt64Type>(versions, None).map_err(text)?);
        let timestamps =
            TimestampNanosecondArray::try_new(ScalarBuffer::from(self.timestamps()), None).map_err(text)?;
        columns.push(Arc::new(timestamps.with_timezone(UTC)));
        Ok(columns)
    }

    fn validity(&self, append: impl Fn(&Episode, &mut NullBufferBuilder)) -> Option<NullBuffer> {
        let mut valid = NullBufferBuilder::new(self.count);
        self.pieces.iter().for_each(|piece| append(&piece.episode, &mut valid));
        valid.finish()
    }

    /// One value for all rows of an episode.
    fn repeated<T: Copy>(&self, value: impl Fn(&Episode) -> T) -> Vec<T> {
        let mut values = Vec::with_capacity(self.count);
        for piece in self.pieces {
            values.resize(values.len() + piece.rows(), value(&piece.episode));
        }
        values
    }

    fn step_numbers(&self) -> Buffer {
        let mut steps = Vec::with_capacity(self.count);
        for piece in self.pieces {
            steps.extend(piece.first_step..piece.first_step + piece.rows() as u32);
        }
        Buffer::from_vec(steps)
    }

    /// The pieces' buffers one after the other, with zeros for the rows they lack.
    fn gathered<'a>(&'a self, row_bytes: usize, buffer: impl Fn(&'a Episode) -> Option<&'a Buffer>) -> Buffer {
        let mut bytes = MutableBuffer::new(self.count * row_bytes);
        let mut end = 0;
        for piece in self.pieces {
            bytes.extend_from_slice(buffer(&piece.episode).map_or(&[], Buffer::as_slice));
            end += piece.rows() * row_bytes;
            bytes.resize(end, 0);
        }
        bytes.into()
    }

    /// A flag that stands on an episode's last step row.
    fn flags(&self, flag: impl Fn(&Episode) -> bool) -> BooleanArray {
        let mut flags = BooleanBufferBuilder::new(self.count);
        for Piece { episode, .. } in self.pieces {
            flags.append_n(episode.len - 1, false);
            flags.append(flag(episode));
            flags.append_n(usize::from(episode.complete), false);
        }
        BooleanArray::new(flags.finish(), None)
    }

    /// The policies' names and versions; the closing row has those of the last step.
    fn policies(&self) -> Result<(StringArray, Buffer), String> {
        let mut names = Vec::new();
        let mut ends = Vec::with_capacity(self.count + 1);
        ends.push(0);
        let mut versions = Vec::with_capacity(self.count);
        for piece in self.pieces {
            let policies = &piece.episode.policies;
            for (index, run) in policies.iter().enumerate() {
                let until = policies.get(index + 1).map_or(piece.rows(), |next| next.from);
                let rows = until - run.from;
                let start = names.len();
                names.extend_from_slice(run.policy.repeat(rows).as_bytes());
                if i32::try_from(names.len()).is_err() {
                    return Err("the policies' names would fill over 2 GB of one batch; use shorter names".into());
                }
                ends.extend((1..=rows).map(|row| (start + row * run.policy.len()) as i32));
                versions.resize(versions.len() + rows, run.version);
            }
        }
        let ends = OffsetBuffer::new(ScalarBuffer::from(ends));
        let names = StringArray::try_new(ends, Buffer::from_vec(names), None).map_err(|error| error.to_string())?;
        Ok((names, Buffer::from_vec(versions)))
    }

    /// The times; the closing row has that of the last step.
    fn timestamps(&self) -> Buffer {
        let mut timestamps = MutableBuffer::new(self.count * 8);
        for Piece { episode, .. } in self.pieces {
            timestamps.extend_from_slice(episode.timestamps.as_slice());
            if episode.complete {
                timestamps.extend_from_slice(&episode.timestamps[(episode.len - 1) * 8..]);
            }
        }
        timestamps.into()
    }
}

/// An array of one tensor per row, from their bytes.
fn tensors(column: &ColumnSpec, bytes: Buffer, valid: Option<NullBuffer>, rows: usize) -> Result<ArrayRef, ArrowError> {
    if column.shape.is_empty() {
        return elements(column.dtype, bytes, valid);
    }
    let values = elements(column.dtype, bytes, None)?;
    let DataType::FixedSizeList(field, size) =
        DataType::new_fixed_size_list(values.data_type().clone(), column.shape.iter().product::<usize>() as i32, false)
    else {
        return Err(ArrowError::SchemaError("a list's type is not a list".into()));
    };
    Ok(Arc::new(FixedSizeListArray::try_new_with_length(field, size, values, valid, rows)?))
}

fn elements(dtype: DType, bytes: Buffer, valid: Option<NullBuffer>) -> Result<ArrayRef, ArrowError> {
    match dtype {
        DType::Bool | DType::UInt8 => primitive::<UInt8Type>(bytes, valid),
        DType::Int8 => primitive::<Int8Type>(bytes, valid),
        DType::UInt16 => primitive::<UInt16Type>(bytes, valid),
        DType::Int16 => primitive::<Int16Type>(bytes, valid),
        DType::UInt32 => primitive::<UInt32Type>(bytes, valid),
        DType::Int32 => primitive::<Int32Type>(bytes, valid),
        DType::UInt64 => primitive::<UInt64Type>(bytes, valid),
        DType::Int64 => primitive::<Int64Type>(bytes, valid),
        DType::Float16 => primitive::<Float16Type>(bytes, valid),
        DType::Float32 => primitive::<Float32Type>(bytes, valid),
        DType::Float64 => primitive::<Float64Type>(bytes, valid),
    }
}

fn primitive<T: ArrowPrimitiveType>(bytes: Buffer, valid: Option<NullBuffer>) -> Result<ArrayRef, ArrowError> {
    Ok(Arc::new(PrimitiveArray::<T>::try_new(ScalarBuffer::from(bytes), valid)?))
}
