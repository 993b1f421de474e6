//! Writes a run to its folder, episode by episode.

use std::path::Path;
use std::sync::Arc;

use super::run::{ModelInfo, RunFolder, RunInfo};
use super::segment::SegmentWriter;
use super::{Episode, StepSchema, batch};
use crate::{Error, Result};

/// Episodes are gathered until they hold this many bytes, and then written as one batch.
const BATCH_BYTES: usize = 8 << 20;

/// Writes the episodes of one run: a segment for each kind of steps, a batch whenever enough has gathered.
///
/// Whatever was written before a failure, or before the process was killed, stays readable. After a failure nothing more
/// is taken: [`push`](Self::push) and [`flush`](Self::flush) fail, and [`close`](Self::close) closes what is whole.
pub struct RunWriter {
    folder: RunFolder,
    info: RunInfo,
    streams: Vec<Stream>,
    /// What the first failure said.
    failure: Option<String>,
    episodes_written: u64,
    steps_written: u64,
}

/// The episodes of one schema.
struct Stream {
    steps: Arc<StepSchema>,
    segment: SegmentWriter,
    gathered: Vec<Arc<Episode>>,
    bytes: usize,
}

impl RunWriter {
    /// Makes the run's folder at `path` and writes `info` into it.
    ///
    /// # Errors
    /// [`Error::Trajectory`] where the folder holds a run already, or cannot be made or written.
    pub fn create(path: &Path, info: &RunInfo) -> Result<Self> {
        let folder = RunFolder::create(path, info)?;
        let (path, run) = (path.display(), info.run_id);
        tracing::info!(%path, %run, "the run folder {path} is open");
        Ok(Self {
            folder,
            info: info.clone(),
            streams: Vec::new(),
            failure: None,
            episodes_written: 0,
            steps_written: 0,
        })
    }

    /// Adds a model to those that `run.json` names.
    ///
    /// # Errors
    /// [`Error::Trajectory`] where it cannot be written; nothing else changes then.
    pub fn add_model(&mut self, model: ModelInfo) -> Result<()> {
        self.info.models.push(model);
        self.folder.describe(&self.info)
    }

    /// Takes an episode, and writes what has gathered once that is enough for a batch.
    ///
    /// # Errors
    /// [`Error::Trajectory`] where the episode contradicts itself (it alone is not taken), where writing fails, and where
    /// it failed before.
    pub fn push(&mut self, episode: Arc<Episode>) -> Result<()> {
        self.check()?;
        batch::check(&episode).map_err(|reason| {
            Error::trajectory(self.folder.path(), format!("episode {} cannot be recorded: {reason}", episode.number))
        })?;
        let index = match self.streams.iter().position(|stream| stream.takes(&episode)) {
            Some(index) => index,
            None => self.open_stream(&episode.schema)?,
        };
        let stream = &mut self.streams[index];
        stream.bytes += episode.bytes();
        stream.gathered.push(episode);
        if stream.bytes < BATCH_BYTES {
            return Ok(());
        }
        let written = self.write(index);
        self.remember(written)
    }

    /// Writes what has gathered, so that it outlives the process.
    ///
    /// # Errors
    /// [`Error::Trajectory`] where writing fails, or failed before.
    pub fn flush(&mut self) -> Result<()> {
        self.check()?;
        let written = self.write_all();
        self.remember(written)
    }

    /// Writes what has gathered and closes the segments; after a failure, those that can be closed.
    ///
    /// # Errors
    /// [`Error::Trajectory`] with the first failure there was, in writing or in closing.
    pub fn close(&mut self) -> Result<()> {
        let before = self.check();
        let mut result = before.and(self.write_all());
        for stream in self.streams.drain(..) {
            result = result.and(stream.segment.close());
        }
        let (path, episodes, steps) = (self.folder.path().display(), self.episodes_written, self.steps_written);
        tracing::info!(%path, episodes, steps, "the run folder {path} is closed: {steps} steps in {episodes} episodes");
        result
    }

    /// Number of episodes that the operating system has; those that still gather are not counted.
    pub fn episodes_written(&self) -> u64 {
        self.episodes_written
    }

    /// Number of steps in the episodes written.
    pub fn steps_written(&self) -> u64 {
        self.steps_written
    }

    fn open_stream(&mut self, steps: &Arc<StepSchema>) -> Result<usize> {
        let index = self.streams.len();
        let segment = SegmentWriter::create(&self.folder.segment(index), steps);
        let segment = self.remember(segment)?;
        self.streams.push(Stream { steps: steps.clone(), segment, gathered: Vec::new(), bytes: 0 });
        Ok(index)
    }

    /// Writes what has gathered for all schemas, and tells the first failure.
    fn write_all(&mut self) -> Result<()> {
        let mut result = Ok(());
        for index in 0..self.streams.len() {
            result = result.and(self.streams[index].segment.check_there()).and(self.write(index));
        }
        result
    }

    fn write(&mut self, index: usize) -> Result<()> {
        let stream = &mut self.streams[index];
        let episodes = std::mem::take(&mut stream.gathered);
        stream.bytes = 0;
        if episodes.is_empty() {
            return Ok(());
        }
        stream.segment.append(&episodes)?;
        self.episodes_written += episodes.len() as u64;
        self.steps_written += episodes.iter().map(|episode| episode.len as u64).sum::<u64>();
        Ok(())
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
    fn takes(&self, episode: &Episode) -> bool {
        Arc::ptr_eq(&self.steps, &episode.schema) || self.steps == episode.schema
    }
}
