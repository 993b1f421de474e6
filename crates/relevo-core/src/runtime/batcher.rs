//! The batcher of one policy at one router: batches on their way from the first row to the answers.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crossbeam_queue::ArrayQueue;
use parking_lot::Mutex;

use super::{
    batch::{Batch, Policy, Row},
    handover::{Caller, Handover, Look, NEVER, Turn},
    router::Router,
    seat::is_expected,
};
use crate::{
    error::{Error, Result},
    policy::{OwnWorker, PolicySlot, PolicyVersion, Worker},
};

/// Batches that wait to be filled again.
const SPARES: usize = 4;

/// An event loop runs a pass itself that takes no longer than this, in nanoseconds: about what handing it to another thread
/// and back may take.
const SHORT_PASS: u64 = 200_000;

/// Batches the single calls of one policy's actors at one router.
#[derive(Debug)]
pub(super) struct Batcher {
    pub(super) slot: Arc<PolicySlot>,
    router: Arc<Router>,
    seed: u64,
    handover: Handover<Arc<Batch>>,
    /// The router's own worker for the version that served last. One batch runs at a time, so nobody waits for it.
    worker: Mutex<Option<OwnWorker>>,
    spares: ArrayQueue<Arc<Batch>>,
    /// Nanoseconds that the last batch took, and its rows.
    last: (AtomicU64, AtomicU64),
    /// Batches that have run, and whose threads are being woken in turns.
    waking: Mutex<Vec<Waking>>,
}

/// A batch whose threads are being woken.
#[derive(Debug)]
struct Waking {
    batch: Arc<Batch>,
    /// Threads to wake where nobody else does.
    next: usize,
}

/// How long the next thread may wait to be woken by the one before, in nanoseconds.
const WAKING_PATIENCE: u64 = 200_000;

/// A row that was let in.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) batch: Arc<Batch>,
    pub(super) row: usize,
    /// Whether the caller is the one to run the batch.
    pub(super) runs: bool,
}

impl Batcher {
    pub(super) fn new(slot: Arc<PolicySlot>, router: Arc<Router>, seed: u64) -> Self {
        Self {
            slot,
            seed,
            handover: Handover::new(router.batching.max_batch, router.batching.patience()),
            worker: Mutex::new(None),
            spares: ArrayQueue::new(SPARES),
            // Not known yet; the first one may have to make a session.
            last: (AtomicU64::new(SHORT_PASS + 1), AtomicU64::new(1)),
            waking: Mutex::default(),
            router,
        }
    }

    /// Adds the row of an actor that is out since `epoch`. `None` where the router was taken away.
    pub(super) fn push(&self, epoch: u64, row: &Row<'_>, caller: Caller) -> Option<Entry> {
        let (batch, row, turn) = self.handover.push(
            epoch,
            row.came,
            caller,
            || self.fresh(),
            |batch| batch.add(row, is_expected(caller)),
        )?;
        match turn {
            Turn::Run | Turn::Wait => {}
            Turn::WaitUntil(time) => self.router.alarm.set(time),
            Turn::CallRouter => self.router.alarm.ring(),
        }
        Some(Entry { batch, row, runs: turn == Turn::Run })
    }

    /// Lets `batch` wait for nobody else, if it still does. A short pass runs here and now.
    pub(super) fn hurry(&self, batch: &Arc<Batch>) {
        let (last, rows) = (self.last.0.load(Ordering::Relaxed), self.last.1.load(Ordering::Relaxed).max(1));
        // Fewer rows may take as long: a large model is read whole for one.
        let expected = last.max(last / rows * batch.len() as u64);
        match self.handover.hurry(|filling| Arc::ptr_eq(filling, batch), expected <= SHORT_PASS) {
            Turn::Run => {
                self.run(batch);
                batch.latch.wake(1, self.now());
            }
            Turn::CallRouter => self.router.alarm.ring(),
            Turn::Wait | Turn::WaitUntil(_) => {}
        }
    }

    /// Has the router run the batch that is being filled, if there is one.
    pub(super) fn hurry_all(&self) {
        if self.handover.hurry(|_| true, false) == Turn::CallRouter {
            self.router.alarm.ring();
        }
    }

