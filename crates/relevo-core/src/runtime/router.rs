//! A router: a thread that runs the batches whose callers cannot, and the batchers that it looks after.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{Builder, JoinHandle, park, park_timeout},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{
    batcher::Batcher,
    config::Batching,
    handover::{Alarm, Look},
};
use crate::{
    error::{Error, Result},
    fork::Birthplace,
    policy::PolicySlot,
};

/// A worker that batches single calls.
#[derive(Debug)]
pub(super) struct Router {
    /// The device whose policies it serves.
    pub(super) device: Arc<str>,
    /// Its place among the routers of that device.
    pub(super) index: usize,
    pub(super) batching: Batching,
    pub(super) alarm: Alarm,
    pub(super) counters: Counters,
    pub(super) birthplace: Birthplace,
    clock: Instant,
    seed: u64,
    /// Kept alive by the actors that batch there.
    batchers: Mutex<Vec<Weak<Batcher>>>,
    stopping: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Bounds of the batch-size histogram: a bucket up to each, and one above.
pub(super) const SIZES: [usize; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];

/// What a router has done.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) batches: AtomicU64,
    pub(super) rows: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) queue_nanoseconds: AtomicU64,
    pub(super) inference_nanoseconds: AtomicU64,
    /// Batches by size.
    pub(super) sizes: [AtomicU64; SIZES.len() + 1],
    /// Times that the thread died and was replaced.
    pub(super) restarts: AtomicU64,
}

impl Counters {
    /// Adds what another router has counted.
    pub(super) fn add(&self, other: &Self) {
        for (counter, more) in [
            (&self.batches, &other.batches),
            (&self.rows, &other.rows),
            (&self.failed, &other.failed),
            (&self.queue_nanoseconds, &other.queue_nanoseconds),
            (&self.inference_nanoseconds, &other.inference_nanoseconds),
            (&self.restarts, &other.restarts),
        ]
        .into_iter()
        .chain(self.sizes.iter().zip(&other.sizes))
        {
            counter.fetch_add(more.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    pub(super) fn count(&self, rows: usize, failed: usize, queued: u64, spent: Duration) {
        let bucket = SIZES.iter().position(|bound| rows <= *bound).unwrap_or(SIZES.len());
        for (counter, value) in [
            (&self.batches, 1),
            (&self.rows, rows as u64),
            (&self.failed, failed as u64),
            (&self.queue_nanoseconds, queued),
            (&self.inference_nanoseconds, spent.as_nanos() as u64),
            (&self.sizes[bucket], 1),
        ] {
            counter.fetch_add(value, Ordering::Relaxed);
        }
    }
}

impl Router {
    /// Starts a router's thread.
    pub(super) fn start(device: Arc<str>, index: usize, batching: Batching, seed: u64) -> Result<Arc<Self>> {
        let router = Arc::new(Self {
            index,
            batching,
            alarm: Alarm::default(),
            counters: Counters::default(),
            birthplace: Birthplace::here(),
            clock: Instant::now(),
            seed,
            batchers: Mutex::default(),
            stopping: AtomicBool::new(false),
            thread: Mutex::new(None),
            device,
        });
        let served = router.clone();
        let thread = Builder::new()
            .name(format!("relevo-router-{index}"))
            .spawn(move || served.live())
            .map_err(|error| Error::State(format!("a router's thread cannot be started: {error}")))?;
        *router.thread.lock() = Some(thread);
        Ok(router)
    }

    /// Nanoseconds since it started.
    pub(super) fn now(&self) -> u64 {
        self.clock.elapsed().as_nanos() as u64
    }

    /// Its batcher for the actors of `slot`.
    pub(super) fn batcher(self: &Arc<Self>, slot: &Arc<PolicySlot>) -> Arc<Batcher> {
        let mut batchers = self.batchers.lock();
        let known = batchers.iter().filter_map(Weak::upgrade).find(|batcher| Arc::ptr_eq(&batcher.slot, slot));
        known.unwrap_or_else(|| {
            batchers.retain(|batcher| batcher.strong_count() > 0);
            let batcher = Arc::new(Batcher::new(slot.clone(), self.clone(), self.seed));
            batchers.push(Arc::downgrade(&batcher));
            batcher
        })
    }

    /// Whether it looks no more.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Rows that wait for an answer.
    pub(super) fn queue(&self) -> usize {
        self.batchers.lock().iter().filter_map(Weak::upgrade).map(|batcher| batcher.queue()).sum()
    }

    /// Lets no more rows in; those that are in are run, or fail with `error`. Waits for the thread.
    pub(super) fn stop(&self, error: Option<&Error>) {
        self.stopping.store(true, Ordering::SeqCst);
        self.alarm.ring();
        // Nobody asks it for a batcher any more: it was taken off the list.
        let batchers = std::mem::take(&mut *self.batchers.lock());
        for batcher in batchers.iter().filter_map(Weak::upgrade) {
            match error {
                None => batcher.drain(),
                Some(error) => batcher.fail(error),
            }
            batcher.retire();
        }
        if let Some(thread) = self.thread.lock().take() {
            drop(thread.join());
        }
    }

    /// What its thread does. Where it dies, it is replaced: it begins anew.
    fn live(&self) {
        while catch_unwind(AssertUnwindSafe(|| self.serve())).is_err() {
            self.counters.restarts.fetch_add(1, Ordering::Relaxed);
            let (device, router) = (&*self.device, self.index);
            tracing::error!(device, router, "the thread of router {router} for {device} died and was replaced");
        }
    }

    fn serve(&self) {
        self.alarm.set_router();
        let mut batchers: Vec<Weak<Batcher>> = Vec::new();
        let mut seen = 0;
        while !self.stopping.load(Ordering::SeqCst) {
            self.alarm.before_looking();
            batchers.clear();
            batchers.extend(self.batchers.lock().iter().cloned());
            let Some(mut next) = self.look_at(&batchers) else { continue };
            let (now, batches) = (self.now(), self.counters.batches.load(Ordering::Relaxed));
            if seen != batches {
                // While calls come, an alarm that rings soon anyway need not be set, which would cost each batch a wake-up.
                next = next.min(now.saturating_add(self.batching.patience()));
                seen = batches;
            }
            self.alarm.before_parking(next);
            if next == u64::MAX {
                park();
            } else {
                park_timeout(Duration::from_nanos(next.saturating_sub(now)));
            }
        }
    }

    /// Runs what has to be run. If nothing has, gives the time when something will have to.
    fn look_at(&self, batchers: &[Weak<Batcher>]) -> Option<u64> {
        let (mut next, mut ran) = (u64::MAX, false);
        for batcher in batchers.iter().filter_map(Weak::upgrade) {
            if let Some(time) = batcher.wake_sleepers(self.now()) {
                next = next.min(time);
            }
            match batcher.look(self.now()) {
                Look::Run(batch) => {
                    batcher.run(&batch);
                    batch.latch.wake(1, self.now());
                    ran = true;
                }
                Look::At(time) => next = next.min(time),
                Look::Nothing => {}
            }
        }
        (!ran).then_some(next)
    }
}
