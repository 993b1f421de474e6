//! Writes one segment: an Arrow IPC file that can be read at any moment, and its sidecar.
//!
//! A segment is the file's header, a schema message, and one message for each batch; closing it adds an end mark and the
//! footer. What the sidecar tells of is always readable.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use arrow_schema::SchemaRef;
use crc32fast::Hasher;

use super::{
    Compression, Piece, StepSchema, StreamPlace,
    batch::Body,
    encoder::Encoder,
    index::{BatchPlace, End, IndexWriter, Part},
    message::describe,
    schema,
};
use crate::{Error, Result};

/// Smaller pieces of a batch are put together before they are handed to the system, which takes much at a time a fifth faster than
/// 64 KiB: it sets memory aside in larger pieces. Beyond a core's cache it gets slower again.
const BUFFER: usize = 1 << 21;

/// When the system is asked to put on the disk what was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fsync {
    /// Never: what was written outlives the process, though not a power cut.
    Never,
    /// When a segment is closed.
    #[default]
    Segment,
    /// After each batch.
    Batch,
}

impl Fsync {
    /// The names by which users choose.
    pub const NAMES: [(&str, Self); 3] = [("never", Self::Never), ("segment", Self::Segment), ("batch", Self::Batch)];
}

/// Writes one segment.
pub(crate) struct SegmentWriter {
    path: PathBuf,
    steps: Arc<StepSchema>,
    schema: SchemaRef,
    encoder: Encoder,
    file: BufWriter<Sink>,
    body: Body,
    index: IndexWriter,
    fsync: Fsync,
    batches: u64,
    /// Names that the parts in the sidecar count by.
    pub(crate) policies: Vec<Arc<str>>,
    /// When it was begun.
    pub(crate) since: Instant,
}

impl SegmentWriter {
    /// Makes the file and its sidecar, which must not be there yet, and writes their beginnings.
    pub(crate) fn create(path: &Path, steps: &Arc<StepSchema>, compression: Compression, fsync: Fsync) -> Result<Self> {
        let fail = |reason: String| Error::trajectory(path, reason);
        let schema = Arc::new(schema::to_arrow(steps).map_err(fail)?);
        let cannot = |error: io::Error| fail(format!("cannot create the segment: {error}"));
        let preamble = Encoder::preamble(&schema).map_err(|error| fail(describe(&error)))?;
        let encoder = Encoder::new(compression).map_err(cannot)?;
        let mut file = BufWriter::with_capacity(BUFFER, Sink::new(File::create_new(path).map_err(cannot)?));
        file.write_all(&preamble).and_then(|()| file.flush()).map_err(cannot)?;
        file.get_mut().keep();
        let index = IndexWriter::create(&index_path(path), &preamble).map_err(cannot)?;
        Ok(Self {
            path: path.into(),
            steps: steps.clone(),
            schema,
            encoder,
            file,
            body: Body::default(),
            index,
            fsync,
            batches: 0,
            policies: Vec::new(),
            since: Instant::now(),
        })
    }

    /// Bytes so far.
    pub(crate) fn bytes(&mut self) -> u64 {
        self.file.get_mut().whole
    }

    /// Whether it holds any steps.
    pub(crate) fn is_empty(&self) -> bool {
        self.batches == 0
    }

    /// Adds the pieces as one batch. When this returns, the operating system has them: they outlive the process, though a power
    /// cut only with [`Fsync::Batch`].
    pub(crate) fn append(&mut self, pieces: &[Piece]) -> Result<()> {
        self.body.fill(&self.steps, pieces).map_err(|reason| Error::trajectory(&self.path, reason))?;
        let mut first_row = 0;
        let parts: Vec<Part> = pieces
            .iter()
            .map(|piece| {
                let part = Part::of(piece, first_row, &mut self.policies);
                first_row += piece.rows() as u32;
                part
            })
            .collect();
        let offset = self.bytes();
        let written = self.encoder.batch(&self.body, offset, &mut self.file).and_then(|()| self.file.flush());
        self.told(written, u64::from(first_row), &parts)
    }

    /// Adds a batch as it stands in another segment of the same schema; its table ends at byte `metadata`.
    pub(crate) fn copy(&mut self, message: &[u8], metadata: usize, rows: u64, parts: &[Part]) -> Result<()> {
        let offset = self.bytes();
        let written = self.encoder.copy(message, metadata, offset, &mut self.file).and_then(|()| self.file.flush());
        self.told(written, rows, parts)
    }

