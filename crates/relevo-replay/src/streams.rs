//! The environments: where each one's episode stands.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::ring::Ticket;

/// The newest step of each environment's episode. Each environment is added to by one thread at a time.
#[derive(Debug, Default)]
pub(crate) struct Streams(RwLock<Vec<AtomicU64>>);

impl Streams {
    /// The newest step of the episode that is under way; then `newest` is, or none where that ends the episode.
    pub(crate) fn advance(&self, env: u32, newest: Option<Ticket>) -> Option<Ticket> {
        let word = newest.map_or(0, |ticket| ticket + 1);
        let streams = self.0.read();
        if let Some(stream) = streams.get(env as usize) {
            return stream.swap(word, Ordering::AcqRel).checked_sub(1);
        }
        drop(streams);
        let mut streams = self.0.write();
        if streams.len() <= env as usize {
            streams.resize_with(env as usize + 1, AtomicU64::default);
        }
        streams[env as usize].swap(word, Ordering::AcqRel).checked_sub(1)
    }
}
