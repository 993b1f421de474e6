//! The folder of a run: `run.json`, which says where the steps came from, and the segments that hold them.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{Error, Result};

/// The version of the folder's layout that this library writes, and the newest that it reads.
const FORMAT_VERSION: u32 = 1;

const RUN_FILE: &str = "run.json";
const SEGMENTS: &str = "segments";
const LOCK_FILE: &str = "writer.lock";

/// What `run.json` tells of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunInfo {
    /// Version of the folder's layout.
    pub format_version: u32,
    /// Identity of the run.
    #[serde(with = "uuid_text")]
    pub run_id: Uuid,
    /// Version of the library that wrote the run.
    pub library_version: String,
    /// When the run was created: RFC 3339, UTC.
    pub created: String,
    /// The seed of everything random in the run.
    pub seed: u64,
    /// The configuration as resolved, defaults included.
    pub config: serde_json::Value,
    /// The model files that were there to act, from the start or from an update on, in the order in which they came.
    pub models: Vec<ModelInfo>,
    /// When the run was gone on with: RFC 3339, UTC.
    #[serde(default)]
    pub resumed: Vec<String>,
}

/// A model file as it was when it came.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// Name of the policy that ran it.
    pub policy: String,
    /// The policy's version from then on.
    pub version: u64,
    /// How actions come from its outputs.
    pub head: String,
    /// Where it lay.
    pub path: String,
    /// SHA-256 of its bytes, in hexadecimal.
    pub sha256: String,
    /// Its format, such as `onnx`.
    pub format: String,
}

impl RunInfo {
    /// The description of a run that begins now.
    pub fn new(seed: u64, config: serde_json::Value, models: Vec<ModelInfo>) -> Self {
        Self {
            format_version: FORMAT_VERSION,
            run_id: Uuid::new_v4(),
            library_version: env!("CARGO_PKG_VERSION").into(),
            created: rfc3339(SystemTime::now()),
            seed,
            config,
            models,
            resumed: Vec::new(),
        }
    }

    /// Notes that the run is gone on with now.
    pub(crate) fn begin_session(&mut self) {
        self.resumed.push(rfc3339(SystemTime::now()));
    }
}

/// Where the files of a run lie.
#[derive(Debug)]
pub(crate) struct RunFolder {
    path: PathBuf,
    /// Held by the one that writes, for as long as it lives.
    _lock: Option<File>,
}

impl RunFolder {
    /// Makes the folder, with one for segments in it where there are to be some, and writes `run.json`. Fails where the folder
    /// holds a run already or cannot be written.
    pub(crate) fn create(path: &Path, info: &RunInfo, segments: bool) -> Result<Self> {
        let cannot = |error: std::io::Error| {
            let reason = format!("cannot create the run's folder: {error}; record into a folder that can be written");
            Error::trajectory(path, reason)
        };
        if !Self::is_run(path) {
            let folder = if segments { path.join(SEGMENTS) } else { path.into() };
            fs::create_dir_all(folder).map_err(cannot)?;
        }
        let folder = Self { path: path.into(), _lock: lock(path)? };
        if Self::is_run(path) {
            let reason = "the folder holds a run already; go on with it by resume=True, record into another folder, or remove \
                          this one first";
            return Err(Error::trajectory(path, reason));
        }
        folder.describe(info)?;
        Ok(folder)
    }

    /// Whether there is a run in the folder.
    pub(crate) fn is_run(path: &Path) -> bool {
        path.join(RUN_FILE).exists()
    }

    /// Opens the folder to write more of its run.
    pub(crate) fn resume(path: &Path) -> Result<(Self, RunInfo)> {
        let (folder, info) = Self::open(path)?;
        Ok((Self { _lock: lock(path)?, ..folder }, info))
    }

    /// Writes `run.json`, in place of one that is there.
    pub(crate) fn describe(&self, info: &RunInfo) -> Result<()> {
        let file = self.path.join(RUN_FILE);
        let cannot =
            |error: std::io::Error| Error::trajectory(&file, format!("cannot write the run's description: {error}"));
        let text = serde_json::to_vec_pretty(info).map_err(|error| cannot(error.into()))?;
        // Renaming makes the file appear whole or not at all.
        let unfinished = self.path.join("run.json.tmp");
        fs::write(&unfinished, text).and_then(|()| fs::rename(&unfinished, &file)).map_err(cannot)
    }

