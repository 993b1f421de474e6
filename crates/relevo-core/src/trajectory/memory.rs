//! The last trajectories, in memory.

use std::{collections::VecDeque, sync::Arc};

use super::episode::Episode;

/// How much is kept in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimit {
    /// At most this many trajectories; 0 keeps none.
    pub trajectories: usize,
    /// At most this many bytes; the newest trajectory is kept even if it alone is larger.
    pub bytes: usize,
}

impl Default for MemoryLimit {
    /// The last 1,000 trajectories, up to 256 MiB.
    fn default() -> Self {
        Self { trajectories: 1_000, bytes: 256 << 20 }
    }
}

/// The last trajectories, oldest first.
#[derive(Debug)]
pub(crate) struct Memory {
    limit: MemoryLimit,
    episodes: VecDeque<Arc<Episode>>,
    bytes: usize,
}

impl Memory {
    pub(crate) fn new(limit: MemoryLimit) -> Self {
        Self { limit, episodes: VecDeque::new(), bytes: 0 }
    }

    /// Keeps `episode`, and lets the oldest go until the limits hold.
    pub(crate) fn push(&mut self, episode: Arc<Episode>) {
        if self.limit.trajectories == 0 {
            return;
        }
        self.bytes += episode.bytes();
        self.episodes.push_back(episode);
        while self.episodes.len() > self.limit.trajectories
            || (self.bytes > self.limit.bytes && self.episodes.len() > 1)
        {
            if let Some(oldest) = self.episodes.pop_front() {
                self.bytes -= oldest.bytes();
            }
        }
    }

    /// All that is kept, oldest first.
    pub(crate) fn to_vec(&self) -> Vec<Arc<Episode>> {
        self.episodes.iter().cloned().collect()
    }
}
