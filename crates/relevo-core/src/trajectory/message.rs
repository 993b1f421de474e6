//! The messages that an Arrow IPC file consists of, taken apart with care.
//!
//! `arrow-ipc` trusts the lengths in a file: wrong ones make it panic, or ask for absurd amounts of memory. So messages are
//! taken apart here, and it is given only those whose lengths and types add up.

use std::collections::HashMap;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::{CompressionType, convert::fb_to_schema, reader::RecordBatchDecoder, root_as_message};
use arrow_schema::{ArrowError, DataType, Schema, SchemaRef};

use super::{Compression, schema};

/// The first bytes of an Arrow IPC file. As many bytes follow as make the next message begin at a multiple of the
/// alignment, so the alignment must be 8 for a reader of streams to find the first message right after them.
pub(crate) const HEADER: &[u8; 8] = b"ARROW1\0\0";
pub(crate) const ALIGNMENT: usize = 8;

/// What every message begins with; its length follows.
pub(crate) const CONTINUATION: [u8; 4] = [0xff; 4];
const PREFIX: usize = 8;

/// The most that a compressed batch may take once it is taken apart.
const MOST_BYTES: usize = 1 << 32;

/// One message of an IPC file: its flatbuffer and the bytes that this describes.
#[derive(Debug)]
pub(crate) struct Message {
    metadata: Buffer,
    body: Buffer,
    /// Bytes of both, and of what stands before them.
    pub(crate) length: usize,
}

/// What stands where a message should begin.
pub(crate) enum Found {
    Message(Message),
    /// The end mark, or less than a whole message.
    Nothing,
}

impl Message {
    /// The message that `bytes` begin with, without a copy.
    pub(crate) fn at(bytes: &Buffer) -> Result<Found, String> {
        let Some((prefix, rest)) = bytes.as_slice().split_first_chunk::<PREFIX>() else { return Ok(Found::Nothing) };
        let [a, b, c, d, length @ ..] = *prefix;
        if [a, b, c, d] != CONTINUATION {
            return Err("there is something else where a message should begin".into());
        }
        let length = i32::from_le_bytes(length);
        let length = usize::try_from(length).map_err(|_| format!("its length is {length}"))?;
        if length == 0 || length > rest.len() {
            return Ok(Found::Nothing);
        }
        let metadata = bytes.slice_with_length(PREFIX, length);
        let body = root_as_message(&metadata).map_err(|error| error.to_string())?.bodyLength();
        let body = usize::try_from(body).map_err(|_| format!("the length of its body is {body}"))?;
        if body > rest.len() - length {
            return Ok(Found::Nothing);
        }
        let body = bytes.slice_with_length(PREFIX + length, body);
        let length = PREFIX + length + body.len();
        Ok(Found::Message(Self { metadata, body, length }))
    }

    /// The schema in it. Fails where that holds what no segment does, before `arrow-ipc` can panic at it.
    pub(crate) fn schema(&self) -> Result<Schema, String> {
        let message = root_as_message(&self.metadata).map_err(|error| error.to_string())?;
        let Some((schema, fields)) = message.header_as_schema().and_then(|schema| Some((schema, schema.fields()?)))
        else {
            return Err("the file does not begin with an Arrow schema: not a segment of a run".into());
        };
        schema::check_names(&fields.iter().map(|field| field.name().unwrap_or_default()).collect::<Vec<_>>())?;
        if !schema.endianness().equals_to_target_endianness() {
            return Err("written on a machine of the other byte order, which is not supported".into());
        }
        if let Some(field) = fields.iter().find(|field| !is_readable(*field)) {
            let name = field.name().unwrap_or_default();
            return Err(format!("the column `{name}` has a type that no segment has ({:?})", field.type_type()));
        }
        Ok(fb_to_schema(schema))
    }

    /// Where its body begins.
    pub(crate) fn body_at(&self) -> usize {
        PREFIX + self.metadata.len()
    }

    /// How its buffers are packed, where it is a batch.
    pub(crate) fn compression(&self) -> Compression {
        let compression = root_as_message(&self.metadata)
            .ok()
            .and_then(|envelope| envelope.header_as_record_batch()?.compression().map(|found| found.codec()));
        match compression {
            None => Compression::None,
            Some(CompressionType::ZSTD) => Compression::Zstd,
            Some(_) => Compression::Lz4,
        }
    }

