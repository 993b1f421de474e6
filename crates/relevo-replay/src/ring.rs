//! The steps, in a ring. Whoever adds some takes as many numbers, called tickets, and has the places that belong to those for
//! itself; nobody waits for anybody else.
//!
//! A step's header says which ticket it is of, and whether it is whole: a reader looks before and after it has copied, and so
//! never takes half a step, or two, for one.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::words::Words;

/// Number of a step: how many were added before it.
pub(crate) type Ticket = u64;

/// Words of a header: whose step it is, the step behind it, the step before it, and what is known of it.
const HEADER: usize = 4;
const OWNER: usize = 0;
const NEXT: usize = 1;
const PREVIOUS: usize = 2;
const FACTS: usize = 3;

/// Words of a cache line.
const LINE: usize = 8;
/// Words of a step that are fetched beforehand; behind them the processor knows what comes next by itself.
const WARM: usize = 8 * LINE;

/// What follows a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing that is known yet, or ever.
    Unknown,
    /// Another step.
    Step(Ticket),
    /// The last observation of an episode, at this place of those that are kept apart.
    Closing(u32),
}

impl Next {
    fn word(self) -> u64 {
        match self {
            Self::Unknown => 0,
            Self::Step(ticket) => 2 * (ticket + 1),
            Self::Closing(place) => 2 * u64::from(place) + 1,
        }
    }

    fn of(word: u64) -> Self {
        match word {
            0 => Self::Unknown,
            word if word % 2 == 1 => Self::Closing((word / 2) as u32),
            word => Self::Step(word / 2 - 1),
        }
    }
}

/// What is known of a step, beside its columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Facts {
    /// The environment that it was made in.
    pub(crate) env: u32,
    /// Whether the environment's rules ended the episode with it.
    pub(crate) terminated: bool,
    /// Whether something else did.
    pub(crate) truncated: bool,
}

impl Facts {
    fn word(self) -> u64 {
        u64::from(self.env) | u64::from(self.terminated) << 32 | u64::from(self.truncated) << 33
    }

    fn of(word: u64) -> Self {
        Self { env: word as u32, terminated: word >> 32 & 1 == 1, truncated: word >> 33 & 1 == 1 }
    }

    /// Whether an episode ended with the step.
    pub(crate) fn ended(self) -> bool {
        self.terminated || self.truncated
    }
}

/// Where a step is. To find it takes a division, which is done once for all that is asked of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) ticket: Ticket,
    /// Its place in the ring.
    pub(crate) slot: usize,
}

/// The steps of a buffer, the newest `capacity` of them.
#[derive(Debug)]
pub(crate) struct Ring {
    capacity: usize,
    stride: usize,
    words: Words,
    /// The next ticket.
    cursor: AtomicU64,
}

impl Ring {
    /// A ring for `capacity` steps of so many words.
    pub(crate) fn new(capacity: usize, words: usize) -> Self {
        let stride = HEADER + words;
        Self { capacity, stride, words: Words::new(capacity * stride), cursor: AtomicU64::new(0) }
    }