    /// Tells of a batch in the sidecar, once it is written.
    fn told(&mut self, written: io::Result<()>, rows: u64, parts: &[Part]) -> Result<()> {
        let (offset, length, checksum) = self.settle(written)?;
        let place = BatchPlace::new(offset, length, rows, checksum);
        let mut told = self.sync(Fsync::Batch).and_then(|()| self.index.batch(&place, parts, &self.policies));
        if self.fsync == Fsync::Batch {
            told = told.and_then(|()| self.index.sync());
        }
        told.map_err(|error| self.cannot_write(&error.to_string()))?;
        self.batches += 1;
        Ok(())
    }

    /// Fails where the file was removed: what is written to it then goes nowhere.
    pub(crate) fn check_there(&mut self) -> Result<()> {
        if self.file.get_mut().is_there(&self.path) {
            return Ok(());
        }
        let reason =
            "the segment was removed while it was written, and with it what it held; record into another folder";
        Err(Error::trajectory(&self.path, reason))
    }

    /// Adds the footer; the sidecar tells how far the random streams have been used.
    pub(crate) fn close(mut self, streams: &[StreamPlace]) -> Result<()> {
        let written = self.encoder.finish(&self.schema, &mut self.file).and_then(|()| self.file.flush());
        let (offset, length, checksum) = self.settle(written)?;
        let end = End::new(self.batches, offset + length, checksum);
        let mut told = self.sync(Fsync::Segment);
        if !streams.is_empty() {
            told = told.and_then(|()| self.index.streams(streams));
        }
        told = told.and_then(|()| self.index.end(&end));
        if self.fsync != Fsync::Never {
            told = told.and_then(|()| self.index.sync());
        }
        told.map_err(|error| self.cannot_write(&error.to_string()))
    }

    /// Has the system put the segment on the disk, where the user wants that as often as `often`.
    fn sync(&mut self, often: Fsync) -> io::Result<()> {
        let wanted = match self.fsync {
            Fsync::Never => false,
            Fsync::Segment => often == Fsync::Segment,
            Fsync::Batch => true,
        };
        if wanted { self.file.get_mut().file.sync_data() } else { Ok(()) }
    }

    /// Makes what was written part of the file, or takes what there is of it away again. Gives its first byte, its length and
    /// its checksum.
    fn settle(&mut self, written: io::Result<()>) -> Result<(u64, u64, u32)> {
        let sink = self.file.get_mut();
        match written {
            Ok(()) => Ok(sink.keep()),
            Err(error) => {
                sink.cut();
                Err(self.cannot_write(&error.to_string()))
            }
        }
    }

    fn cannot_write(&mut self, error: &str) -> Error {
        let whole = self.bytes();
        let reason = format!(
            "cannot write: {error}; the {whole} bytes written before are whole and readable, and what was to follow is lost"
        );
        Error::trajectory(&self.path, reason)
    }
}

/// Where a repair makes new files, in the folder of the old ones.
pub(crate) const WORKSHOP: &str = "repair";

/// Where a reader finds the sidecar of the segment at `path`: in a repair's workshop, where that ended just before it put the
/// sidecar beside the segment.
pub(crate) fn found_index_path(path: &Path) -> PathBuf {
    let beside = index_path(path);
    let made = path.parent().zip(path.file_name()).map(|(folder, name)| folder.join(WORKSHOP).join(name));
    match made {
        Some(made) if !made.exists() && index_path(&made).exists() => index_path(&made),
        _ => beside,
    }
}

/// Where the sidecar of the segment at `path` lies.
pub(crate) fn index_path(path: &Path) -> PathBuf {
    path.with_extension("index")
}

/// The file under a segment. After a failed write it ends with the last whole message and takes nothing more, so that
/// what the buffer above still holds cannot land behind a torn message.
struct Sink {
    file: File,
    written: u64,
    whole: u64,
    failed: bool,
    /// Of what was written since.
    hasher: Hasher,
}

impl Sink {
    fn new(file: File) -> Self {
        Self { file, written: 0, whole: 0, failed: false, hasher: Hasher::new() }
    }

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

    /// Makes what was written part of the file. Gives its first byte, its length and its checksum.
    fn keep(&mut self) -> (u64, u64, u32) {
        let kept = (self.whole, self.written - self.whole, std::mem::take(&mut self.hasher).finalize());
        self.whole = self.written;
        kept
    }

    fn cut(&mut self) {
        self.failed = true;
        // Where this fails too, the file ends with a torn message, which the reader passes over.
        let _ = self.file.set_len(self.whole);
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.failed {
            return Err(io::Error::other("an earlier write to this segment failed"));
        }
        let count = self.file.write(bytes)?;
        self.written += count as u64;
        self.hasher.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
