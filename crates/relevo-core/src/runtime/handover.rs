//! The hand-over of single calls: who runs a batch, who waits for it, and who wakes whom.
//!
//! Callers add rows to the batch that is being filled. It goes as soon as nobody is waited for any more: the batch is full, or
//! every *live* actor is in it. An actor is live from its call on; after its answer it is *out*, and waited for, until it
//! calls again, leaves, or lets a batch wait in vain for the whole `patience`. One batch runs at a time; rows that come
//! meanwhile gather in the next one.
//!
//! The caller whose row was the last one runs the batch, if it can. The router runs the others: those that ran out of
//! patience, those of callers that cannot block, and those that were ready while another one ran.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    task::Waker,
    time::Duration,
};

use super::sync::{AtomicBool, AtomicU64, Mutex, Ordering, Thread, current, park, park_timeout};

/// The time of an actor that nobody waits for: it has not called yet.
pub(super) const NEVER: u64 = 0;

/// Batches of one policy at one router, from the first row to the hand-over.
#[derive(Debug)]
pub(super) struct Handover<B> {
    most_rows: usize,
    /// Nanoseconds that a batch may wait.
    patience: u64,
    state: Mutex<State<B>>,
}

#[derive(Debug)]
struct State<B> {
    filling: Option<Filling<B>>,
    /// Full batches that could not go because another one ran.
    ready: VecDeque<B>,
    running: bool,
    /// Live actors that have their answer and have not called again.
    out: usize,
    /// Rises when those that are out are given up.
    epoch: u64,
    closed: bool,
}

#[derive(Debug)]
struct Filling<B> {
    batch: B,
    rows: usize,
    deadline: u64,
    /// Whether an event loop will hurry it at its next turn, so that it is no use to go before.
    turns: bool,
    /// Whether it is to wait for no others: an event loop has turned, or one of its actors was removed.
    hurried: bool,
}

/// How a caller waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// It blocks, and may run the batch itself.
    Blocks,
    /// It must not block: the router runs the batch.
    Polls,
    /// As [`Caller::Polls`], in an event loop that calls [`Handover::hurry`] at its next turn.
    Turns,
}

/// What a caller does after it has added its row.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Run the batch, and call [`Handover::finish`].
    Run,
    /// Wait: somebody else runs it.
    Wait,
    /// Wait, and have the router look at this time, in nanoseconds.
    WaitUntil(u64),
    /// Wait, and have the router look now.
    CallRouter,
}

/// What the router finds when it looks.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look<B> {
    /// Run this batch, call [`Handover::finish`], and look again.
    Run(B),
    /// Look again at this time, in nanoseconds.
    At(u64),
    /// Nothing is waiting for the router.
    Nothing,
}

impl<B: Clone> Handover<B> {
    /// No batch yet. Batches go at `most_rows` rows, or when the first of them has waited for `patience` nanoseconds.
    pub(super) fn new(most_rows: usize, patience: u64) -> Self {
        let state =
            State { filling: None, ready: VecDeque::new(), running: false, out: 0, epoch: NEVER + 1, closed: false };
        Self { most_rows, patience, state: Mutex::new(state) }
    }

    /// Adds the row of an actor whose last answer was of `epoch` ([`NEVER`] if there was none), at the time `now`, to the batch
    /// that is being filled, or to a new one by `make`; `add` puts it in. `None` where batches go no more through here.
    pub(super) fn push<R>(
        &self,
        epoch: u64,
        now: u64,
        caller: Caller,
        make: impl FnOnce() -> B,
        add: impl FnOnce(&B) -> R,
    ) -> Option<(B, R, Turn)> {
        let mut state = self.state.lock();
        if state.closed {
            return None;
        }
        if epoch == state.epoch {
            state.out -= 1;
        }
        let deadline = now.saturating_add(self.patience);
        let filling = state.filling.get_or_insert_with(|| Filling {
            batch: make(),
            rows: 0,
            deadline,
            turns: false,
            hurried: false,
        });
        let added = add(&filling.batch);
        filling.rows += 1;
        filling.turns |= caller == Caller::Turns;
        let batch = filling.batch.clone();
        let (first, full) = (filling.rows == 1, filling.rows >= self.most_rows);
        let complete = full || (state.out == 0 && caller != Caller::Turns);
        let turn = match (complete && !state.running, caller) {
            (true, Caller::Blocks) => {
                state.filling = None;
                state.running = true;
                Turn::Run
            }
            (true, _) => Turn::CallRouter,
            _ if first => Turn::WaitUntil(deadline),
            _ => Turn::Wait,
        };
        if full && turn != Turn::Run {
            state.filling = None;
            state.ready.push_back(batch.clone());
        }
        Some((batch, added, turn))
    }

