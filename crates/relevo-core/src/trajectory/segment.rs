//! One file of steps: an Arrow IPC file that can be read at any moment, closed or not.
//!
//! A segment is the file's header, a schema message, and one message for each batch of whole episodes; closing it adds an
//! end mark and the footer. What stands before the end of the last whole message is always readable.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::{Buffer, MutableBuffer};
use arrow_ipc::reader::RecordBatchDecoder;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions};
use arrow_ipc::{MetadataVersion, convert::fb_to_schema, root_as_footer, root_as_message};
use arrow_schema::{ArrowError, DataType, Schema, SchemaRef};

use super::batch::record_batch;
use super::{Episode, StepSchema, schema};
use crate::{Error, Result};

/// The first bytes of an Arrow IPC file. As many bytes follow as make the next message begin at a multiple of the
/// alignment, so the alignment must be 8 for a reader of streams to find the first message right after them.
const HEADER: &[u8; 8] = b"ARROW1\0\0";
const ALIGNMENT: usize = 8;

/// The last bytes of a closed file, after the footer and its length.
const TRAILER: &[u8; 6] = b"ARROW1";

/// What every message begins with; its length follows.
const CONTINUATION: [u8; 4] = [0xff; 4];

/// Writes one segment.
pub(crate) struct SegmentWriter {
    path: PathBuf,
    steps: Arc<StepSchema>,
    schema: SchemaRef,
    writer: FileWriter<BufWriter<SegmentFile>>,
}

impl SegmentWriter {
    /// Makes the file, which must not be there yet, and writes its header.
    pub(crate) fn create(path: &Path, steps: &Arc<StepSchema>) -> Result<Self> {
        let fail = |reason: String| Error::trajectory(path, reason);
        let schema = Arc::new(schema::to_arrow(steps).map_err(fail)?);
        let cannot = |error: ArrowError| fail(format!("cannot create the segment: {}", describe(&error)));
        let options = IpcWriteOptions::try_new(ALIGNMENT, false, MetadataVersion::V5).map_err(cannot)?;
        let file = File::create_new(path).map_err(|error| cannot(error.into()))?;
        let file = BufWriter::with_capacity(1 << 16, SegmentFile { file, written: 0, whole: 0, failed: false });
        let mut writer = FileWriter::try_new_with_options(file, &schema, options).map_err(cannot)?;
        writer.flush().map_err(cannot)?;
        writer.get_mut().get_mut().keep();
        Ok(Self { path: path.into(), steps: steps.clone(), schema, writer })
    }

    /// Adds the episodes as one batch. When this returns, the operating system has them: they outlive the process, though
    /// not a power cut.
    pub(crate) fn append(&mut self, episodes: &[Arc<Episode>]) -> Result<()> {
        let batch = record_batch(&self.schema, &self.steps, episodes)
            .map_err(|reason| Error::trajectory(&self.path, reason))?;
        let written = self.writer.write(&batch).and_then(|()| self.writer.flush());
        self.settle(written)
    }

    /// Fails where the file was removed: what is written to it then goes nowhere.
    pub(crate) fn check_there(&mut self) -> Result<()> {
        if self.writer.get_mut().get_mut().is_there(&self.path) {
            return Ok(());
        }
        let reason =
            "the segment was removed while it was written, and with it what it held; record into another folder";
        Err(Error::trajectory(&self.path, reason))
    }

    /// Adds the footer.
    pub(crate) fn close(mut self) -> Result<()> {
        let written = self.writer.finish();
        self.settle(written)
    }

    /// Makes what was written part of the file, or takes what there is of it away again.
    fn settle(&mut self, written: Result<(), ArrowError>) -> Result<()> {
        let file = self.writer.get_mut().get_mut();
        match written {
            Ok(()) => {
                file.keep();
                Ok(())
            }
            Err(error) => {
                file.cut();
                let reason = format!(
                    "cannot write: {}; the {} bytes written before are whole and readable, and what was to follow is lost",
                    describe(&error),
                    file.whole
                );
                Err(Error::trajectory(&self.path, reason))
            }
        }
    }
}

/// An error without Arrow's name for its kind, which tells a user nothing.
fn describe(error: &ArrowError) -> String {
    match error {
        ArrowError::IoError(_, error) => error.to_string(),
        other => other.to_string(),
    }
}

