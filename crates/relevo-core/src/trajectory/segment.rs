//! Reads one segment: batch by batch, in any order, each compared with its checksum.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use arrow_array::RecordBatch;
use arrow_buffer::{Buffer, MutableBuffer};
use arrow_schema::{Schema, SchemaRef};
use crc32fast::hash;

use super::{
    Compression, StepSchema,
    columns::Columns,
    index::{BatchPlace, End, Index, Part},
    map::map,
    message::{Found, HEADER, Message},
    schema,
    segment_writer::found_index_path,
};
use crate::{Error, Result};

/// One segment, open for reading.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) path: PathBuf,
    pub(crate) schema: SchemaRef,
    pub(crate) steps: Arc<StepSchema>,
    pub(crate) batches: Vec<Batch>,
    pub(crate) parts: Vec<Part>,
    /// What its sidecar tells besides; nothing where that is missing.
    pub(crate) index: Index,
    /// What is wrong with it, though all its steps are there.
    pub(crate) problems: Vec<String>,
    /// What is lost of it.
    pub(crate) lost: Vec<String>,
    /// Bytes at its end that never became a batch.
    pub(crate) unfinished: u64,
    /// How its batches are packed: as the first one is.
    pub(crate) compression: Compression,
    bytes: Bytes,
}

/// A batch of a segment.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) place: BatchPlace,
    /// Of [`Segment::parts`].
    pub(crate) parts: Range<usize>,
    /// Whether its checksum is known.
    pub(crate) is_checked: bool,
    /// Whether it has been compared with its checksum.
    verified: AtomicBool,
    /// What was read of it, where that takes no memory of its own.
    read: OnceLock<RecordBatch>,
}

/// The bytes of a segment.
#[derive(Debug)]
struct Bytes {
    path: PathBuf,
    length: u64,
    /// `None` for a file that is still written, or was left by a process that was killed: it may become shorter under its
    /// readers, and a map of it would kill them.
    map: Option<Buffer>,
}

impl Bytes {
    /// A part of the file, without a copy where it is mapped.
    fn read(&self, offset: u64, length: u64) -> io::Result<Buffer> {
        if offset.checked_add(length).is_none_or(|end| end > self.length) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(map) = &self.map {
            return Ok(map.slice_with_length(offset as usize, length as usize));
        }
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(offset))?;
        let mut bytes = MutableBuffer::from_len_zeroed(length as usize);
        file.read_exact(bytes.as_slice_mut())?;
        Ok(bytes.into())
    }

    /// The message at `offset`.
    fn message(&self, offset: u64) -> Result<Found, String> {
        let left = self.length.saturating_sub(offset);
        let mut wanted = if self.map.is_some() { left } else { left.min(1 << 16) };
        loop {
            let bytes = self.read(offset, wanted).map_err(|error| format!("reading gave: {error}"))?;
            match Message::at(&bytes)? {
                // There may be more of it.
                Found::Nothing if wanted < left => wanted = left.min(wanted * 8),
                found => return Ok(found),
            }
        }
    }
}

impl Segment {
    /// Opens the segment; `None` where its writer was killed before there was a whole schema in it.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>> {
        let fail = |reason: String| Error::trajectory(path, reason);
        let cannot = |error: io::Error| fail(format!("cannot read: {error}"));
        let sidecar = found_index_path(path);
        let index = match Index::read(&sidecar) {
            // One that tells nothing is as good as none.
            Ok(index) => Some(index).filter(|index| index.preamble.is_some() || !index.batches.is_empty()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(Error::trajectory(&sidecar, format!("cannot read: {error}"))),
        };
        let length = path.metadata().map_err(cannot)?.len();
        let is_closed = index.as_ref().and_then(|index| index.end).is_some_and(|end| end.file_length == length);
        let map = if is_closed { Some(map(path).map_err(cannot)?) } else { None };
        let bytes = Bytes { path: path.into(), length, map };
        let mut problems = Vec::new();
        let schema = read_schema(&bytes);
        let (schema, start) = match (schema, index.as_ref().and_then(|index| index.preamble.as_ref())) {
            (Ok(found), None) => found,
            (Ok((schema, end)), Some(preamble))
                if end == preamble.len() as u64 && bytes.read(0, end).is_ok_and(|bytes| *bytes == preamble[..]) =>
            {
                (schema, end)
            }
            (_, Some(preamble)) => {
                problems.push("its beginning is damaged; what its sidecar holds of it is used instead".into());
                let bytes = Bytes {
                    path: sidecar.clone(),
                    length: preamble.len() as u64,
                    map: Some(Buffer::from_slice_ref(preamble)),
                };
                let schema = read_schema(&bytes).map_err(|reason| Error::trajectory(&sidecar, reason))?.0;
                let schema = schema.ok_or_else(|| Error::trajectory(&sidecar, "there is no schema in it"))?;
                (Some(schema), preamble.len() as u64)
            }
            (Err(reason), None) => return Err(fail(reason)),
        };
        let Some(schema) = schema else { return Ok(None) };
        let steps = Arc::new(schema::from_arrow(&schema).map_err(fail)?);
        let mut segment = Self {
            path: path.into(),
            schema: Arc::new(schema),
            steps,
            batches: Vec::new(),
            parts: Vec::new(),
            index: Index::default(),
            problems,
            lost: Vec::new(),
            unfinished: 0,
            compression: Compression::None,
            bytes,
        };
        match index {
            Some(index) => segment.follow(index, start),
            None => segment.scan(start),
        }
        if let Some(first) = segment.batches.first()
            && let Ok(Found::Message(message)) = segment.bytes.message(first.place.offset)
        {
            segment.compression = message.compression();
        }
        Ok(Some(segment))
    }

