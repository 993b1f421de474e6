//! Reads a run back, from whatever its writer left.

use std::{
    collections::VecDeque,
    path::Path,
    sync::{Arc, OnceLock},
};

use arrow_array::RecordBatch;
use rustc_hash::FxHashSet;

use super::{
    Episode,
    columns::Columns,
    run::{RunFolder, RunInfo},
    segment::Segment,
    table::{EpisodeSummary, Place, Selection, Table, part_at},
};
use crate::{Error, Result};

/// A run on disk: one that was closed, one whose writer was killed, or one that is still being written. It is as it was when it
/// was opened.
#[derive(Debug)]
pub struct Run {
    folder: RunFolder,
    info: RunInfo,
    pub(super) segments: Vec<Segment>,
    table: OnceLock<Table>,
    /// Segments of which nothing can be read.
    unreadable: Vec<Error>,
}

impl Run {
    /// Opens the run's folder: its description and its sidecars are read, not its steps.
    ///
    /// # Errors
    /// [`Error::Trajectory`] where `path` is no run folder, or one in a newer format.
    pub fn open(path: &Path) -> Result<Self> {
        let (folder, info) = RunFolder::open(path)?;
        let (mut segments, mut unreadable) = (Vec::new(), Vec::new());
        for path in folder.list_segments()? {
            match Segment::open(&path) {
                Ok(segment) => segments.extend(segment),
                Err(error) => unreadable.push(error),
            }
        }
        let run = Self { folder, info, segments, table: OnceLock::new(), unreadable };
        for problem in run.problems() {
            tracing::warn!("{problem}");
        }
        Ok(run)
    }

    /// Where the steps came from.
    pub fn info(&self) -> &RunInfo {
        &self.info
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// What is wrong with its files, as far as that is known without reading all steps.
    pub fn problems(&self) -> Vec<Error> {
        let harmless = self
            .segments
            .iter()
            .flat_map(|segment| segment.problems.iter().map(|problem| Error::trajectory(&segment.path, problem)));
        harmless.chain(self.lost()).collect()
    }

    /// Segments of which nothing can be read.
    pub(super) fn unreadable(&self) -> &[Error] {
        &self.unreadable
    }

    /// What is lost of whole segments.
    pub(super) fn lost(&self) -> impl Iterator<Item = Error> {
        let parts = self
            .segments
            .iter()
            .flat_map(|segment| segment.lost.iter().map(|lost| Error::trajectory(&segment.path, lost)));
        parts.chain(self.unreadable.iter().cloned())
    }

    /// What is known of each episode, by number, without reading its steps.
    pub fn summaries(&self) -> &[EpisodeSummary] {
        &self.table().episodes
    }

    /// Steps of all episodes.
    pub fn steps_count(&self) -> u64 {
        self.segments.iter().flat_map(|segment| &segment.parts).map(|part| u64::from(part.steps)).sum()
    }

    /// Bytes of the segments.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(Segment::length).sum()
    }

    pub(super) fn table(&self) -> &Table {
        self.table.get_or_init(|| Table::of(&self.segments))
    }

    /// The episode with this number; `None` where there is none.
    ///
    /// # Errors
    /// [`Error::Trajectory`] where its steps are damaged.
    pub fn episode(&self, number: u64) -> Result<Option<Episode>> {
        let Some(index) = self.table().find(number) else { return Ok(None) };
        self.assemble(index, &mut BatchCache::default()).map(Some)
    }

    /// The episodes that are wanted, in the order in which they ended; behind them those that did not end.
    ///
    /// A few batches are held in memory at a time. A damaged batch is one error item, and the episodes in it are left out.
    pub fn episodes(self: &Arc<Self>, selection: &Selection) -> Episodes {
        let table = self.table();
        let mut wanted: VecDeque<u32> = table.order.iter().copied().collect();
        if !selection.is_everything() {
            wanted.retain(|episode| selection.takes(&table.episodes[*episode as usize]));
        }
        let lost = self.lost().chain(self.lost_steps()).collect();
        Episodes { run: self.clone(), wanted, cache: BatchCache::default(), told: FxHashSet::default(), lost }
    }

    /// An error for each part of an episode whose steps before are lost.
    pub(super) fn lost_steps(&self) -> Vec<Error> {
        let told = |place: &Place| {
            let part = part_at(&self.segments, *place);
            let reason = format!(
                "batch {} holds steps of episode {} from step {} on, and those before are lost: these are left out",
                place.batch, part.number, part.first_step
            );
            Error::trajectory(&self.segments[place.segment as usize].path, reason)
        };
        self.table().orphans.iter().map(told).collect()
    }

    fn assemble(&self, episode: usize, cache: &mut BatchCache) -> Result<Episode> {
        let places = self.table().places_of(episode);
        let mut parts = Vec::with_capacity(places.len());
        for place in places {
            let segment = &self.segments[place.segment as usize];
            let part = part_at(&self.segments, *place);
            let batch = cache.get(segment, *place)?;
            let contradicts =
                |reason| segment.contradicts(place.batch as usize, format!("in episode {}, {reason}", part.number));
            let columns = Columns::of(&batch, &segment.steps).map_err(contradicts)?;
            parts.push(columns.episode(part.rows()).map_err(contradicts)?);
        }
        Episode::joined(parts)
            .ok_or_else(|| Error::trajectory(self.path(), "an episode has no parts; please report this"))
    }
}

/// Iterator over episodes of a [`Run`].
#[derive(Debug)]
pub struct Episodes {
    run: Arc<Run>,
    wanted: VecDeque<u32>,
    cache: BatchCache,
    /// Batches whose damage has been told.
    told: FxHashSet<(u32, u32)>,
    /// What is to be told at the end: segments of which nothing can be read, and steps that are lost.
    lost: VecDeque<Error>,
}

impl Iterator for Episodes {
    type Item = Result<Episode>;

    fn next(&mut self) -> Option<Self::Item> {
        while let Some(episode) = self.wanted.pop_front() {
            let episode = episode as usize;
            let places = self.run.table().places_of(episode);
            if places.iter().any(|place| self.told.contains(&(place.segment, place.batch))) {
                continue;
            }
            let read = self.run.assemble(episode, &mut self.cache);
            if read.is_err() {
                let damaged = places.iter().find(|place| self.cache.failed == Some((place.segment, place.batch)));
                self.told.extend(damaged.or(places.first()).map(|place| (place.segment, place.batch)));
            }
            return Some(read);
        }
        self.lost.pop_front().map(Err)
    }
}

/// The batches that were read last.
#[derive(Debug, Default)]
pub(super) struct BatchCache {
    batches: VecDeque<((u32, u32), RecordBatch)>,
    /// The one that could not be read last.
    failed: Option<(u32, u32)>,
}

impl BatchCache {
    const MOST: usize = 8;

    fn get(&mut self, segment: &Segment, place: Place) -> Result<RecordBatch> {
        let key = (place.segment, place.batch);
        if let Some((_, batch)) = self.batches.iter().find(|(known, _)| *known == key) {
            return Ok(batch.clone());
        }
        let batch = segment.batch(place.batch as usize).inspect_err(|_| self.failed = Some(key))?;
        if self.batches.len() == Self::MOST {
            self.batches.pop_front();
        }
        self.batches.push_back((key, batch.clone()));
        Ok(batch)
    }
}