/// The file under a segment. After a failed write it ends with the last whole message and takes nothing more, so that
/// what the buffer above still holds cannot land behind a torn message.
struct SegmentFile {
    file: File,
    written: u64,
    whole: u64,
    failed: bool,
}

impl SegmentFile {
    /// Whether the file still has a name. A folder that was moved takes its files along.
    #[cfg(unix)]
    fn is_there(&self, _path: &Path) -> bool {
        use std::os::unix::fs::MetadataExt;
        self.file.metadata().is_ok_and(|metadata| metadata.nlink() > 0)
    }

    /// Whether the file is still in its place.
    #[cfg(not(unix))]
    fn is_there(&self, path: &Path) -> bool {
        path.exists()
    }

    fn keep(&mut self) {
        self.whole = self.written;
    }

    fn cut(&mut self) {
        self.failed = true;
        // Where this fails too, the file ends with a torn message, which the reader passes over.
        let _ = self.file.set_len(self.whole);
    }
}

impl Write for SegmentFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.failed {
            return Err(io::Error::other("an earlier write to this segment failed"));
        }
        let count = self.file.write(bytes)?;
        self.written += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Reads the batches of one segment, one after the other.
pub(crate) struct SegmentReader {
    path: PathBuf,
    messages: Messages,
    schema: SchemaRef,
    steps: Arc<StepSchema>,
    batches: usize,
}

impl SegmentReader {
    /// Opens the segment; `None` where its writer was killed before there was a whole schema in it.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>> {
        let fail = |reason: String| Error::trajectory(path, reason);
        let Some(mut messages) = Messages::open(path).map_err(fail)? else { return Ok(None) };
        let not_ours =
            |reason| fail(format!("no schema that can be read ({reason}): not a segment of a run, or damaged"));
        let Some(message) = messages.next().map_err(not_ours)? else { return Ok(None) };
        let schema = read_schema(&message.metadata).map_err(fail)?;
        let steps = Arc::new(schema::from_arrow(&schema).map_err(fail)?);
        Ok(Some(Self { path: path.into(), messages, schema: Arc::new(schema), steps, batches: 0 }))
    }

    /// Which columns the steps have.
    pub(crate) fn steps(&self) -> &Arc<StepSchema> {
        &self.steps
    }

    /// The next batch. A segment that was not closed may end with a batch that is cut: that one counts as none.
    pub(crate) fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        let message = self.messages.next().map_err(|reason| self.damaged(reason))?;
        let Some(message) = message else {
            return match self.messages.closed {
                Some(batches) if batches != self.batches => {
                    Err(self
                        .damaged(format!("it cannot be found, though the file's footer tells of {batches} batches")))
                }
                _ => Ok(None),
            };
        };
        let batch = read_batch(&message, &self.schema).map_err(|reason| self.damaged(reason))?;
        self.batches += 1;
        Ok(Some(batch))
    }

    /// An error about the batch that comes next.
    fn damaged(&self, reason: impl std::fmt::Display) -> Error {
        Error::trajectory(&self.path, format!("batch {} is damaged: {reason}", self.batches))
    }

    /// An error about the batch that was read last.
    pub(crate) fn contradicts(&self, reason: impl std::fmt::Display) -> Error {
        Error::trajectory(&self.path, format!("batch {} contradicts itself: {reason}", self.batches.saturating_sub(1)))
    }
}

/// One message of an IPC file: its flatbuffer and the bytes that this describes.
struct Message {
    metadata: Vec<u8>,
    body: Buffer,
}

/// The messages of an IPC file.
///
/// `arrow-ipc` trusts the lengths in a file: wrong ones make it panic, or ask for absurd amounts of memory. So messages
/// are taken apart here, and it is given only those whose lengths and types add up.
struct Messages {
    file: File,
    position: u64,
    end: u64,
    /// How many batches there are by the footer; `None` where the file was not closed.
    closed: Option<usize>,
}