    /// Takes the batches that the sidecar tells of, and those in its gaps; the first one begins at `start`.
    fn follow(&mut self, mut index: Index, start: u64) {
        self.parts = std::mem::take(&mut index.parts);
        self.index.policies = std::mem::take(&mut index.policies);
        let mut end = start;
        for offset in &index.damaged {
            self.problems.push(format!("its sidecar is damaged at byte {offset}"));
        }
        let told = std::mem::take(&mut index.batches);
        let count = told.len();
        for (at, batch) in told.into_iter().enumerate() {
            if batch.place.offset > end {
                self.fill(end, batch.place.offset);
            }
            end = batch.place.end();
            if end > self.bytes.length {
                self.lost.push(format!(
                    "it ends at byte {}, within batch {at}: this one and the {} behind it are lost",
                    self.bytes.length,
                    count - at - 1
                ));
                break;
            }
            self.batches.push(Batch {
                place: batch.place,
                parts: batch.parts,
                is_checked: true,
                verified: AtomicBool::new(false),
                read: OnceLock::new(),
            });
        }
        match index.end {
            Some(closed) => {
                if closed.batches > self.batches.len() as u64 && end <= self.bytes.length {
                    self.fill(end, self.bytes.length);
                }
                if closed.file_length != self.bytes.length {
                    let (has, had) = (self.bytes.length, closed.file_length);
                    self.problems.push(format!("it has {has} bytes, and had {had} when it was closed"));
                }
            }
            // A segment that was closed has more than a batch that its writer was at: its sidecar was cut.
            None if self.has_footer() => {
                let told = self.batches.len();
                self.fill(end, self.bytes.length);
                if self.batches.len() > told {
                    self.problems.push(format!(
                        "its sidecar ends with batch {told}, so nothing tells whether what follows is what was written"
                    ));
                }
            }
            None => self.unfinished = self.bytes.length.saturating_sub(end),
        }
        index.policies = std::mem::take(&mut self.index.policies);
        self.index = index;
    }

    /// Takes all batches there are in a segment that has no sidecar.
    fn scan(&mut self, start: u64) {
        self.fill(start, self.bytes.length);
        // A writer that was killed at its first moment left neither.
        if !self.batches.is_empty() || !self.lost.is_empty() {
            self.problems
                .push("its sidecar is missing, so nothing tells whether its bytes are those that were written".into());
        }
    }

    /// Whether it ends as a file that was closed.
    fn has_footer(&self) -> bool {
        const END: &[u8] = b"ARROW1";
        let length = END.len() as u64;
        self.bytes.length >= length && self.bytes.read(self.bytes.length - length, length).is_ok_and(|end| *end == *END)
    }

