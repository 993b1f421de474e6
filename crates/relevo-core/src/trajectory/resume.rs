//! Going on with a run that was recorded before.

use std::path::Path;

use rustc_hash::FxHashMap;

use super::{
    reader::Run,
    run::RunFolder,
    writer::{RunWriter, WriterOptions},
};
use crate::Result;

/// Where a run stood.
#[derive(Debug, Default)]
pub struct Resumed {
    /// The seed of everything random in it.
    pub seed: u64,
    /// Number of the next episode.
    pub next_episode: u64,
    /// By ordinal of the actor: how far its random stream had been used. After a crash this is known from what was recorded.
    pub draws: FxHashMap<u32, u64>,
}

impl RunWriter {
    /// Whether there is a run in the folder.
    pub fn is_run(path: &Path) -> bool {
        RunFolder::is_run(path)
    }

    /// Opens the folder of a run to write more of it. What is there stays as it is.
    ///
    /// # Errors
    /// [`Error::Trajectory`](crate::Error::Trajectory) where it is no run folder, or another program writes to it.
    pub fn resume(path: &Path, options: WriterOptions) -> Result<(Self, Resumed)> {
        let (folder, mut info) = RunFolder::resume(path)?;
        let run = Run::open(path)?;
        let next_segment = folder.next_segment()?;
        let mut resumed = Resumed { seed: info.seed, ..Resumed::default() };
        for segment in &run.segments {
            let parts = segment.parts.iter().map(|part| (part.ordinal, part.draws));
            for (ordinal, draws) in parts.chain(segment.index.streams.iter().map(|place| (place.ordinal, place.draws)))
            {
                let known = resumed.draws.entry(ordinal).or_default();
                *known = draws.max(*known);
            }
            let numbers = segment.parts.iter().map(|part| part.number + 1);
            resumed.next_episode = numbers.fold(resumed.next_episode, u64::max);
        }
        info.begin_session();
        folder.describe(&info)?;
        tracing::info!("the run folder {} is open again, from episode {} on", path.display(), resumed.next_episode);
        Ok((Self::new(folder, info, options, next_segment), resumed))
    }
}
