//! Whom a batch is waited for: an actor that has its answer, and whose caller is expected back.
//!
//! A thread works for one actor at a time. So when it calls for another one, nobody waits for the one before any more; nor when
//! the thread ends.

use std::{
    cell::RefCell,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    batcher::Batcher,
    handover::{Caller, NEVER},
};

thread_local! {
    /// Of the actor that this thread called for last.
    static LAST: Occupied = const { Occupied(RefCell::new(None)) };
}

struct Occupied(RefCell<Option<Arc<Seat>>>);

impl Drop for Occupied {
    fn drop(&mut self) {
        if let Some(seat) = self.0.take() {
            seat.leave();
        }
    }
}

/// Whether the actor of such a caller is waited for once it has its answer. Not in an event loop, which hurries its batches.
pub(super) fn is_expected(caller: Caller) -> bool {
    caller != Caller::Turns
}

/// An actor's place at a batcher.
#[derive(Debug)]
pub(super) struct Seat {
    batcher: Weak<Batcher>,
    /// Since when the actor is out; [`NEVER`] where nobody waits for it. Whoever takes it out is the only one to use it.
    epoch: AtomicU64,
}

impl Seat {
    pub(super) fn new(batcher: &Arc<Batcher>) -> Arc<Self> {
        Arc::new(Self { batcher: Arc::downgrade(batcher), epoch: AtomicU64::new(NEVER) })
    }

    /// The actor has its answer, and is out since `epoch`.
    pub(super) fn go_out(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::Release);
    }

    /// The actor calls again: since when it was out.
    pub(super) fn come_back(&self) -> u64 {
        self.epoch.swap(NEVER, Ordering::AcqRel)
    }

    /// Nobody shall wait for the actor.
    pub(super) fn leave(&self) {
        let epoch = self.come_back();
        if epoch != NEVER
            && let Some(batcher) = self.batcher.upgrade()
            && !batcher.is_elsewhere()
        {
            batcher.leave(epoch);
        }
    }

    /// This thread calls for the actor now, and no more for the one before.
    pub(super) fn occupy(self: &Arc<Self>) {
        // A thread that is ending is not expected back anyway.
        let before = LAST.try_with(|last| {
            let mut last = last.0.borrow_mut();
            match &*last {
                Some(known) if Arc::ptr_eq(known, self) => None,
                _ => last.replace(self.clone()),
            }
        });
        if let Ok(Some(before)) = before {
            before.leave();
        }
    }
}