    /// Takes the batches between these bytes, of which the sidecar does not tell.
    fn fill(&mut self, mut offset: u64, until: u64) {
        while offset < until {
            let message = match self.bytes.message(offset) {
                Ok(Found::Message(message)) => message,
                Ok(Found::Nothing) => return,
                Err(reason) => return self.lost.push(format!("at byte {offset}, {reason}; what follows is lost")),
            };
            let length = message.length as u64;
            let place = BatchPlace::new(offset, length, 0, 0);
            offset += length;
            let parts = message.batch(&self.schema).and_then(|batch| {
                Ok((batch.num_rows() as u64, Columns::of(&batch, &self.steps)?.parts(&mut self.index.policies)?))
            });
            match parts {
                Ok((rows, parts)) => {
                    let known = self.parts.len();
                    self.parts.extend(parts);
                    self.batches.push(Batch {
                        place: BatchPlace::new(place.offset, place.length, rows, 0),
                        parts: known..self.parts.len(),
                        is_checked: false,
                        verified: AtomicBool::new(false),
                        read: OnceLock::new(),
                    });
                }
                Err(reason) => {
                    self.lost.push(format!("the batch at byte {} is damaged, and lost: {reason}", place.offset));
                }
            }
        }
    }

    /// The parts of a batch.
    pub(crate) fn parts(&self, batch: usize) -> &[Part] {
        &self.parts[self.batches[batch].parts.clone()]
    }

    /// The bytes of a batch, and where its table ends.
    pub(crate) fn message(&self, index: usize) -> io::Result<(Buffer, usize)> {
        let place = &self.batches[index].place;
        let bytes = self.bytes.read(place.offset, place.length)?;
        match Message::at(&bytes) {
            Ok(Found::Message(message)) => Ok((bytes, message.body_at())),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// What follows its last batch, and what the sidecar tells of that; `None` where it was never closed.
    pub(crate) fn tail(&self) -> io::Result<Option<(Buffer, End)>> {
        let Some(end) = self.index.end.filter(|end| end.file_length == self.bytes.length) else { return Ok(None) };
        let from = self.batches.last().map(|batch| batch.place.end()).or(self
            .index
            .preamble
            .as_ref()
            .map(|preamble| preamble.len() as u64));
        let from = from.unwrap_or(self.bytes.length);
        self.bytes.read(from, self.bytes.length - from).map(|tail| Some((tail, end)))
    }

    /// Bytes of the file.
    pub(crate) fn length(&self) -> u64 {
        self.bytes.length
    }

    /// Reads a batch. It is compared with its checksum the first time, and where it is not mapped, each time.
    ///
    /// # Errors
    /// [`Error::Trajectory`] with the file, the batch and its first byte.
    pub(crate) fn batch(&self, index: usize) -> Result<RecordBatch> {
        let batch = &self.batches[index];
        if let Some(read) = batch.read.get() {
            return Ok(read.clone());
        }
        let damaged = |reason: String| {
            let offset = batch.place.offset;
            Error::trajectory(&self.path, format!("batch {index}, at byte {offset}, is damaged: {reason}"))
        };
        let bytes =
            self.bytes.read(batch.place.offset, batch.place.length).map_err(|error| damaged(error.to_string()))?;
        if batch.is_checked && !(self.bytes.map.is_some() && batch.verified.load(Ordering::Relaxed)) {
            if hash(&bytes) != batch.place.checksum {
                return Err(damaged("its bytes are not those that were written".into()));
            }
            batch.verified.store(true, Ordering::Relaxed);
        }
        let Found::Message(message) = Message::at(&bytes).map_err(damaged)? else {
            return Err(damaged("it is not whole".into()));
        };
        let read = message.batch(&self.schema).map_err(damaged)?;
        if self.bytes.map.is_some() && self.compression == Compression::None {
            return Ok(batch.read.get_or_init(|| read).clone());
        }
        Ok(read)
    }

    /// An error about a batch that contradicts itself.
    pub(crate) fn contradicts(&self, batch: usize, reason: impl std::fmt::Display) -> Error {
        Error::trajectory(&self.path, format!("batch {batch} contradicts itself: {reason}"))
    }
}

/// The schema, and where it ends; `None` where the file ends before that.
fn read_schema(bytes: &Bytes) -> Result<(Option<Schema>, u64), String> {
    let cannot = |error: io::Error| format!("cannot read: {error}");
    let length = (HEADER.len() as u64).min(bytes.length);
    let header = bytes.read(0, length).map_err(cannot)?;
    if !HEADER.starts_with(&header) {
        return Err("not an Arrow IPC file, so not a segment of a run".into());
    }
    if header.len() < HEADER.len() {
        return Ok((None, length));
    }
    let not_ours = |reason| format!("no schema that can be read ({reason}): not a segment of a run, or damaged");
    match bytes.message(length).map_err(not_ours)? {
        Found::Nothing => Ok((None, length)),
        Found::Message(message) => Ok((Some(message.schema()?), length + message.length as u64)),
    }
}
