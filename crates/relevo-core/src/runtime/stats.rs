//! What an agent counts.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::{
    agent::Agent,
    router::{Counters, Router, SIZES},
};
use crate::{error::Result, trajectory::RecorderStats};

/// Counters of one policy.
#[derive(Debug, Clone)]
pub struct PolicyReport {
    /// Its name.
    pub name: String,
    /// Its version now.
    pub version: u64,
    /// Forward passes, over all versions.
    pub calls: u64,
    /// Rows in them.
    pub rows: u64,
    /// Seconds in them, heads included.
    pub inference_seconds: f64,
    /// Forward passes that failed.
    pub errors: u64,
}

/// Counters of one router. Vectorised calls are not among them: they run on their callers' threads.
#[derive(Debug, Clone)]
pub struct RouterReport {
    /// The device whose policies it serves.
    pub device: String,
    /// Its place among the routers of that device.
    pub index: usize,
    /// Actors placed there.
    pub actors: usize,
    /// Rows that wait for their batch to go.
    pub queue: usize,
    /// What it has counted since it started.
    pub counts: RouterCounts,
}

/// What routers count.
#[derive(Debug, Clone)]
pub struct RouterCounts {
    /// Batches, whether its thread ran them or a caller.
    pub batches: u64,
    /// Rows in them.
    pub rows: u64,
    /// Rows that got an error.
    pub failed: u64,
    /// Batches by size: those of up to so many rows, and more than the bound before. The last bound is `usize::MAX`.
    pub batch_sizes: Vec<(usize, u64)>,
    /// Seconds that rows waited for their batch to go, summed over rows.
    pub queue_seconds: f64,
    /// Seconds in which batches ran.
    pub inference_seconds: f64,
    /// Times that its thread died and was replaced.
    pub restarts: u64,
}

/// Counters of an agent.
#[derive(Debug, Clone)]
pub struct AgentStats {
    /// Actors now.
    pub actors: usize,
    /// Actors that were removed because their policy failed for them.
    pub actors_dropped: u64,
    /// The routers; none before the agent starts and after it ends.
    pub routers: Vec<RouterReport>,
    /// What all routers together have counted that were taken away since the agent started.
    pub retired_routers: RouterCounts,
    /// The policies: the named ones, then those of actors that brought a model of their own.
    pub policies: Vec<PolicyReport>,
    /// Steps of finished or interrupted episodes, whether they are in memory, on disk, or lost.
    pub steps_recorded: u64,
    /// Steps on disk.
    pub steps_written: u64,
    /// Batches on disk.
    pub batches_written: u64,
    /// Bytes of those.
    pub bytes_written: u64,
    /// Bytes of steps that wait for the recorder.
    pub recording_queue_bytes: usize,
    /// Times that a call had to wait for the recorder.
    pub recording_waits: u64,
    /// How long those waited together.
    pub recording_wait_seconds: f64,
    /// The error that stopped the recording.
    pub recording_error: Option<String>,
    /// Episodes recorded.
    pub episodes_recorded: u64,
    /// Episodes among them that were interrupted.
    pub episodes_interrupted: u64,
    /// Recorded steps whose reward never came.
    pub rewards_missing: u64,
    /// Truncated episodes that came without their final observation.
    pub final_observations_missing: u64,
    /// Episodes that did not reach the disk because it had failed.
    pub episodes_lost: u64,
}

impl Agent {
    /// What happened so far.
    pub fn stats(&self) -> Result<AgentStats> {
        self.shared.check_here()?;
        let table = self.shared.table.read();
        let policies = table.all_policies().map(|policy| {
            let stats = &policy.stats;
            PolicyReport {
                name: policy.name().to_string(),
                version: policy.current().version,
                calls: stats.calls.load(Ordering::Relaxed),
                rows: stats.rows.load(Ordering::Relaxed),
                inference_seconds: Duration::from_nanos(stats.nanoseconds.load(Ordering::Relaxed)).as_secs_f64(),
                errors: stats.errors.load(Ordering::Relaxed),
            }
        });
        let (routers, retired) = self.shared.routers.all();
        let recorded = self.shared.recorder().map(|recorder| recorder.stats());
        let count = |counter: fn(&RecorderStats) -> &AtomicU64| {
            recorded.map_or(0, |stats| counter(stats).load(Ordering::Relaxed))
        };
        Ok(AgentStats {
            actors: table.by_id.len(),
            actors_dropped: self.shared.dropped.load(Ordering::Relaxed),
            routers: routers.iter().map(|(router, actors)| report(router, *actors)).collect(),
            retired_routers: counts(&retired),
            policies: policies.collect(),
            steps_recorded: count(|stats| &stats.steps),
            steps_written: count(|stats| &stats.steps_written),
            batches_written: count(|stats| &stats.batches_written),
            bytes_written: count(|stats| &stats.bytes_written),
            recording_queue_bytes: self.shared.recorder().map_or(0, |recorder| recorder.queued()),
            recording_waits: count(|stats| &stats.waits),
            recording_wait_seconds: Duration::from_nanos(count(|stats| &stats.wait_nanoseconds)).as_secs_f64(),
            recording_error: self
                .shared
                .recorder()
                .and_then(|recorder| recorder.failure())
                .map(|error| error.to_string()),
            episodes_recorded: count(|stats| &stats.episodes),
            episodes_interrupted: count(|stats| &stats.episodes_interrupted),
            rewards_missing: count(|stats| &stats.rewards_missing),
            final_observations_missing: count(|stats| &stats.final_observations_missing),
            episodes_lost: count(|stats| &stats.episodes_lost),
        })
    }
}

fn report(router: &Router, actors: usize) -> RouterReport {
    RouterReport {
        device: router.device.to_string(),
        index: router.index,
        actors,
        queue: router.queue(),
        counts: counts(&router.counters),
    }
}

fn counts(counters: &Counters) -> RouterCounts {
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let seconds = |counter: &AtomicU64| Duration::from_nanos(count(counter)).as_secs_f64();
    let bounds = SIZES.iter().copied().chain([usize::MAX]);
    RouterCounts {
        batches: count(&counters.batches),
        rows: count(&counters.rows),
        failed: count(&counters.failed),
        batch_sizes: bounds.zip(&counters.sizes).map(|(bound, batches)| (bound, count(batches))).collect(),
        queue_seconds: seconds(&counters.queue_nanoseconds),
        inference_seconds: seconds(&counters.inference_nanoseconds),
        restarts: count(&counters.restarts),
    }
}
