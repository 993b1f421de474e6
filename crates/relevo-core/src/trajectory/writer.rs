//! Writes a run to its folder, piece by piece.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::run::{ModelInfo, RunFolder, RunInfo};
use super::segment_writer::{Fsync, SegmentWriter};
use super::{Compression, Piece, StepSchema, StreamPlace, batch};
use crate::{Error, Result};

/// How a run is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriterOptions {
    /// How batches are packed.
    pub compression: Compression,
    /// When the system is asked to put on the disk what was written.
    pub fsync: Fsync,
    /// A segment that has as many bytes is closed, and another one begun.
    pub segment_bytes: u64,
    /// A segment that is as old is closed, and another one begun.
    pub segment_time: Duration,
}

impl WriterOptions {
    /// Pieces are gathered until they hold this many bytes, and then written as one batch.
    pub const BATCH_BYTES: usize = 8 << 20;
}

impl Default for WriterOptions {
    /// No compression, on the disk when a segment is closed, segments of 1 GiB and 15 minutes at most.
    fn default() -> Self {
        Self {
            compression: Compression::None,
            fsync: Fsync::Segment,
            segment_bytes: 1 << 30,
            segment_time: Duration::from_mins(15),
        }
    }
}

/// Writes the episodes of one run: a segment for each kind of steps, a batch whenever enough has gathered.
///
/// Whatever was written before a failure, or before the process was killed, stays readable. After a failure nothing more
/// is taken: [`push`](Self::push) and [`flush`](Self::flush) fail, and [`close`](Self::close) closes what is whole.
pub struct RunWriter {
    folder: RunFolder,
    info: RunInfo,
    options: WriterOptions,
    streams: Vec<Stream>,
    next_segment: usize,
    /// What the first failure said.
    failure: Option<String>,
    /// Episodes whose last piece the operating system has.
    episodes_written: u64,
    steps_written: u64,
    batches_written: u64,
    bytes_written: u64,
}

impl std::fmt::Debug for RunWriter {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("RunWriter").field("folder", &self.folder.path()).finish_non_exhaustive()
    }
}

/// The pieces of one schema.
struct Stream {
    steps: Arc<StepSchema>,
    segment: Option<SegmentWriter>,
    gathered: Vec<Piece>,
    bytes: usize,
}

impl RunWriter {
    /// Makes the run's folder at `path` and writes `info` into it.
    ///
    /// # Errors
    /// [`Error::Trajectory`] where the folder holds a run already, another program writes to it, or it cannot be made or
    /// written.
    pub fn create(path: &Path, info: &RunInfo, options: WriterOptions) -> Result<Self> {
        let folder = RunFolder::create(path, info, true)?;
        let (path, run) = (path.display(), info.run_id);
        tracing::info!(%path, %run, "the run folder {path} is open");
        Ok(Self::new(folder, info.clone(), options, 0))
    }

    pub(super) fn new(folder: RunFolder, info: RunInfo, options: WriterOptions, next_segment: usize) -> Self {
        Self {
            folder,
            info,
            options,
            streams: Vec::new(),
            next_segment,
            failure: None,
            episodes_written: 0,
            steps_written: 0,
            batches_written: 0,
            bytes_written: 0,
        }
    }

    /// Adds a model to those that `run.json` names.
    ///
    /// # Errors
    /// [`Error::Trajectory`] where it cannot be written; nothing else changes then.
    pub fn add_model(&mut self, model: ModelInfo) -> Result<()> {
        self.info.models.push(model);
        self.folder.describe(&self.info)
    }

    /// Takes a piece, and writes what has gathered once that is enough for a batch.
    ///
    /// # Errors
    /// [`Error::Trajectory`] where the piece contradicts itself (it alone is not taken), where writing fails, and where
    /// it failed before.
    pub fn push(&mut self, piece: Piece) -> Result<()> {
        self.check()?;
        batch::check(&piece).map_err(|reason| {
            let number = piece.episode.number;
            Error::trajectory(self.folder.path(), format!("episode {number} cannot be recorded: {reason}"))
        })?;
        let index = match self.streams.iter().position(|stream| stream.takes(&piece)) {
            Some(index) => index,
            None => self.open_stream(&piece.episode.schema)?,
        };
        let stream = &mut self.streams[index];
        stream.bytes += piece.episode.bytes();
        stream.gathered.push(piece);
        if stream.bytes < WriterOptions::BATCH_BYTES {
            return Ok(());
        }
        let written = self.write(index);
        self.remember(written)
    }

