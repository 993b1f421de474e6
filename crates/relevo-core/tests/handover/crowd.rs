//! Callers of every kind on one batcher, and the router that serves them.

use std::{
    sync::Arc,
    task::{Wake, Waker},
    time::Duration,
};

use shuttle::{
    rand::{Rng, thread_rng},
    thread::{JoinHandle, spawn},
};

use crate::{
    batcher::{Batch, Batcher, Entry},
    handover::{Caller, NEVER},
    sync::{Thread, current, park},
};

/// Who calls, and how.
#[derive(Debug, Clone, Copy)]
pub struct Crowd {
    /// Actors whose threads block.
    pub blocking: usize,
    /// How many of those give up waiting now and then.
    pub giving_up: usize,
    /// Actors whose threads poll.
    pub polling: usize,
    /// Actors of one event loop.
    pub turning: usize,
    /// Calls of each actor.
    pub calls: usize,
    /// Rows of a batch at most.
    pub most_rows: usize,
    /// How long a batch waits.
    pub patience: u64,
    /// How long a thread may wait for the baton.
    pub waking_patience: u64,
    /// Whether actors end without a word, one time in two.
    pub vanish: bool,
    /// Whether batons are lost, one time in two.
    pub lose_batons: bool,
    /// Whether it is all closed in the midst.
    pub closes: bool,
}

impl Crowd {
    /// Lets everyone call, to the end.
    pub fn play(self) {
        let batcher = Arc::new(Batcher::new(self.most_rows, self.patience, self.waking_patience));
        let (clock, router) = (batcher.clone(), batcher.clone());
        let clock = spawn(move || clock.clock.tick());
        let router = spawn(move || router.serve());
        let mut callers: Vec<JoinHandle<()>> = Vec::new();
        let mut add = |what: fn(Self, &Batcher, usize), actor: usize| {
            let batcher = batcher.clone();
            callers.push(spawn(move || what(self, &batcher, actor)));
        };
        (0..self.blocking).for_each(|actor| add(Self::block, actor));
        (self.blocking..self.blocking + self.polling).for_each(|actor| add(Self::poll, actor));
        if self.turning > 0 {
            add(Self::turn, self.blocking + self.polling);
        }
        let closer = self.closes.then(|| batcher.clone()).map(|batcher| {
            spawn(move || {
                batcher.stop();
            })
        });
        callers.into_iter().chain(closer).for_each(|thread| thread.join().unwrap());
        if !self.closes {
            // Rows whose callers cancelled wait for their batch alone.
            let left = batcher.stop();
            assert!(left == 0 || self.polling > 0 || self.giving_up > 0, "{left} batches were left waiting");
        }
        router.join().unwrap();
        batcher.clock.end();
        clock.join().unwrap();
        batcher.check_end();
    }

    /// An actor whose thread blocks, and wakes others as `Ticket::wait` and `Ticket::wait_in_turn` do.
    fn block(self, batcher: &Batcher, actor: usize) {
        let (mut epoch, mut kept) = (NEVER, None);
        for call in 0..self.calls {
            let Some(entry) = batcher.push(epoch, (actor, call), Caller::Blocks) else { return pass_on(batcher, kept) };
            pass_on(batcher, kept.take());
            if entry.runs {
                batcher.run(&entry.batch);
                entry.batch.latch.wake(2, batcher.clock.now());
            } else if actor >= self.giving_up {
                entry.batch.latch.wait();
            } else if !entry.batch.latch.wait_while(Duration::ZERO, || thread_rng().gen_bool(0.5)) {
                // As `Baton::new` does, for the case that it was woken just then.
                if entry.batch.latch.sleeps_since().is_some() {
                    batcher.pass_on(hold(&entry.batch));
                }
                batcher.cancel(entry);
                epoch = NEVER;
                continue;
            }
            epoch = entry.check((actor, call));
            match thread_rng().gen_range(0..3) {
                0 => entry.batch.latch.wake(2, batcher.clock.now()),
                // Kept for ever.
                _ if self.lose_batons && thread_rng().gen_bool(0.5) => drop(hold(&entry.batch)),
                1 => batcher.pass_on(hold(&entry.batch)),
                _ => kept = Some(hold(&entry.batch)),
            }
            batcher.take_back(entry.batch);
        }
        pass_on(batcher, kept);
        self.end(batcher, epoch);
    }

    /// An actor whose thread polls, and cancels a call now and then.
    fn poll(self, batcher: &Batcher, actor: usize) {
        let (mut epoch, waker) = (NEVER, waker());
        for call in 0..self.calls {
            let Some(entry) = batcher.push(epoch, (actor, call), Caller::Polls) else { return };
            if thread_rng().gen_ratio(1, 4) {
                let _seen = entry.batch.latch.poll(&waker);
                batcher.cancel(entry);
                epoch = NEVER;
                continue;
            }
            until_open(&entry, &waker);
            epoch = entry.check((actor, call));
            batcher.take_back(entry.batch);
        }
        self.end(batcher, epoch);
    }

    /// An event loop: all its actors call, it turns, all have their answers.
    fn turn(self, batcher: &Batcher, first: usize) {
        let (mut epochs, waker) = (vec![NEVER; self.turning], waker());
        for call in 0..self.calls {
            let mut entries = Vec::new();
            for (at, epoch) in epochs.iter_mut().enumerate() {
                let Some(entry) = batcher.push(*epoch, (first + at, call), Caller::Turns) else { break };
                entries.push(entry);
            }
            for entry in &entries {
                batcher.hurry(&entry.batch, thread_rng().gen_bool(0.5));
            }
            let all = entries.len() == self.turning;
            for ((at, epoch), entry) in epochs.iter_mut().enumerate().zip(entries) {
                until_open(&entry, &waker);
                *epoch = entry.check((first + at, call));
                batcher.take_back(entry.batch);
            }
            if !all {
                return;
            }
        }
        for epoch in epochs {
            self.end(batcher, epoch);
        }
    }

    fn end(self, batcher: &Batcher, epoch: u64) {
        if !(self.vanish && thread_rng().gen_bool(0.5)) {
            batcher.leave(epoch);
        }
    }
}

/// One caller more that holds the batch.
fn hold(batch: &Arc<Batch>) -> Arc<Batch> {
    batch.join();
    batch.clone()
}

fn pass_on(batcher: &Batcher, kept: Option<Arc<Batch>>) {
    if let Some(batch) = kept {
        batcher.pass_on(batch);
    }
}

fn until_open(entry: &Entry, waker: &Waker) {
    while !entry.batch.latch.poll(waker) {
        park();
    }
}

struct Unparks(Thread);

impl Wake for Unparks {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn waker() -> Waker {
    Arc::new(Unparks(current())).into()
}