    /// Reads `run.json`. Fails where `path` is no run folder, or one in a newer format.
    pub(crate) fn open(path: &Path) -> Result<(Self, RunInfo)> {
        let file = path.join(RUN_FILE);
        if !path.is_dir() {
            return Err(Error::trajectory(path, "there is no such folder; check the path"));
        }
        let text = fs::read(&file).map_err(|error| {
            let reason = format!(
                "not a run folder: {RUN_FILE} was looked for in it, and reading it gave: {error}; give the folder that was \
                 recorded into, by AgentBuilder.record(path) or relevo run --out"
            );
            Error::trajectory(path, reason)
        })?;
        let not_valid = |error: serde_json::Error| {
            Error::trajectory(&file, format!("not the description of a run: {error}; was the file edited?"))
        };
        let value: serde_json::Value = serde_json::from_slice(&text).map_err(not_valid)?;
        // Looked at first, as a newer format may lack fields that this one needs.
        if let Some(version) = value.get("format_version").and_then(serde_json::Value::as_u64)
            && version > u64::from(FORMAT_VERSION)
        {
            let reason = format!(
                "the run has format version {version}, and this library reads versions up to {FORMAT_VERSION}; \
                 upgrade the library"
            );
            return Err(Error::trajectory(path, reason));
        }
        let info = serde_json::from_value(value).map_err(not_valid)?;
        Ok((Self { path: path.into(), _lock: None }, info))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn segments(&self) -> PathBuf {
        self.path.join(SEGMENTS)
    }

    /// Where the segment with this number lies.
    pub(crate) fn segment(&self, number: usize) -> PathBuf {
        self.segments().join(format!("{number:06}.arrow"))
    }

    /// The number of the next segment.
    pub(crate) fn next_segment(&self) -> Result<usize> {
        let numbers =
            self.list_segments()?.into_iter().filter_map(|path| path.file_stem()?.to_str()?.parse::<usize>().ok());
        Ok(numbers.max().map_or(0, |last| last + 1))
    }

    /// The segments there are, in order of their numbers.
    pub(crate) fn list_segments(&self) -> Result<Vec<PathBuf>> {
        let segments = self.segments();
        if !segments.exists() && self.path.exists() {
            let reason = "the run has no Arrow segments; if it was recorded with format=\"csv\", read its episodes by \
                          relevo.trajectories.from_csv(path), or make a run of them by relevo.trajectories.to_run";
            return Err(Error::trajectory(&self.path, reason));
        }
        let cannot = |error| Error::trajectory(&segments, format!("cannot list the run's segments: {error}"));
        let mut paths = Vec::new();
        for entry in fs::read_dir(&segments).map_err(cannot)? {
            let path = entry.map_err(cannot)?.path();
            if path.extension().is_some_and(|extension| extension == "arrow") {
                paths.push(path);
            }
        }
        // By length first: the number after 999999 has a digit more.
        paths.sort_by_key(|path| (path.as_os_str().len(), path.clone()));
        Ok(paths)
    }
}

/// Takes the folder for the one that writes. The system gives it back when that process ends, however it does.
fn lock(path: &Path) -> Result<Option<File>> {
    let cannot = |error: std::io::Error| {
        Error::trajectory(
            path,
            format!("cannot lock the run's folder: {error}; record into a folder that can be written"),
        )
    };
    let file = File::options().create(true).truncate(false).write(true).open(path.join(LOCK_FILE)).map_err(cannot)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => {
            let reason =
                "another writer records into the folder now; record into another one, or wait until that has ended";
            Err(Error::trajectory(path, reason))
        }
        Err(TryLockError::Error(error)) if error.kind() == std::io::ErrorKind::Unsupported => {
            tracing::warn!("the file system of {} has no locks: nothing keeps two writers apart", path.display());
            Ok(None)
        }
        Err(TryLockError::Error(error)) => Err(cannot(error)),
    }
}

/// A UUID in its usual text form; the `uuid` crate's own serde support is not switched on.
mod uuid_text {
    use serde::{Deserialize, Deserializer, Serializer, de};
    use uuid::Uuid;

    pub(super) fn serialize<S: Serializer>(id: &Uuid, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(id)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Uuid, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// `2026-01-31T23:59:59Z`. A clock before 1970 reads as 1970.
fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Counted from 1 March of the year 0, so that a leap day is the last day of its year.
    let day = days + 719_468;
    let (era, day_of_era) = (day / 146_097, day % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day_of_month:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates_follow_the_calendar() {
        // The texts are those of `date -u -d @SECONDS +%FT%TZ`.
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_767_225_599, "2025-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }
}
