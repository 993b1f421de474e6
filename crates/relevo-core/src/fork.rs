//! Noticing a `fork`: threads stay in the parent, so what depends on them must not be used, or waited for, in the child.

use std::sync::atomic::{AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// To be called in the child, right after a fork.
pub fn after_in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// The process in which something was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Birthplace(u32);

impl Birthplace {
    /// This process.
    pub fn here() -> Self {
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Whether this process was forked off since.
    pub fn is_elsewhere(self) -> bool {
        self != Self::here()
    }
}