    /// Lets the batch that is being filled wait for nobody else, if it is one that `is` means: the caller runs it, if it
    /// asks for that by `run_here` and no other one runs, or else the router does.
    pub(super) fn hurry(&self, is: impl FnOnce(&B) -> bool, run_here: bool) -> Turn {
        let mut state = self.state.lock();
        let running = state.running;
        match &mut state.filling {
            Some(filling) if is(&filling.batch) => {
                if !running && run_here {
                    state.filling = None;
                    state.running = true;
                    return Turn::Run;
                }
                filling.hurried = true;
                if running { Turn::Wait } else { Turn::CallRouter }
            }
            _ => Turn::Wait,
        }
    }

    /// Tells that a batch has run, and that `answered` of its actors are out now. Gives their epoch, and whether the router
    /// must look. `now` is asked only here, where the router cannot look: if it has found this batch running after the next
    /// one's deadline, and gone to sleep, the time is known to be past that.
    pub(super) fn finish(&self, answered: usize, now: impl FnOnce() -> u64) -> (u64, bool) {
        let mut state = self.state.lock();
        state.running = false;
        state.out += answered;
        (state.epoch, state.is_due(now()))
    }

    /// Tells that an actor whose last answer was of `epoch` will not call again. Gives whether the router must look.
    pub(super) fn leave(&self, epoch: u64) -> bool {
        let mut state = self.state.lock();
        if epoch != state.epoch {
            return false;
        }
        state.out -= 1;
        !state.running && state.all_are_in()
    }

    /// The router's look, at the time `now`.
    pub(super) fn look(&self, now: u64) -> Look<B> {
        let mut state = self.state.lock();
        if !state.is_due(now) {
            // Whoever finishes the one that runs looks at the clock as well.
            return match &state.filling {
                Some(filling) if filling.deadline > now => Look::At(filling.deadline),
                _ => Look::Nothing,
            };
        }
        let next = state.ready.pop_front();
        let next = next.or_else(|| {
            let filling = state.filling.take()?;
            if state.out > 0 && !filling.hurried {
                // Those that are out took too long.
                state.out = 0;
                state.epoch += 1;
            }
            Some(filling.batch)
        });
        match next {
            Some(batch) => {
                state.running = true;
                Look::Run(batch)
            }
            None => Look::Nothing,
        }
    }

    /// Rows that wait for their batch to go.
    pub(super) fn queue(&self) -> usize {
        let state = self.state.lock();
        state.ready.len() * self.most_rows + state.filling.as_ref().map_or(0, |filling| filling.rows)
    }

    /// Lets no more rows in, and gives the batches that wait; the caller sees to their answers.
    pub(super) fn close(&self) -> Vec<B> {
        let mut state = self.state.lock();
        state.closed = true;
        let filling = state.filling.take().map(|filling| filling.batch);
        state.ready.drain(..).chain(filling).collect()
    }
}

impl<B> State<B> {
    /// Whether a batch may go now.
    fn is_due(&self, now: u64) -> bool {
        let waits_in_vain = |filling: &Filling<B>| filling.hurried || filling.deadline <= now;
        !self.running
            && (!self.ready.is_empty() || self.all_are_in() || self.filling.as_ref().is_some_and(waits_in_vain))
    }

    /// Whether there is nobody that the batch that is being filled would wait for.
    fn all_are_in(&self) -> bool {
        self.out == 0 && self.filling.as_ref().is_some_and(|filling| !filling.turns)
    }
}

/// Keeps the callers of a batch until it has run.
///
/// Tasks are woken all at once. Threads are woken in turns, each by one that is awake: the caller that ran the batch would need
/// a long time to wake them all, and threads that hold an interpreter lock only get into each other's way.
#[derive(Debug, Default)]
pub(super) struct Latch {
    open: AtomicBool,
    tasks: Mutex<Vec<Waker>>,
    threads: Mutex<VecDeque<Thread>>,
    /// When a thread was woken last, in nanoseconds.
    woken_at: AtomicU64,
}

