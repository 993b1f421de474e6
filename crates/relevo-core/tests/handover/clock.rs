//! A clock that moves when somebody waits for it, and a little whenever it is looked at.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64 as Count, Ordering::Relaxed},
};

use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use crate::sync::{Thread, current, park};

/// A time that never comes.
pub const NEVER_COMES: u64 = u64::MAX;

#[derive(Debug)]
pub struct Clock {
    /// Read without giving other threads a turn.
    time: Count,
    /// What the sleeper waits for.
    asked: AtomicU64,
    ended: AtomicBool,
    itself: OnceLock<Thread>,
    sleeper: OnceLock<Thread>,
}

impl Clock {
    pub fn new() -> Self {
        Self {
            time: Count::new(1),
            asked: AtomicU64::new(NEVER_COMES),
            ended: AtomicBool::new(false),
            itself: OnceLock::new(),
            sleeper: OnceLock::new(),
        }
    }

    pub fn now(&self) -> u64 {
        self.time.fetch_add(1, Relaxed)
    }

    /// What `park_timeout` is for the one thread that sleeps by this clock.
    pub fn park_until(&self, time: u64) {
        if time != NEVER_COMES {
            self.sleeper.get_or_init(current);
            self.asked.store(time, SeqCst);
            if let Some(itself) = self.itself.get() {
                itself.wake();
            }
        }
        park();
        self.asked.store(NEVER_COMES, SeqCst);
    }

    /// What the clock's own thread does.
    pub fn tick(&self) {
        self.itself.get_or_init(current);
        while !self.ended.load(SeqCst) {
            match self.asked.swap(NEVER_COMES, SeqCst) {
                NEVER_COMES => park(),
                time => {
                    self.time.fetch_max(time, Relaxed);
                    self.sleeper.get().inspect(|sleeper| sleeper.wake());
                }
            }
        }
    }

    pub fn end(&self) {
        self.ended.store(true, SeqCst);
        self.itself.get().inspect(|itself| itself.wake());
    }
}