    /// Whether it belongs to the process that this one was forked off. A lock of it may be held for ever by a thread that stayed
    /// there.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.router.birthplace.is_elsewhere()
    }

    /// Nanoseconds of the router's clock.
    pub(super) fn now(&self) -> u64 {
        self.router.now()
    }

    fn fresh(&self) -> Arc<Batch> {
        self.spares.pop().unwrap_or_else(|| Arc::new(Batch::new(&self.slot)))
    }

    /// Takes a batch back that a caller lets go of.
    pub(super) fn take_back(&self, mut batch: Arc<Batch>) {
        if batch.let_go()
            && let Some(last) = Arc::get_mut(&mut batch)
        {
            last.clear();
            drop(self.spares.push(batch));
        }
    }

    /// Runs a batch that the hand-over gave, and answers its callers whatever happens.
    pub(super) fn run(&self, batch: &Arc<Batch>) {
        let mut answering = Answering { batcher: self, batch, answered: false };
        let started = self.now();
        let version = self.slot.current();
        let policy = Policy { slot: &self.slot, version: &version, seed: self.seed };
        let infer = |worker: &mut Worker| batch.infer(&policy, worker);
        if let Err(error) = policy.caught(|| self.with_worker(&version, infer)) {
            batch.fail(&error);
        }
        self.count(batch, started);
        answering.answered = true;
    }

    fn with_worker(&self, version: &Arc<PolicyVersion>, infer: impl FnOnce(&mut Worker) -> bool) -> Result<()> {
        let mut own = self.worker.lock();
        if own.as_ref().is_none_or(|own| !own.serves(version)) {
            // The old one goes first: two at a time would hold the weights twice.
            *own = None;
            *own = Some(version.own_worker()?);
        }
        if let Some(worker) = &mut *own
            && !infer(worker)
        {
            *own = None;
        }
        Ok(())
    }

    fn count(&self, batch: &Batch, started: u64) {
        let rows = batch.rows();
        let (len, failed) = (batch.len(), rows.failed());
        let spent = std::time::Duration::from_nanos(self.now().saturating_sub(started));
        let queued = (u128::from(started) * len as u128).saturating_sub(rows.came);
        self.last.0.store(spent.as_nanos() as u64, Ordering::Relaxed);
        self.last.1.store(len as u64, Ordering::Relaxed);
        self.slot.count(len, spent, failed > 0);
        self.router.counters.count(len, failed, queued as u64, spent);
    }

    /// Rows that wait for their batch to go.
    pub(super) fn queue(&self) -> usize {
        self.handover.queue()
    }

    /// What the router has to do here.
    pub(super) fn look(&self, now: u64) -> Look<Arc<Batch>> {
        self.handover.look(now)
    }

    /// Has the router see to it that all threads of `batch`, which has run, are woken in time.
    fn watch(&self, batch: &Arc<Batch>, now: u64) {
        let mut waking = self.waking.lock();
        if self.router.is_stopping() {
            batch.latch.wake(usize::MAX, now);
            return;
        }
        batch.join();
        waking.push(Waking { batch: batch.clone(), next: 1 });
        drop(waking);
        self.router.alarm.set(now + WAKING_PATIENCE);
    }

    /// Wakes all threads whose batch has run, which the router will not see to any more, and frees its worker.
    pub(super) fn retire(&self) {
        *self.worker.lock() = None;
        for Waking { batch, .. } in self.waking.lock().drain(..) {
            batch.latch.wake(usize::MAX, self.now());
            self.take_back(batch);
        }
    }

    /// Wakes threads that nobody else has woken in time, twice as many each time. Gives the time of the next look.
    pub(super) fn wake_sleepers(&self, now: u64) -> Option<u64> {
        let mut waking = self.waking.lock();
        let mut next_look = None;
        let done = waking.extract_if(.., |Waking { batch, next }| {
            let Some(mut since) = batch.latch.sleeps_since() else { return true };
            if since + WAKING_PATIENCE <= now {
                batch.latch.wake(*next, now);
                (*next, since) = (*next * 2, now);
            }
            let look = since + WAKING_PATIENCE;
            next_look = Some(next_look.map_or(look, |earlier: u64| earlier.min(look)));
            false
        });
        done.for_each(|waking| self.take_back(waking.batch));
        next_look
    }

    /// Tells that an actor that is out since `epoch` will not call here again.
    pub(super) fn leave(&self, epoch: u64) {
        if epoch != NEVER && self.handover.leave(epoch) {
            self.router.alarm.ring();
        }
    }

    /// Lets no more rows in, and runs those that are in.
    pub(super) fn drain(&self) {
        for batch in self.handover.close() {
            self.run(&batch);
            batch.latch.wake(usize::MAX, self.now());
        }
    }

    /// Lets no more rows in, and answers those that are in with an error.
    pub(super) fn fail(&self, error: &Error) {
        for batch in self.handover.close() {
            batch.fail(error);
            drop(Answering { batcher: self, batch: &batch, answered: true });
            batch.latch.wake(usize::MAX, self.now());
        }
    }
}

/// Opens the batch's latch at its end, even where the thread that runs it panics.
struct Answering<'a> {
    batcher: &'a Batcher,
    batch: &'a Arc<Batch>,
    answered: bool,
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.batch.fail(&Error::Inference(
                "the thread that ran the batch ended before its time; nothing was recorded, call again, and please report this"
                    .into(),
            ));
        }
        let mut call_router = false;
        self.batch.finish(|answered| {
            let (epoch, due) = self.batcher.handover.finish(answered, || self.batcher.now());
            call_router = due;
            epoch
        });
        if call_router {
            self.batcher.router.alarm.ring();
        }
        let now = self.batcher.now();
        if self.batch.latch.open(now) {
            self.batcher.watch(self.batch, now);
        }
    }
}