impl Latch {
    /// Whether the batch has run.
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Blocks the thread until then. Whoever was woken must see to it that [`Latch::wake`] is called for the next one.
    pub(super) fn wait(&self) {
        if !self.is_open() {
            self.threads.lock().push_back(current());
            while !self.is_open() {
                park();
            }
        }
    }

    /// The same, asking `goes_on` after each `pause`: where that says no, the thread waits no more, and `false` is given. It may
    /// have been woken then, and so have to see to the next one.
    pub(super) fn wait_while(&self, pause: Duration, mut goes_on: impl FnMut() -> bool) -> bool {
        if self.is_open() {
            return true;
        }
        let itself = current();
        self.threads.lock().push_back(itself.clone());
        while !self.is_open() {
            park_timeout(pause);
            if !self.is_open() && !goes_on() {
                // Whoever wakes the next one must not find a thread that is not there.
                self.threads.lock().retain(|thread| thread.id() != itself.id());
                return false;
            }
        }
        true
    }

    /// Whether the batch has run; if not, `waker` is woken then.
    pub(super) fn poll(&self, waker: &Waker) -> bool {
        if self.is_open() {
            return true;
        }
        self.tasks.lock().push(waker.clone());
        self.is_open()
    }

    /// Tells that the batch has run. Wakes all tasks; the threads are woken by [`Latch::wake`]. Gives whether there are any.
    pub(super) fn open(&self, now: u64) -> bool {
        self.woken_at.store(now, Ordering::Relaxed);
        self.open.store(true, Ordering::SeqCst);
        // Those that enter from now on see that it is open. Woken without the lock: a waker may do anything.
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        for waker in tasks.drain(..) {
            // One that panics must not keep the others from being woken, nor end the thread that happens to run this.
            if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
                tracing::error!("the waker of a task panicked: its answer is there, but the task was not told");
            }
        }
        // The allocation serves the next batch.
        *self.tasks.lock() = tasks;
        !self.threads.lock().is_empty()
    }

    /// Wakes the next `count` threads.
    pub(super) fn wake(&self, count: usize, now: u64) {
        for _ in 0..count {
            let next = self.threads.lock().pop_front();
            let Some(thread) = next else { return };
            self.woken_at.store(now, Ordering::Relaxed);
            thread.unpark();
        }
    }

    /// When a thread was woken last, if there are others that were not.
    pub(super) fn sleeps_since(&self) -> Option<u64> {
        let sleeps = self.is_open() && !self.threads.lock().is_empty();
        sleeps.then(|| self.woken_at.load(Ordering::Relaxed))
    }

    /// Closes it again, for the next batch.
    pub(super) fn reset(&mut self) {
        self.open = AtomicBool::new(false);
    }
}

/// Wakes the router when it must look.
#[derive(Debug)]
pub(super) struct Alarm {
    /// When the router will look by itself.
    looks_at: AtomicU64,
    router: Mutex<Option<Thread>>,
}

impl Default for Alarm {
    fn default() -> Self {
        Self { looks_at: AtomicU64::new(u64::MAX), router: Mutex::new(None) }
    }
}

impl Alarm {
    /// Makes the calling thread the one to wake.
    pub(super) fn set_router(&self) {
        *self.router.lock() = Some(current());
    }

    /// To be called by the router before it looks: whoever comes from now on wakes it.
    pub(super) fn before_looking(&self) {
        self.looks_at.store(u64::MAX, Ordering::SeqCst);
    }

    /// To be called by the router after it has looked, before it parks until `time`.
    pub(super) fn before_parking(&self, time: u64) {
        self.looks_at.store(time, Ordering::SeqCst);
    }

    /// Has the router look at `time` at the latest.
    pub(super) fn set(&self, time: u64) {
        if self.looks_at.load(Ordering::SeqCst) > time {
            self.ring();
        }
    }

    /// Has the router look now.
    pub(super) fn ring(&self) {
        if let Some(router) = &*self.router.lock() {
            router.unpark();
        }
    }
}
