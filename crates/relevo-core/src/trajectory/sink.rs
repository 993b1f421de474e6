//! Where a recorder writes: Arrow segments, or CSV files.

use std::path::Path;

use super::{CsvWriter, ModelInfo, Piece, RunInfo, RunWriter, StreamPlace, WriterOptions};
use crate::Result;

/// How a run's steps are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Arrow IPC files of many episodes.
    #[default]
    Arrow,
    /// A CSV file for each episode.
    Csv,
}

impl Format {
    /// Their names.
    pub const NAMES: [(&'static str, Self); 2] = [("arrow", Self::Arrow), ("csv", Self::Csv)];
}

/// The writer of a run folder.
#[derive(Debug)]
pub enum Sink {
    /// Of Arrow segments.
    Arrow(RunWriter),
    /// Of CSV files.
    Csv(CsvWriter),
}

impl Sink {
    /// Makes the run's folder at `path` and writes `info` into it. Of the options, CSV files heed `fsync` alone.
    ///
    /// # Errors
    /// [`Error::Trajectory`](crate::Error::Trajectory) where the folder holds a run already, another program writes to it, or it
    /// cannot be made or written.
    pub fn create(path: &Path, info: &RunInfo, format: Format, options: WriterOptions) -> Result<Self> {
        Ok(match format {
            Format::Arrow => Self::Arrow(RunWriter::create(path, info, options)?),
            Format::Csv => Self::Csv(CsvWriter::create(path, info, options.fsync)?),
        })
    }

    /// Adds a model to those that `run.json` names.
    pub(crate) fn add_model(&mut self, model: ModelInfo) -> Result<()> {
        match self {
            Self::Arrow(writer) => writer.add_model(model),
            Self::Csv(writer) => writer.add_model(model),
        }
    }

    /// Takes a piece.
    pub(crate) fn push(&mut self, piece: Piece) -> Result<()> {
        match self {
            Self::Arrow(writer) => writer.push(piece),
            Self::Csv(writer) => writer.push(&piece),
        }
    }

    /// Writes what has gathered.
    pub(crate) fn flush(&mut self) -> Result<()> {
        match self {
            Self::Arrow(writer) => writer.flush(),
            Self::Csv(writer) => writer.check(),
        }
    }

    /// Writes what has gathered, and closes the files.
    pub(crate) fn close(&mut self, streams: &[StreamPlace]) -> Result<()> {
        match self {
            Self::Arrow(writer) => writer.close(streams),
            Self::Csv(writer) => writer.check(),
        }
    }

    pub(crate) fn episodes_written(&self) -> u64 {
        match self {
            Self::Arrow(writer) => writer.episodes_written(),
            Self::Csv(writer) => writer.episodes_written(),
        }
    }

    pub(crate) fn steps_written(&self) -> u64 {
        match self {
            Self::Arrow(writer) => writer.steps_written(),
            Self::Csv(writer) => writer.steps_written(),
        }
    }

    /// Batches of Arrow, or episodes of CSV.
    pub(crate) fn batches_written(&self) -> u64 {
        match self {
            Self::Arrow(writer) => writer.batches_written(),
            Self::Csv(writer) => writer.episodes_written(),
        }
    }

    pub(crate) fn bytes_written(&self) -> u64 {
        match self {
            Self::Arrow(writer) => writer.bytes_written(),
            Self::Csv(writer) => writer.bytes_written(),
        }
    }
}