    /// Words that a ring takes.
    pub(crate) fn words(capacity: usize, words: usize) -> Option<usize> {
        capacity.checked_mul(HEADER + words)
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// The next ticket.
    pub(crate) fn cursor(&self) -> Ticket {
        self.cursor.load(Ordering::Acquire)
    }

    /// The oldest ticket whose step has not been written over.
    pub(crate) fn oldest(&self) -> Ticket {
        self.cursor().saturating_sub(self.capacity as u64)
    }

    /// The place of a step.
    pub(crate) fn place(&self, ticket: Ticket) -> Place {
        Place { ticket, slot: (ticket % self.capacity as u64) as usize }
    }

    /// The place behind another.
    pub(crate) fn behind(&self, place: Place) -> Place {
        let slot = if place.slot + 1 == self.capacity { 0 } else { place.slot + 1 };
        Place { ticket: place.ticket + 1, slot }
    }

    /// Takes so many tickets; the first of them.
    pub(crate) fn claim(&self, count: usize) -> Ticket {
        self.cursor.fetch_add(count as u64, Ordering::AcqRel)
    }

    /// Begins to write the step of a ticket that was claimed. Tells what followed the step that was there.
    pub(crate) fn begin(&self, place: Place) -> Next {
        let owner = self.word(place, OWNER);
        // Whoever has the place from a round ago is done, unless it slept through a whole round.
        let before = place.ticket.checked_sub(self.capacity as u64).map_or(0, whole);
        while owner.load(Ordering::Acquire) != before {
            std::thread::yield_now();
        }
        let replaced =
            if before == 0 { Next::Unknown } else { Next::of(self.word(place, NEXT).load(Ordering::Acquire)) };
        owner.store(whole(place.ticket) - 1, Ordering::Relaxed);
        // What is written from now on is seen after the step is seen as half written.
        fence(Ordering::Release);
        replaced
    }

    /// Writes a column, at its offset in words.
    pub(crate) fn write(&self, place: Place, offset: usize, bytes: &[u8]) {
        self.words.write(self.start(place) + HEADER + offset, bytes);
    }

    /// Makes the step whole.
    pub(crate) fn commit(&self, place: Place, previous: Option<Ticket>, next: Next, facts: Facts) {
        self.word(place, NEXT).store(next.word(), Ordering::Relaxed);
        self.word(place, PREVIOUS).store(previous.map_or(0, |previous| previous + 1), Ordering::Relaxed);
        self.word(place, FACTS).store(facts.word(), Ordering::Relaxed);
        self.word(place, OWNER).store(whole(place.ticket), Ordering::Release);
    }

    /// Says that `next` follows `ticket`, whose step may be gone.
    pub(crate) fn link(&self, place: Place, next: Ticket) {
        if self.holds(place) {
            // Should the step be written over just now, this is a link that its follower does not return; see `next`.
            let unknown = Next::Unknown.word();
            let link = Next::Step(next).word();
            let _ = self.word(place, NEXT).compare_exchange(unknown, link, Ordering::Release, Ordering::Relaxed);
        }
    }

    /// Whether the step of this ticket is there, and whole.
    pub(crate) fn holds(&self, place: Place) -> bool {
        self.word(place, OWNER).load(Ordering::Acquire) == whole(place.ticket)
    }

    /// As [`holds`](Self::holds), after words of the step were read: whether they are all of that step.
    pub(crate) fn still_holds(&self, place: Place) -> bool {
        fence(Ordering::Acquire);
        self.word(place, OWNER).load(Ordering::Relaxed) == whole(place.ticket)
    }

    /// What its header says that follows the step.
    pub(crate) fn linked(&self, place: Place) -> Next {
        Next::of(self.word(place, NEXT).load(Ordering::Relaxed))
    }

    /// What follows the step.
    pub(crate) fn next(&self, place: Place) -> Next {
        match Next::of(self.word(place, NEXT).load(Ordering::Acquire)) {
            Next::Step(next) => {
                let behind = self.place(next);
                let is_so = self.holds(behind) && self.previous(behind) == Some(place.ticket);
                if is_so { Next::Step(next) } else { Next::Unknown }
            }
            next => next,
        }
    }

    /// The step before it in its episode; it may be gone.
    pub(crate) fn previous(&self, place: Place) -> Option<Ticket> {
        self.word(place, PREVIOUS).load(Ordering::Relaxed).checked_sub(1)
    }

    pub(crate) fn facts(&self, place: Place) -> Facts {
        Facts::of(self.word(place, FACTS).load(Ordering::Relaxed))
    }

    /// Has the processor fetch a step, or the beginning of a large one: many steps that are read one after the other are waited
    /// for together.
    pub(crate) fn warm(&self, place: Place) -> u64 {
        let start = self.start(place);
        let words = (start..start + self.stride.min(WARM)).step_by(LINE);
        words.fold(0, |all, at| all ^ self.words.get(at).load(Ordering::Relaxed))
    }

    /// Reads a column, at its offset in words.
    pub(crate) fn read(&self, place: Place, offset: usize, bytes: &mut [u8]) {
        self.words.read(self.start(place) + HEADER + offset, bytes);
    }

    fn start(&self, place: Place) -> usize {
        place.slot * self.stride
    }

    fn word(&self, place: Place, at: usize) -> &AtomicU64 {
        self.words.get(self.start(place) + at)
    }
}

/// The owner's word of a step that is whole; one less where it is being written.
fn whole(ticket: Ticket) -> u64 {
    2 * (ticket + 1)
}
