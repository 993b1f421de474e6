//! The environments: where each one's episode stands.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::ring::Ticket;

/// The newest step of each environment's episode. Each environment is added to by one thread at a time.
#[derive(Debug, Default)]
pub(crate) struct Streams(RwLock<Vec<AtomicU64>>);

/// The environments of a call.
pub(crate) struct Open<'a>(RwLockReadGuard<'a, Vec<AtomicU64>>);

impl Streams {
    /// The environments, with room for those up to `last`.
    pub(crate) fn open(&self, last: u32) -> Open<'_> {
        let streams = self.0.read();
        if streams.len() > last as usize {
            return Open(streams);
        }
        drop(streams);
        let mut streams = self.0.write();
        if streams.len() <= last as usize {
            streams.resize_with(last as usize + 1, AtomicU64::default);
        }
        Open(RwLockWriteGuard::downgrade(streams))
    }
}

impl Open<'_> {
    /// The newest step of the episode that is under way; then `newest` is, or none where that ends the episode.
    pub(crate) fn advance(&self, env: u32, newest: Option<Ticket>) -> Option<Ticket> {
        // One thread alone has to do with an environment at a time.
        let stream = &self.0[env as usize];
        let before = stream.load(Ordering::Relaxed);
        stream.store(newest.map_or(0, |ticket| ticket + 1), Ordering::Relaxed);
        before.checked_sub(1)
    }
}
