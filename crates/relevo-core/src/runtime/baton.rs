//! Waking the threads of a batch in turns.
//!
//! A thread that comes back with its next call soon keeps the baton until then: it passes it on when it goes to sleep, so the
//! next one finds the interpreter lock free and a core that is awake. (64 Python threads on 2 cores: twice the calls of waking
//! all at once.) Others pass it on as soon as they are awake. The router wakes more where a baton is not passed on in time.

use std::{cell::RefCell, sync::Arc};

use super::{batch::Batch, batcher::Batcher};

thread_local! {
    static KEPT: RefCell<Option<Baton>> = const { RefCell::new(None) };
}

/// The right and the duty to wake the next thread that waits for a batch. Dropped, it is passed on.
#[derive(Debug)]
pub struct Baton {
    batcher: Arc<Batcher>,
    /// Always there; taken out only at the end.
    batch: Option<Arc<Batch>>,
    soon: bool,
}

impl Baton {
    /// The baton of a caller that holds `batch`, where others sleep; `soon` says that it usually calls again right away.
    pub(super) fn new(batcher: &Arc<Batcher>, batch: &Arc<Batch>, soon: bool) -> Option<Self> {
        batch.latch.sleeps_since()?;
        batch.join();
        Some(Self { batcher: batcher.clone(), batch: Some(batch.clone()), soon })
    }

    /// Keeps it until this thread's next call, if that is likely to come soon.
    pub fn keep(self) {
        if self.soon {
            // One that was kept before is passed on. A thread that is ending keeps none.
            drop(KEPT.try_with(|kept| kept.replace(Some(self))));
        }
    }

    /// Passes on what this thread has kept.
    pub(super) fn pass_on() {
        drop(KEPT.try_with(RefCell::take));
    }
}

impl Drop for Baton {
    fn drop(&mut self) {
        let batch = self.batch.take();
        if self.batcher.is_elsewhere() {
            return std::mem::forget(batch);
        }
        if let Some(batch) = batch {
            batch.latch.wake(1, self.batcher.now());
            self.batcher.take_back(batch);
        }
    }
}
