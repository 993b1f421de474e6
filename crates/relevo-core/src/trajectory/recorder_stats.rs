//! What a recorder counts.

use std::sync::atomic::AtomicU64;

/// What was recorded so far.
#[derive(Debug, Default)]
pub struct RecorderStats {
    /// Steps of finished or interrupted episodes.
    pub steps: AtomicU64,
    /// Episodes, finished or interrupted.
    pub episodes: AtomicU64,
    /// Episodes that were interrupted: their actor was removed or stepped without recording, or the run closed.
    pub episodes_interrupted: AtomicU64,
    /// Steps whose reward never came.
    pub rewards_missing: AtomicU64,
    /// Truncated episodes that came without their final observation.
    pub final_observations_missing: AtomicU64,
    /// Steps on disk.
    pub steps_written: AtomicU64,
    /// Episodes that did not reach the disk because it had failed.
    pub episodes_lost: AtomicU64,
    /// Batches on disk.
    pub batches_written: AtomicU64,
    /// Bytes of those.
    pub bytes_written: AtomicU64,
    /// Times that a caller had to wait for the recorder.
    pub waits: AtomicU64,
    /// How long all of them waited.
    pub wait_nanoseconds: AtomicU64,
}
