//! Writes a run as CSV files, one for each episode. One that is under way has a name that ends with `.part`.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
};

use rustc_hash::FxHashMap;

use super::{
    Piece, StepSchema, batch,
    csv_rows::{self, HEADER, LastReward},
    run::{ModelInfo, RunFolder, RunInfo},
    segment_writer::Fsync,
};
use crate::{Error, Result};

/// Writes the episodes of one run as CSV files with the columns of RelayRL.
///
/// A file that is there under its own name holds a whole episode. After a failure nothing more is taken.
#[derive(Debug)]
pub struct CsvWriter {
    folder: RunFolder,
    info: RunInfo,
    fsync: Fsync,
    /// By number, the episodes of which more is to come.
    open: FxHashMap<u64, Option<LastReward>>,
    failure: Option<String>,
    episodes_written: u64,
    steps_written: u64,
    bytes_written: u64,
}

impl CsvWriter {
    /// Makes the run's folder at `path` and writes `info` into it.
    ///
    /// # Errors
    /// [`Error::Trajectory`] where the folder holds a run already, another program writes to it, or it cannot be made or written.
    pub fn create(path: &Path, info: &RunInfo, fsync: Fsync) -> Result<Self> {
        let folder = RunFolder::create(path, info, false)?;
        tracing::info!("the run folder {} of CSV files is open", path.display());
        let open = FxHashMap::default();
        let info = info.clone();
        Ok(Self { folder, info, fsync, open, failure: None, episodes_written: 0, steps_written: 0, bytes_written: 0 })
    }

    /// Refuses steps that CSV files with RelayRL's columns cannot hold.
    ///
    /// # Errors
    /// [`Error::Config`] with the type that has no name there.
    pub fn check_schema(steps: &StepSchema) -> Result<()> {
        csv_rows::check(steps).map_err(Error::Config)
    }

    /// Adds a model to those that `run.json` names.
    pub(super) fn add_model(&mut self, model: ModelInfo) -> Result<()> {
        self.info.models.push(model);
        self.folder.describe(&self.info)
    }

    /// Writes a piece. A failure ends the writing.
    pub(super) fn push(&mut self, piece: &Piece) -> Result<()> {
        self.check()?;
        let number = piece.episode.number;
        batch::check(piece).and_then(|()| csv_rows::check(&piece.episode.schema)).map_err(|reason| {
            Error::trajectory(self.folder.path(), format!("episode {number} cannot be recorded: {reason}"))
        })?;
        let path = self.folder.path().join(format!("episode_{number:06}.csv"));
        self.write(piece, &path).map_err(|error| {
            let error = Error::trajectory(&path, format!("cannot write the episode: {error}"));
            self.failure = Some(error.to_string());
            error
        })
    }

    fn write(&mut self, piece: &Piece, path: &Path) -> std::io::Result<()> {
        let number = piece.episode.number;
        let before = self.open.remove(&number);
        let rows = csv_rows::rows(piece, before.flatten());
        let part = part_of(path);
        let mut text = csv::Writer::from_writer(Vec::new());
        if before.is_none() {
            text.write_record(HEADER)?;
        }
        for row in rows {
            text.write_record(row)?;
        }
        let text = text.into_inner().map_err(csv::IntoInnerError::into_error)?;
        let mut options = File::options();
        let mut file = if before.is_none() {
            options.write(true).create(true).truncate(true).open(&part)?
        } else {
            options.append(true).open(&part)?
        };
        file.write_all(&text)?;
        self.bytes_written += text.len() as u64;
        self.steps_written += piece.episode.len as u64;
        if piece.last {
            if self.fsync != Fsync::Never {
                file.sync_data()?;
            }
            fs::rename(&part, path)?;
            self.episodes_written += 1;
        } else {
            self.open.insert(number, LastReward::of(piece));
        }
        Ok(())
    }

    /// The first failure, if there was one.
    pub(super) fn check(&self) -> Result<()> {
        match &self.failure {
            None => Ok(()),
            Some(failure) => {
                let reason = format!("recording stopped at an earlier failure: {failure}");
                Err(Error::trajectory(self.folder.path(), reason))
            }
        }
    }

    /// Number of episodes whose files are whole.
    pub(super) fn episodes_written(&self) -> u64 {
        self.episodes_written
    }

    /// Number of steps written.
    pub(super) fn steps_written(&self) -> u64 {
        self.steps_written
    }

    /// Bytes of the files written.
    pub(super) fn bytes_written(&self) -> u64 {
        self.bytes_written
    }
}

/// Writes one episode into a file of its own.
///
/// # Errors
/// [`Error::Trajectory`] where the file cannot be written, or the episode cannot be held.
pub fn write_csv(episode: &Piece, path: &Path) -> Result<()> {
    let cannot = |reason: String| Error::trajectory(path, format!("cannot write the episode: {reason}"));
    csv_rows::check(&episode.episode.schema).map_err(cannot)?;
    let write = || -> csv::Result<()> {
        let mut file = csv::Writer::from_path(path)?;
        file.write_record(HEADER)?;
        csv_rows::rows(episode, None).into_iter().try_for_each(|row| file.write_record(row))?;
        Ok(file.flush()?)
    };
    write().map_err(|error| cannot(error.to_string()))
}

fn part_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    name.into()
}