    /// Writes what has gathered, so that it outlives the process, and closes segments that are old enough.
    ///
    /// # Errors
    /// [`Error::Trajectory`] where writing fails, or failed before.
    pub fn flush(&mut self) -> Result<()> {
        self.check()?;
        let written = self.write_all();
        self.remember(written)
    }

    /// Writes what has gathered and closes the segments; after a failure, those that can be closed. `streams` is how far the
    /// actors' random streams have been used.
    ///
    /// # Errors
    /// [`Error::Trajectory`] with the first failure there was, in writing or in closing.
    pub fn close(&mut self, streams: &[StreamPlace]) -> Result<()> {
        let before = self.check();
        let mut result = before.and(self.write_all());
        let mut streams = streams;
        for segment in self.streams.drain(..).filter_map(|stream| stream.segment) {
            result = result.and(segment.close(streams));
            streams = &[];
        }
        let (path, episodes, steps) = (self.folder.path().display(), self.episodes_written, self.steps_written);
        tracing::info!(%path, episodes, steps, "the run folder {path} is closed: {steps} steps in {episodes} episodes");
        result
    }

    /// Number of episodes that the operating system has to their ends; those that still gather are not counted.
    pub fn episodes_written(&self) -> u64 {
        self.episodes_written
    }

    /// Number of steps written.
    pub fn steps_written(&self) -> u64 {
        self.steps_written
    }

    /// Number of batches written.
    pub fn batches_written(&self) -> u64 {
        self.batches_written
    }

    /// Bytes of the batches written.
    pub fn bytes_written(&self) -> u64 {
        self.bytes_written
    }

    fn open_stream(&mut self, steps: &Arc<StepSchema>) -> Result<usize> {
        self.streams.push(Stream { steps: steps.clone(), segment: None, gathered: Vec::new(), bytes: 0 });
        let index = self.streams.len() - 1;
        // Now, so that a folder that cannot be written is told at the first step.
        let opened = self.segment(index).map(drop);
        self.remember(opened)?;
        Ok(index)
    }

    /// The segment of a stream, begun where there is none.
    fn segment(&mut self, index: usize) -> Result<&mut SegmentWriter> {
        let stream = &mut self.streams[index];
        let segment = if let Some(segment) = stream.segment.take() {
            segment
        } else {
            let path = self.folder.segment(self.next_segment);
            self.next_segment += 1;
            SegmentWriter::create(&path, &stream.steps, self.options.compression, self.options.fsync)?
        };
        Ok(stream.segment.insert(segment))
    }

    /// Writes what has gathered for all schemas, and tells the first failure.
    fn write_all(&mut self) -> Result<()> {
        let mut result = Ok(());
        for index in 0..self.streams.len() {
            let there = self.streams[index].segment.as_mut().map_or(Ok(()), SegmentWriter::check_there);
            result = result.and(there).and_then(|()| self.write(index));
        }
        result
    }

    fn write(&mut self, index: usize) -> Result<()> {
        let stream = &mut self.streams[index];
        let pieces = std::mem::take(&mut stream.gathered);
        stream.bytes = 0;
        if !pieces.is_empty() {
            let segment = self.segment(index)?;
            let before = segment.bytes();
            segment.append(&pieces)?;
            self.bytes_written += segment.bytes() - before;
            self.batches_written += 1;
            self.episodes_written += pieces.iter().filter(|piece| piece.last).count() as u64;
            self.steps_written += pieces.iter().map(|piece| piece.episode.len as u64).sum::<u64>();
            // The list is used again; what it held goes.
            let stream = &mut self.streams[index];
            stream.gathered = pieces;
            stream.gathered.clear();
        }
        self.rotate(index)
    }

    /// Closes a segment that is large or old enough. One that holds nothing stays, however old.
    fn rotate(&mut self, index: usize) -> Result<()> {
        let WriterOptions { segment_bytes, segment_time, .. } = self.options;
        let full = |segment: &mut SegmentWriter| {
            !segment.is_empty() && (segment.bytes() >= segment_bytes || segment.since.elapsed() >= segment_time)
        };
        self.streams[index].segment.take_if(full).map_or(Ok(()), |segment| segment.close(&[]))
    }

    fn remember<T>(&mut self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| self.failure = Some(error.to_string()))
    }

    fn check(&self) -> Result<()> {
        match &self.failure {
            None => Ok(()),
            Some(failure) => {
                let reason = format!("recording stopped at an earlier failure: {failure}");
                Err(Error::trajectory(self.folder.path(), reason))
            }
        }
    }
}

impl Stream {
    fn takes(&self, piece: &Piece) -> bool {
        Arc::ptr_eq(&self.steps, &piece.episode.schema) || self.steps == piece.episode.schema
    }
}
