//! The batcher and the router around the hand-over, without policies: what `runtime/batcher.rs`, `runtime/router.rs` and
//! `runtime/baton.rs` do with it, and with every promise checked.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use shuttle::sync::atomic::{AtomicBool, Ordering::SeqCst};

use crate::{
    clock::Clock,
    handover::{Alarm, Caller, Handover, Latch, Look, NEVER, Turn},
    sync::{Fault, Mutex, suffers},
};

/// An actor's call: who, and the how manieth.
pub type Call = (usize, usize);

#[derive(Debug, Default)]
pub struct Batch {
    pub latch: Latch,
    callers: AtomicUsize,
    tally: Mutex<Tally>,
}

#[derive(Debug, Default)]
struct Tally {
    rows: Vec<Call>,
    abandoned: usize,
    epoch: Option<u64>,
    answers: Option<Vec<Call>>,
}

impl Batch {
    pub fn join(&self) {
        self.callers.fetch_add(1, Relaxed);
    }

    fn add(&self, call: Call) -> usize {
        self.join();
        let mut tally = self.tally.lock();
        assert!(tally.answers.is_none(), "a row came into a batch that has run");
        tally.rows.push(call);
        tally.rows.len() - 1
    }

    /// The answer in `row`, and since when the actor is out.
    fn answer(&self, row: usize) -> (Call, u64) {
        let tally = self.tally.lock();
        let answers = tally.answers.as_ref().expect("the latch opened before the batch has run");
        (answers[row], tally.epoch.expect("the latch opened before the batch was finished"))
    }

    fn abandon(&self) -> Option<u64> {
        let mut tally = self.tally.lock();
        tally.abandoned += 1;
        tally.epoch
    }
}

#[derive(Debug)]
pub struct Batcher {
    pub clock: Clock,
    handover: Handover<Arc<Batch>>,
    alarm: Alarm,
    most_rows: usize,
    /// How long the next thread may wait to be woken by the one before.
    waking_patience: u64,
    waking: Mutex<Vec<(Arc<Batch>, usize)>>,
    spares: Mutex<Vec<Arc<Batch>>>,
    stopping: AtomicBool,
    /// Batches that run now.
    running: AtomicUsize,
    let_in: AtomicUsize,
    answered: AtomicUsize,
}

/// A row that was let in.
pub struct Entry {
    pub batch: Arc<Batch>,
    row: usize,
    pub runs: bool,
}

impl Entry {
    /// Gives since when the actor is out, whose answer must be the one to its own call.
    pub fn check(&self, call: Call) -> u64 {
        let (answer, epoch) = self.batch.answer(self.row);
        assert_eq!(answer, call, "an answer to another call");
        epoch
    }
}

impl Batcher {
    pub fn new(most_rows: usize, patience: u64, waking_patience: u64) -> Self {
        Self {
            clock: Clock::new(),
            handover: Handover::new(most_rows, patience),
            alarm: Alarm::default(),
            most_rows,
            waking_patience,
            waking: Mutex::default(),
            spares: Mutex::default(),
            stopping: AtomicBool::new(false),
            running: AtomicUsize::new(0),
            let_in: AtomicUsize::new(0),
            answered: AtomicUsize::new(0),
        }
    }

    pub fn push(&self, epoch: u64, call: Call, caller: Caller) -> Option<Entry> {
        let make = || self.spares.lock().pop().unwrap_or_default();
        let (batch, row, turn) = self.handover.push(epoch, self.clock.now(), caller, make, |batch| batch.add(call))?;
        self.let_in.fetch_add(1, Relaxed);
        match turn {
            Turn::Run | Turn::Wait => {}
            Turn::WaitUntil(time) => self.alarm.set(time),
            Turn::CallRouter => self.alarm.ring(),
        }
        Some(Entry { batch, row, runs: turn == Turn::Run })
    }

    pub fn hurry(&self, batch: &Arc<Batch>, run_here: bool) {
        match self.handover.hurry(|filling| Arc::ptr_eq(filling, batch), run_here) {
            Turn::Run => {
                self.run(batch);
                batch.latch.wake(1, self.clock.now());
            }
            Turn::CallRouter => self.alarm.ring(),
            Turn::Wait | Turn::WaitUntil(_) => {}
        }
    }

    /// Runs a batch, while no other one runs.
    pub fn run(&self, batch: &Arc<Batch>) {
        assert_eq!(self.running.fetch_add(1, Relaxed), 0, "two batches run at a time");
        self.answer(batch, || assert_eq!(self.running.fetch_sub(1, Relaxed), 1));
    }

