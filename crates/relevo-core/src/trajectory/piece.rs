//! What goes to the disk at a time: a whole episode, or some of the steps of a long one.

use std::sync::Arc;

use super::episode::Episode;

/// A piece of an episode on its way to the disk: a whole one, or some of the steps of a long one.
#[derive(Debug, Clone)]
pub struct Piece {
    /// Its steps, as an episode of their own. One that others follow is not complete.
    pub episode: Arc<Episode>,
    /// Number of its first step within the episode.
    pub first_step: u32,
    /// Whether no piece of the episode follows.
    pub last: bool,
    /// Ordinal of the actor within the run.
    pub ordinal: u32,
    /// How far the actor's random stream has been used.
    pub draws: u64,
}

impl Piece {
    /// A whole episode.
    pub fn whole(episode: Arc<Episode>, ordinal: u32, draws: u64) -> Self {
        Self { episode, first_step: 0, last: true, ordinal, draws }
    }

    /// Rows: its steps, and one for the closing row of an episode that ended.
    pub(crate) fn rows(&self) -> usize {
        self.episode.len + usize::from(self.episode.complete)
    }
}
