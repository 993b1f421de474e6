//! Finished trajectories for a reader in the same process, as they end.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use super::episode::Episode;
use crate::{Error, Result};

/// How long a reader that everything waits for may take for one trajectory before the oldest go after all.
const PATIENCE: Duration = Duration::from_secs(30);

/// What becomes of a trajectory that ends while the reader is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenFull {
    /// The recorder waits for the reader, and before long actors wait for the recorder; for half a minute at most, then the
    /// oldest goes.
    Block,
    /// The oldest goes, and is counted.
    #[default]
    DropOldest,
    /// The reader gets an error.
    Error,
}

impl WhenFull {
    /// The names by which users choose.
    pub const NAMES: [(&str, Self); 3] =
        [("block", Self::Block), ("drop_oldest", Self::DropOldest), ("error", Self::Error)];
}

/// What a reader finds.
#[derive(Debug)]
pub enum Next {
    /// A trajectory.
    Trajectory(Arc<Episode>),
    /// None came in time.
    NotYet,
    /// No more will come.
    End,
}

/// Trajectories on their way to one reader.
#[derive(Debug)]
pub struct Subscription {
    capacity: usize,
    when_full: WhenFull,
    patience: Duration,
    state: Mutex<State>,
    /// Something has come, or gone, or ended.
    changed: Condvar,
}

#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each says something else of the reader or the end")]
struct State {
    waiting: VecDeque<Arc<Episode>>,
    dropped: u64,
    /// Nothing comes any more.
    ended: bool,
    /// Nobody reads any more.
    closed: bool,
    overrun: bool,
    /// The reader was waited for in vain, and has taken nothing since: it is not waited for again, or the end of an agent with
    /// many actors would take as many times the patience.
    given_up: bool,
}

impl Subscription {
    /// Room for `capacity` trajectories, at least one.
    pub(crate) fn new(capacity: usize, when_full: WhenFull) -> Self {
        Self {
            capacity: capacity.max(1),
            when_full,
            patience: PATIENCE,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Takes a trajectory that has ended. Gives whether anybody reads.
    pub(crate) fn push(&self, episode: &Arc<Episode>) -> bool {
        let mut state = self.state.lock();
        let until = Instant::now() + self.patience;
        while self.when_full == WhenFull::Block
            && state.waiting.len() >= self.capacity
            && !state.closed
            && !state.given_up
        {
            if self.changed.wait_until(&mut state, until).timed_out() {
                state.given_up = true;
                tracing::warn!(
                    "a subscription's reader has taken nothing for {:?}: its oldest trajectories are dropped until it does",
                    self.patience
                );
                break;
            }
        }
        if state.closed {
            return false;
        }
        if state.waiting.len() >= self.capacity {
            state.dropped += 1;
            if self.when_full == WhenFull::Error {
                state.overrun = true;
                drop(state);
                self.changed.notify_all();
                return true;
            }
            state.waiting.pop_front();
        }
        state.waiting.push_back(episode.clone());
        drop(state);
        self.changed.notify_all();
        true
    }

    /// Tells the reader that nothing comes any more.
    pub(crate) fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
    }

    /// The next trajectory. Waits for one at most until `until`.
    ///
    /// # Errors
    /// [`Error::State`], once, where trajectories came faster than they were read and that was to be an error.
    pub fn next(&self, until: Instant) -> Result<Next> {
        let mut state = self.state.lock();
        loop {
            if std::mem::take(&mut state.overrun) {
                return Err(Error::State(format!(
                    "the subscription is full: {} trajectories ended while {} waited, and were dropped; read faster, or give it \
                     more room by capacity=",
                    state.dropped, self.capacity
                )));
            }
            if let Some(episode) = state.waiting.pop_front() {
                state.given_up = false;
                drop(state);
                self.changed.notify_all();
                return Ok(Next::Trajectory(episode));
            }
            if state.ended || state.closed {
                return Ok(Next::End);
            }
            if self.changed.wait_until(&mut state, until).timed_out() {
                return Ok(Next::NotYet);
            }
        }
    }

    /// Trajectories that wait to be read.
    pub fn len(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Trajectories that were dropped because the reader was behind.
    pub fn dropped(&self) -> u64 {
        self.state.lock().dropped
    }

    /// Wants no more.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.waiting.clear();
        drop(state);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::trajectory::StepSchema;

    fn episode(number: u64) -> Arc<Episode> {
        let schema = StepSchema {
            observations: Vec::new(),
            actions: Vec::new(),
            mask: None,
            log_prob: false,
            value: false,
            extras: Vec::new(),
        };
        Arc::new(Episode {
            number,
            actor_id: Uuid::nil(),
            schema: Arc::new(schema),
            len: 0,
            observations: Vec::new(),
            has_final_observation: false,
            actions: Vec::new(),
            masks: None,
            rewards: arrow_buffer::Buffer::default(),
            reward_known: None,
            log_probs: None,
            values: None,
            extras: Vec::new(),
            policies: Vec::new(),
            timestamps: arrow_buffer::Buffer::default(),
            terminated: false,
            truncated: false,
            complete: false,
        })
    }

    #[test]
    fn a_reader_that_reads_nothing_is_waited_for_once() {
        let patience = Duration::from_millis(200);
        let subscription = Subscription { patience, ..Subscription::new(2, WhenFull::Block) };
        let started = Instant::now();
        assert!((0..50).all(|number| subscription.push(&episode(number))));
        let spent = started.elapsed();
        assert!(spent >= patience && spent < 10 * patience, "{spent:?}");
        assert_eq!((subscription.len(), subscription.dropped()), (2, 48));
        // Once it reads again, it is waited for again.
        assert!(matches!(subscription.next(started), Ok(Next::Trajectory(found)) if found.number == 48));
        subscription.push(&episode(50));
        let started = Instant::now();
        subscription.push(&episode(51));
        assert!(started.elapsed() >= patience);
    }
}