    /// The batch in it. Fails where its lengths do not add up, before `arrow-ipc` can panic at them.
    pub(crate) fn batch(&self, schema: &SchemaRef) -> Result<RecordBatch, String> {
        let envelope = root_as_message(&self.metadata).map_err(|error| error.to_string())?;
        let Some(batch) = envelope.header_as_record_batch() else {
            return Err(format!("it is a message of the kind {:?}", envelope.header_type()));
        };
        if batch.variadicBufferCounts().is_some_and(|counts| !counts.is_empty()) {
            return Err("it is laid out in a way that no segment is".into());
        }
        let (Some(nodes), Some(buffers)) = (batch.nodes(), batch.buffers()) else {
            return Err("it does not tell where its columns lie".into());
        };
        let compressed = batch.compression().is_some();
        let mut layout =
            Layout { nodes: nodes.iter(), buffers: buffers.iter(), body: &self.body, compressed, left: MOST_BYTES };
        for field in schema.fields() {
            layout
                .check(field.data_type(), batch.length())
                .ok_or_else(|| format!("the column `{}` does not lie within it", field.name()))?;
        }
        RecordBatchDecoder::try_new(&self.body, batch, schema.clone(), &HashMap::new(), &envelope.version())
            .and_then(RecordBatchDecoder::read_record_batch)
            .map_err(|error| describe(&error))
    }
}

/// Whether a column has one of the types that segments have.
fn is_readable(field: arrow_ipc::Field<'_>) -> bool {
    use arrow_ipc::{Precision, TimeUnit, Type};
    let type_is_ours = match field.type_type() {
        Type::Bool | Type::Utf8 => true,
        Type::Int => field.type_as_int().is_some_and(|int| matches!(int.bitWidth(), 8 | 16 | 32 | 64)),
        Type::FloatingPoint => field
            .type_as_floating_point()
            .is_some_and(|float| [Precision::HALF, Precision::SINGLE, Precision::DOUBLE].contains(&float.precision())),
        Type::FixedSizeBinary => field.type_as_fixed_size_binary().is_some_and(|binary| binary.byteWidth() >= 0),
        Type::Timestamp => field.type_as_timestamp().is_some_and(|time| time.unit() == TimeUnit::NANOSECOND),
        Type::FixedSizeList => {
            field.type_as_fixed_size_list().is_some()
                && field.children().is_some_and(|children| children.len() == 1 && is_readable(children.get(0)))
        }
        _ => false,
    };
    type_is_ours && field.dictionary().is_none()
}

/// An error without Arrow's name for its kind, which tells a user nothing.
pub(crate) fn describe(error: &ArrowError) -> String {
    match error {
        ArrowError::IoError(_, error) => error.to_string(),
        other => other.to_string(),
    }
}

/// What a batch tells of its arrays, in the order of the columns: lengths, and where in the body the buffers lie.
struct Layout<'a, N, B> {
    nodes: N,
    buffers: B,
    body: &'a [u8],
    compressed: bool,
    /// Bytes that the buffers to come may still have.
    left: usize,
}

impl<'a, N: Iterator<Item = &'a arrow_ipc::FieldNode>, B: Iterator<Item = &'a arrow_ipc::Buffer>> Layout<'_, N, B> {
    /// Goes past the next array. `None` where it is not one of `length` elements whose buffers lie within the body.
    fn check(&mut self, data_type: &DataType, length: i64) -> Option<()> {
        // An element takes a byte, or a bit where a byte of another column stands for it: so the body bounds the length.
        let most = if self.compressed { MOST_BYTES } else { self.body.len() };
        let elements = usize::try_from(length).ok().filter(|elements| *elements <= most)?;
        let node = self.nodes.next()?;
        let nulls = usize::try_from(node.null_count()).ok()?;
        if node.length() != length || nulls > elements {
            return None;
        }
        let validity_bytes = self.next_buffer()?;
        if nulls > 0 && validity_bytes < elements.div_ceil(8) {
            return None;
        }
        match data_type {
            DataType::FixedSizeList(element, size) => {
                return self.check(element.data_type(), length.checked_mul(i64::from(*size))?);
            }
            DataType::Utf8 => {
                let offset_bytes = self.next_buffer()?;
                self.next_buffer().filter(|_| offset_bytes.is_multiple_of(size_of::<i32>()))?;
            }
            _ => {
                self.next_buffer()?;
            }
        }
        Some(())
    }

    /// Length of the next buffer, taken apart; `None` where it does not lie within the body, aligned, or is too long.
    fn next_buffer(&mut self) -> Option<usize> {
        let buffer = self.buffers.next()?;
        let (offset, length) = (usize::try_from(buffer.offset()).ok()?, usize::try_from(buffer.length()).ok()?);
        let bytes = self.body.get(offset..offset.checked_add(length)?).filter(|_| offset.is_multiple_of(ALIGNMENT))?;
        if !self.compressed || bytes.is_empty() {
            return Some(length);
        }
        // Its own length stands before a compressed buffer; -1 before one that was not worth it.
        let (before, stored) = bytes.split_first_chunk::<8>()?;
        let length = match i64::from_le_bytes(*before) {
            -1 => stored.len(),
            length => usize::try_from(length).ok()?,
        };
        self.left = self.left.checked_sub(length)?;
        Some(length)
    }
}