    fn answer(&self, batch: &Arc<Batch>, ran: impl FnOnce()) {
        let mut tally = batch.tally.lock();
        assert!((1..=self.most_rows).contains(&tally.rows.len()), "a batch of {}", tally.rows.len());
        assert!(tally.answers.is_none(), "a batch ran twice");
        tally.answers = Some(tally.rows.clone());
        self.answered.fetch_add(tally.rows.len(), Relaxed);
        drop(tally);
        // Others may come while it runs.
        shuttle::thread::sleep(Duration::ZERO);
        ran();
        let before = self.clock.now();
        let now = || if suffers(Fault::FinishIsLate) { before } else { self.clock.now() };
        let mut tally = batch.tally.lock();
        let (epoch, due) = self.handover.finish(tally.rows.len() - tally.abandoned, now);
        tally.epoch = Some(epoch);
        drop(tally);
        if due && !suffers(Fault::FinishIsSilent) {
            self.alarm.ring();
        }
        let now = self.clock.now();
        if batch.latch.open(now) {
            self.watch(batch, now);
        }
    }

    fn watch(&self, batch: &Arc<Batch>, now: u64) {
        let mut waking = self.waking.lock();
        if self.stopping.load(SeqCst) {
            batch.latch.wake(usize::MAX, now);
            return;
        }
        batch.join();
        waking.push((batch.clone(), 1));
        drop(waking);
        self.alarm.set(now.saturating_add(self.waking_patience));
    }

    fn wake_sleepers(&self, now: u64) -> u64 {
        let mut next_look = u64::MAX;
        if suffers(Fault::RouterIgnoresSleepers) {
            return next_look;
        }
        self.waking.lock().retain_mut(|(batch, next)| {
            let Some(mut since) = batch.latch.sleeps_since() else {
                self.take_back(batch.clone());
                return false;
            };
            if since.saturating_add(self.waking_patience) <= now {
                batch.latch.wake(*next, now);
                (*next, since) = (*next * 2, now);
            }
            next_look = next_look.min(since.saturating_add(self.waking_patience));
            true
        });
        next_look
    }

    /// What becomes of a call that is cancelled.
    pub fn cancel(&self, entry: Entry) {
        if let Some(epoch) = entry.batch.abandon() {
            self.leave(epoch);
        }
        self.take_back(entry.batch);
    }

    /// Passes a baton on.
    pub fn pass_on(&self, batch: Arc<Batch>) {
        batch.latch.wake(1, self.clock.now());
        self.take_back(batch);
    }

    pub fn take_back(&self, mut batch: Arc<Batch>) {
        if batch.callers.fetch_sub(1, Relaxed) == 1
            && let Some(last) = Arc::get_mut(&mut batch)
        {
            assert_eq!(last.latch.sleeps_since(), None, "a batch was cleared while a thread waits for it");
            last.latch.reset();
            last.tally = Mutex::default();
            self.spares.lock().push(batch);
        }
    }

    pub fn leave(&self, epoch: u64) {
        if epoch != NEVER && self.handover.leave(epoch) && !suffers(Fault::LeaveIsSilent) {
            self.alarm.ring();
        }
    }

    /// The router's loop. Unlike the real one it never looks earlier than it must: that would hide an alarm that was not rung.
    pub fn serve(&self) {
        self.alarm.set_router();
        while !self.stopping.load(SeqCst) {
            self.alarm.before_looking();
            let mut next = self.wake_sleepers(self.clock.now());
            match self.handover.look(self.clock.now()) {
                Look::Run(batch) => {
                    self.run(&batch);
                    batch.latch.wake(1, self.clock.now());
                    continue;
                }
                Look::At(time) => next = next.min(time),
                Look::Nothing => {}
            }
            self.alarm.before_parking(next);
            self.clock.park_until(next);
        }
    }

    /// Lets no more rows in, and runs those that are in; gives how many batches that were.
    pub fn stop(&self) -> usize {
        self.stopping.store(true, SeqCst);
        self.alarm.ring();
        let batches = self.handover.close();
        if !suffers(Fault::CloserForgets) {
            for batch in &batches {
                // A caller may still run the one before.
                self.answer(batch, || {});
                batch.latch.wake(usize::MAX, self.clock.now());
            }
        }
        for (batch, _) in std::mem::take(&mut *self.waking.lock()) {
            batch.latch.wake(usize::MAX, self.clock.now());
            self.take_back(batch);
        }
        batches.len()
    }

    /// To be called when nobody calls any more.
    pub fn check_end(&self) {
        assert_eq!(self.handover.queue(), 0, "rows were left waiting");
        assert_eq!(self.running.load(Relaxed), 0, "a batch still runs");
        assert_eq!(self.answered.load(Relaxed), self.let_in.load(Relaxed), "rows without an answer");
    }
}
