//! What `AgentBuilder.record` says, taken from its Python attributes.

use std::{path::PathBuf, time::Duration};

use pyo3::{FromPyObject, PyResult};
use relevo_core::{
    runtime::RecordConfig,
    trajectory::{Compression, Format, Fsync, WriterOptions},
};

use crate::error;

/// `RecordSettings` of `relevo/settings.py`, which has checked them.
#[derive(FromPyObject)]
pub(crate) struct RecordSettings {
    folder: PathBuf,
    format: String,
    compression: String,
    fsync: String,
    segment_bytes: u64,
    segment_seconds: f64,
    resume: bool,
    on_failure: String,
}

impl RecordSettings {
    /// The settings as the engine takes them.
    pub(crate) fn recording(self) -> PyResult<RecordConfig> {
        let options = WriterOptions {
            compression: named("compression", &self.compression, &Compression::NAMES)?,
            fsync: named("fsync", &self.fsync, &Fsync::NAMES)?,
            segment_bytes: self.segment_bytes,
            segment_time: Duration::try_from_secs_f64(self.segment_seconds)
                .map_err(|error| error::config(&format!("segment_seconds: {error}")))?,
        };
        let goes_on = named("on_failure", &self.on_failure, &[("continue", true), ("stop", false)])?;
        let format = named("format", &self.format, &Format::NAMES)?;
        Ok(RecordConfig { folder: self.folder, format, options, resume: self.resume, goes_on })
    }
}

/// What the setting `setting` means by `name`.
pub(crate) fn named<T: Copy>(setting: &str, name: &str, names: &[(&str, T)]) -> PyResult<T> {
    let known = names.iter().find(|(known, _)| *known == name);
    known.map(|(_, value)| *value).ok_or_else(|| {
        let known: Vec<_> = names.iter().map(|(name, _)| format!("\"{name}\"")).collect();
        error::config(&format!("{setting} must be one of {}, but is \"{name}\"", known.join(", ")))
    })
}
