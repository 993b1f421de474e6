//! What `runtime/sync.rs` names, made of shuttle's primitives: each call is a point where the scheduler may let another thread
//! go on. On demand they break their promises, for tests of the tests.

use std::{
    cell::Cell,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicUsize, Ordering as StdOrdering},
    },
    time::Duration,
};

use shuttle::{
    rand::{Rng, thread_rng},
    sync::{Condvar, MutexGuard, atomic},
};

pub use shuttle::sync::atomic::Ordering;

/// What does not work as it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A thread is not woken, now and then.
    LostUnpark,
    /// That the router looks at no certain time is not stored.
    LostStore,
    /// Whoever asks whether a batch has run is told what was true before, now and then.
    StaleLoad,
    /// A store is seen only after the thread's next step.
    LateStore,
    /// Whoever has run a batch does not tell the router what became due meanwhile.
    FinishIsSilent,
    /// Whoever has run a batch knows the time only from before it took the lock.
    FinishIsLate,
    /// Whoever leaves does not tell the router that nobody is waited for any more.
    LeaveIsSilent,
    /// A thread that gives up waiting is not found among those that wait.
    LostThread,
    /// The router does not wake those who wait for a baton that was lost.
    RouterIgnoresSleepers,
    /// The one that closes the hand-over forgets the batches that wait.
    CloserForgets,
}

std::thread_local! {
    /// All of shuttle's threads run on the thread of their test.
    static FAULT: Cell<Option<Fault>> = const { Cell::new(None) };
}

/// Lets everything of this test suffer from `fault`.
pub fn suffer(fault: Fault) {
    FAULT.set(Some(fault));
}

/// Whether `fault` is there, and strikes each time.
pub fn suffers(fault: Fault) -> bool {
    FAULT.get() == Some(fault)
}

/// Whether `fault` strikes now: one time in four.
fn strikes(fault: Fault) -> bool {
    suffers(fault) && thread_rng().gen_ratio(1, 4)
}

/// With the signature of `parking_lot`'s.
#[derive(Debug, Default)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Shuttle's own `park` returns for no reason whenever it likes, which hides nearly every wake-up that got lost.
#[derive(Debug, Clone, Default)]
pub struct Thread(Arc<(Mutex<bool>, Condvar)>);

impl Thread {
    pub fn unpark(&self) {
        if !strikes(Fault::LostUnpark) {
            self.wake();
        }
    }

    pub fn id(&self) -> usize {
        static NOBODY: AtomicUsize = AtomicUsize::new(0);
        if suffers(Fault::LostThread) {
            // No address is that low.
            return NOBODY.fetch_add(1, StdOrdering::Relaxed) % 4_096;
        }
        Arc::as_ptr(&self.0).addr()
    }

    /// The same, and never at fault.
    pub fn wake(&self) {
        let (token, given) = &*self.0;
        *token.lock() = true;
        given.notify_one();
    }
}

shuttle::thread_local! {
    static CURRENT: Thread = Thread::default();
}

pub fn current() -> Thread {
    CURRENT.with(Thread::clone)
}

pub fn park() {
    let (token, given) = &*current().0;
    let token = given.wait_while(token.lock(), |token| !*token);
    *token.unwrap_or_else(PoisonError::into_inner) = false;
}

/// The time is over at once or never: how long it was is for the scheduler to say.
pub fn park_timeout(_: Duration) {
    if thread_rng().gen_bool(0.5) {
        park();
    } else {
        shuttle::thread::yield_now();
    }
}

#[derive(Debug, Default)]
pub struct AtomicU64(atomic::AtomicU64);

impl AtomicU64 {
    pub fn new(value: u64) -> Self {
        Self(atomic::AtomicU64::new(value))
    }

    pub fn load(&self, ordering: Ordering) -> u64 {
        self.0.load(ordering)
    }

    pub fn store(&self, value: u64, ordering: Ordering) {
        if value != u64::MAX || !suffers(Fault::LostStore) {
            self.0.store(value, ordering);
        }
    }
}

#[derive(Debug, Default)]
pub struct AtomicBool {
    value: atomic::AtomicBool,
    /// How many loads still give the value before.
    late: AtomicUsize,
}

impl AtomicBool {
    pub fn new(value: bool) -> Self {
        Self { value: atomic::AtomicBool::new(value), late: AtomicUsize::new(0) }
    }

    pub fn load(&self, ordering: Ordering) -> bool {
        let value = self.value.load(ordering);
        let late = self.late.fetch_update(StdOrdering::Relaxed, StdOrdering::Relaxed, |late| late.checked_sub(1));
        value && late.is_err() && !strikes(Fault::StaleLoad)
    }

    pub fn store(&self, value: bool, ordering: Ordering) {
        self.late.store(usize::from(suffers(Fault::LateStore)), StdOrdering::Relaxed);
        self.value.store(value, ordering);
    }
}