impl Messages {
    /// `None` where the file ends within its header.
    fn open(path: &Path) -> Result<Option<Self>, String> {
        let cannot = |error: io::Error| format!("cannot read: {error}");
        let mut file = File::open(path).map_err(cannot)?;
        let length = file.metadata().map_err(cannot)?.len();
        let mut header = Vec::with_capacity(HEADER.len());
        Read::by_ref(&mut file).take(HEADER.len() as u64).read_to_end(&mut header).map_err(cannot)?;
        if !HEADER.starts_with(&header) {
            return Err("not an Arrow IPC file, so not a segment of a run".into());
        }
        if header.len() < HEADER.len() {
            return Ok(None);
        }
        let (end, closed) = match read_footer(&mut file, length).map_err(cannot)? {
            Some((start, batches)) => (start, Some(batches)),
            None => (length, None),
        };
        let position = file.seek(SeekFrom::Start(HEADER.len() as u64)).map_err(cannot)?;
        Ok(Some(Self { file, position, end, closed }))
    }

    /// The next message; `None` at the end mark, and where what is left is shorter than the message should be.
    fn next(&mut self) -> Result<Option<Message>, String> {
        let cannot = |error: io::Error| format!("cannot read: {error}");
        let mut prefix = [0; 8];
        if self.end - self.position < prefix.len() as u64 {
            return Ok(None);
        }
        self.file.read_exact(&mut prefix).map_err(cannot)?;
        self.position += prefix.len() as u64;
        let [a, b, c, d, length @ ..] = prefix;
        if [a, b, c, d] != CONTINUATION {
            return Err("there is something else where a message should begin".into());
        }
        let length = i32::from_le_bytes(length);
        let length = u64::try_from(length).map_err(|_| format!("its length is {length}"))?;
        if length == 0 || length > self.end - self.position {
            return Ok(None);
        }
        let mut metadata = vec![0; length as usize];
        self.file.read_exact(&mut metadata).map_err(cannot)?;
        self.position += length;
        let length = root_as_message(&metadata).map_err(|error| error.to_string())?.bodyLength();
        let length = u64::try_from(length).map_err(|_| format!("the length of its body is {length}"))?;
        if length > self.end - self.position {
            return Ok(None);
        }
        let mut body = MutableBuffer::from_len_zeroed(length as usize);
        self.file.read_exact(body.as_slice_mut()).map_err(cannot)?;
        self.position += length;
        Ok(Some(Message { metadata, body: body.into() }))
    }
}

/// Where the footer begins and how many batches it tells of; `None` where there is no whole one.
fn read_footer(file: &mut File, length: u64) -> io::Result<Option<(u64, usize)>> {
    let mut tail = [0; 4 + TRAILER.len()];
    let Some(footer_end) = length.checked_sub(tail.len() as u64) else { return Ok(None) };
    file.seek(SeekFrom::Start(footer_end))?;
    file.read_exact(&mut tail)?;
    let [a, b, c, d, trailer @ ..] = tail;
    let start = footer_end.checked_sub(u64::from(u32::from_le_bytes([a, b, c, d])));
    let Some(start) = start.filter(|start| trailer == *TRAILER && *start >= HEADER.len() as u64) else {
        return Ok(None);
    };
    let mut footer = vec![0; (footer_end - start) as usize];
    file.seek(SeekFrom::Start(start))?;
    file.read_exact(&mut footer)?;
    Ok(root_as_footer(&footer).ok().map(|footer| (start, footer.recordBatches().map_or(0, |batches| batches.len()))))
}

