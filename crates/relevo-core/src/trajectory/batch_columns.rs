//! The columns of a batch of steps as plain memory, for readers that know no Arrow.

use arrow_array::{Array, ArrayRef, RecordBatch, cast::AsArray};
use arrow_buffer::{Buffer, NullBuffer};
use arrow_schema::DataType;

use super::schema::{ACTION, key_of, read_tensor_field};
use crate::spec::DType;

/// One column as plain memory.
#[derive(Debug, Clone)]
pub enum PlainColumn {
    /// Rows of tensors, one behind the other; without a copy, but for booleans.
    Tensors {
        /// Element type.
        dtype: DType,
        /// Shape of one row.
        shape: Vec<usize>,
        /// The rows. Where one is null, its bytes are zero.
        bytes: Buffer,
        /// Which rows there are, where some are null.
        valid: Option<NullBuffer>,
    },
    /// Rows of as many bytes each, such as ids; without a copy.
    Bytes {
        /// Bytes of a row.
        width: usize,
        /// The rows.
        bytes: Buffer,
    },
    /// Times in nanoseconds since 1970, UTC, int64; without a copy.
    Times(Buffer),
    /// Texts, copied.
    Texts(Vec<Option<String>>),
}

/// The columns of a batch by name.
pub fn plain_columns(batch: &RecordBatch) -> Result<Vec<(String, PlainColumn)>, String> {
    let schema = batch.schema();
    let fields = schema.fields().iter().zip(batch.columns());
    fields.map(|(field, array)| Ok((field.name().clone(), plain(field, array)?))).collect()
}

/// Which rows of a batch are steps, with an action: the others are closing rows. `None` where the batch has no action column.
pub fn acted_rows(batch: &RecordBatch) -> Option<Vec<bool>> {
    let schema = batch.schema();
    let index = schema.fields().iter().position(|field| key_of(ACTION, field.name()).is_some())?;
    let column = batch.column(index);
    Some((0..column.len()).map(|row| column.is_valid(row)).collect())
}

fn plain(field: &arrow_schema::Field, array: &ArrayRef) -> Result<PlainColumn, String> {
    let data = array.to_data();
    let rows = |buffers: &[Buffer], first: usize, row_bytes: usize| -> Result<Buffer, String> {
        let buffer = buffers.first().ok_or_else(|| format!("the column `{}` has no values", field.name()))?;
        let length = array.len() * row_bytes;
        if first * row_bytes + length > buffer.len() {
            return Err(format!("the column `{}` is shorter than its rows", field.name()));
        }
        Ok(buffer.slice_with_length(first * row_bytes, length))
    };
    let own = |row_bytes: usize| rows(data.buffers(), data.offset(), row_bytes);
    Ok(match field.data_type() {
        DataType::Boolean => {
            let flags = array.as_boolean();
            let bytes = (0..flags.len()).map(|row| u8::from(flags.value(row))).collect();
            PlainColumn::Tensors { dtype: DType::Bool, shape: Vec::new(), bytes, valid: array.nulls().cloned() }
        }
        DataType::FixedSizeBinary(width) => PlainColumn::Bytes { width: *width as usize, bytes: own(*width as usize)? },
        DataType::Timestamp(..) => PlainColumn::Times(own(8)?),
        DataType::Utf8 => {
            PlainColumn::Texts(array.as_string::<i32>().iter().map(|text| text.map(str::to_owned)).collect())
        }
        _ => {
            let spec = read_tensor_field(field, "")?;
            let bytes = match data.child_data() {
                // The values of lists that were cut out still begin with the first list.
                [values] => rows(values.buffers(), data.offset(), spec.row_bytes())?,
                _ => own(spec.row_bytes())?,
            };
            PlainColumn::Tensors { dtype: spec.dtype, shape: spec.shape, bytes, valid: array.nulls().cloned() }
        }
    })
}