/// The schema in a message. Fails where it holds what no segment does, before `arrow-ipc` can panic at it.
fn read_schema(metadata: &[u8]) -> Result<Schema, String> {
    let message = root_as_message(metadata).map_err(|error| error.to_string())?;
    let Some((schema, fields)) = message.header_as_schema().and_then(|schema| Some((schema, schema.fields()?))) else {
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

/// The batch in a message. Fails where its lengths do not add up, before `arrow-ipc` can panic at them.
fn read_batch(message: &Message, schema: &SchemaRef) -> Result<RecordBatch, String> {
    let envelope = root_as_message(&message.metadata).map_err(|error| error.to_string())?;
    let Some(batch) = envelope.header_as_record_batch() else {
        return Err(format!("it is a message of the kind {:?}", envelope.header_type()));
    };
    if batch.compression().is_some() || batch.variadicBufferCounts().is_some_and(|counts| !counts.is_empty()) {
        return Err("it is laid out in a way that no segment is".into());
    }
    let (Some(nodes), Some(buffers)) = (batch.nodes(), batch.buffers()) else {
        return Err("it does not tell where its columns lie".into());
    };
    let mut layout = Layout { nodes: nodes.iter(), buffers: buffers.iter(), body: message.body.len() };
    for field in schema.fields() {
        layout
            .check(field.data_type(), batch.length())
            .ok_or_else(|| format!("the column `{}` does not lie within it", field.name()))?;
    }
    RecordBatchDecoder::try_new(&message.body, batch, schema.clone(), &HashMap::new(), &envelope.version())
        .and_then(RecordBatchDecoder::read_record_batch)
        .map_err(|error| describe(&error))
}

/// What a batch tells of its arrays, in the order of the columns: lengths, and where in the body the buffers lie.
struct Layout<N, B> {
    nodes: N,
    buffers: B,
    body: usize,
}

impl<'a, N: Iterator<Item = &'a arrow_ipc::FieldNode>, B: Iterator<Item = &'a arrow_ipc::Buffer>> Layout<N, B> {
    /// Goes past the next array. `None` where it is not one of `length` elements whose buffers lie within the body.
    fn check(&mut self, data_type: &DataType, length: i64) -> Option<()> {
        // An element takes a byte, or a bit where a byte of another column stands for it: so the body bounds the length.
        let elements = usize::try_from(length).ok().filter(|elements| *elements <= self.body)?;
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

    /// Length of the next buffer; `None` where it does not lie within the body, aligned.
    fn next_buffer(&mut self) -> Option<usize> {
        let buffer = self.buffers.next()?;
        let (offset, length) = (usize::try_from(buffer.offset()).ok()?, usize::try_from(buffer.length()).ok()?);
        (offset.checked_add(length)? <= self.body && offset.is_multiple_of(ALIGNMENT)).then_some(length)
    }
}

#[cfg(test)]
mod tests {
    use arrow_buffer::Buffer;
    use uuid::Uuid;

    use super::super::{ColumnSpec, PolicyRun};
    use super::*;
    use crate::spec::DType;

    fn episode() -> Episode {
        let column = |dtype| ColumnSpec { key: String::new(), dtype, shape: vec![] };
        let observations = vec![column(DType::Float32)];
        let schema =
            StepSchema { observations, actions: vec![column(DType::Int64)], mask: None, log_prob: false, value: false };
        Episode {
            number: 0,
            actor_id: Uuid::nil(),
            schema: Arc::new(schema),
            len: 1,
            observations: vec![Buffer::from_vec(vec![0.5_f32])],
            has_final_observation: false,
            actions: vec![Buffer::from_vec(vec![1_i64])],
            masks: None,
            rewards: Buffer::from_vec(vec![1.0_f64]),
            reward_known: None,
            log_probs: None,
            values: None,
            policies: vec![PolicyRun { from: 0, policy: "pilot".into(), version: 1 }],
            timestamps: Buffer::from_vec(vec![0_i64]),
            terminated: false,
            truncated: false,
            complete: false,
        }
    }

    fn batches(path: &Path) -> usize {
        let mut reader = SegmentReader::open(path).unwrap().unwrap();
        std::iter::from_fn(|| reader.next_batch().unwrap()).count()
    }

    #[test]
    fn a_failed_write_leaves_the_earlier_batches_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("000000.arrow");
        let episodes = [Arc::new(episode())];
        let mut writer = SegmentWriter::create(&path, &episodes[0].schema).unwrap();
        writer.append(&episodes).unwrap();
        let length = path.metadata().unwrap().len();

        // The disk is full when half of a message is in the file and the other half in the buffer.
        let buffer = writer.writer.get_mut();
        buffer.get_mut().write_all(&CONTINUATION).unwrap();
        buffer.write_all(&[1; 100]).unwrap();
        assert_eq!(path.metadata().unwrap().len(), length + 4);
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let text = writer.settle(Err(full.into())).unwrap_err().to_string();
        assert!(text.contains(&format!("the {length} bytes written before")), "{text}");

        assert_eq!(path.metadata().unwrap().len(), length);
        assert!(writer.append(&episodes).is_err());
        assert!(writer.close().is_err());
        assert_eq!(path.metadata().unwrap().len(), length);
        assert_eq!(batches(&path), 1);
    }
}
