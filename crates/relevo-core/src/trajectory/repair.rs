//! Checking a run's files byte by byte, and making a damaged run whole again.

use std::{fs, io, path::Path};

use crc32fast::hash;

use super::{
    columns::Columns,
    index::{Part, place_of},
    reader::Run,
    run::RunFolder,
    segment::Segment,
    segment_writer::{Fsync, SegmentWriter, WORKSHOP, index_path},
};
use crate::{Error, Result};

/// What is wrong with a run, and what that costs.
#[derive(Debug, Default)]
pub struct Report {
    /// What is wrong, though all steps are there.
    pub problems: Vec<Error>,
    /// What is lost.
    pub lost: Vec<Error>,
    /// Batches that were compared with their checksums.
    pub batches: usize,
    /// Bytes of those.
    pub bytes: u64,
    /// Segments that were never closed: they are still written, or their writer was killed.
    pub unclosed: usize,
    /// Episodes of which steps lie in batches that cannot be read, as far as sidecars tell of them.
    pub lost_episodes: usize,
    /// Those steps.
    pub lost_steps: u64,
    /// Batches that cannot be read: segment, and place in it.
    lost_batches: Vec<(u32, u32)>,
}

impl Report {
    /// Whether all is as it was written.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty() && self.lost.is_empty()
    }
}

impl Run {
    /// Reads every byte and compares it with what was written. `tell` is called after each batch with the bytes read so far; an
    /// error of its ends the check.
    ///
    /// # Errors
    /// Only that of `tell`; what is wrong with the files stands in the report.
    pub fn verify(&self, tell: &mut dyn FnMut(u64) -> Result<()>) -> Result<Report> {
        let mut report = Report { lost: self.lost().collect(), ..Report::default() };
        for (number, segment) in self.segments.iter().enumerate() {
            let problem = |problem: String| Error::trajectory(&segment.path, problem);
            report.problems.extend(segment.problems.iter().cloned().map(problem));
            for (index, batch) in segment.batches.iter().enumerate() {
                let read = segment.batch(index).and_then(|read| {
                    Columns::of(&read, &segment.steps)
                        .and_then(|columns| {
                            segment.parts(index).iter().try_for_each(|part| columns.episode(part.rows()).map(drop))
                        })
                        .map_err(|reason| segment.contradicts(index, reason))
                });
                match read {
                    Ok(()) => report.batches += 1,
                    Err(error) => {
                        report.lost.push(error);
                        report.lost_batches.push((number as u32, index as u32));
                    }
                }
                report.bytes += batch.place.length;
                tell(report.bytes)?;
            }
            match segment.tail().map_err(|error| problem(format!("cannot read: {error}")))? {
                None => report.unclosed += 1,
                Some((tail, end)) if hash(&tail) != end.checksum => {
                    report.problems.push(problem(
                        "its footer is damaged: other programs may not open it, though all batches are there".into(),
                    ));
                }
                Some(_) => {}
            }
        }
        report.lost.extend(self.lost_steps());
        let lost = report
            .lost_batches
            .iter()
            .flat_map(|(segment, batch)| self.segments[*segment as usize].parts(*batch as usize));
        let mut numbers = std::collections::BTreeSet::new();
        for part in lost {
            numbers.insert(part.number);
            report.lost_steps += u64::from(part.steps);
        }
        report.lost_episodes = numbers.len();
        Ok(report)
    }
}

/// Makes a run whole: of each segment that is damaged, or was never closed, the batches that are whole go into a file of the same
/// name, with a sidecar and a footer. Of an episode whose steps are lost in part, those before the gap stay; the sidecar tells no
/// more of those behind it. What is sound is not touched, so a second repair does nothing. Of a segment that loses something, the
/// old file stays under a name that ends with `.damaged`. Gives what it found.
///
/// # Errors
/// [`Error::Trajectory`] where the run is still written, or a file cannot be.
pub fn repair(path: &Path, tell: &mut dyn FnMut(u64) -> Result<()>) -> Result<Report> {
    // Kept until the end: nobody else may write.
    let (folder, _) = RunFolder::resume(path)?;
    finish(&folder.segments())?;
    let run = Run::open(path)?;
    let report = run.verify(tell)?;
    let kept = kept_parts(&run, &report);
    for (number, (segment, kept)) in run.segments.iter().zip(kept).enumerate() {
        let is_lost = |batch: usize| report.lost_batches.contains(&(number as u32, batch as u32));
        let mine = |error: &&Error| matches!(error, Error::Trajectory { path, .. } if *path == segment.path);
        let is_damaged = report.problems.iter().chain(&report.lost).any(|error| mine(&error));
        if is_damaged || segment.index.end.is_none() || segment.unfinished > 0 || kept.contains(&false) {
            rewrite(segment, &kept, is_lost)?;
        }
    }
    for unreadable in run.unreadable() {
        let Error::Trajectory { path, .. } = unreadable else { continue };
        let aside = path.with_extension("arrow.unreadable");
        fs::rename(path, &aside)
            .map_err(|error| Error::trajectory(path, format!("cannot put it aside as {}: {error}", aside.display())))?;
    }
    Ok(report)
}

/// Which parts of each segment the sidecars go on to tell of: those that can be read, and follow no gap in their episode.
fn kept_parts(run: &Run, report: &Report) -> Vec<Vec<bool>> {
    let mut kept: Vec<Vec<bool>> = run.segments.iter().map(|segment| vec![false; segment.parts.len()]).collect();
    let table = run.table();
    for episode in 0..table.episodes.len() {
        let whole = table
            .places_of(episode)
            .iter()
            .take_while(|place| !report.lost_batches.contains(&(place.segment, place.batch)));
        for place in whole {
            let first = run.segments[place.segment as usize].batches[place.batch as usize].parts.start;
            kept[place.segment as usize][first + place.part as usize] = true;
        }
    }
    kept
}

/// Writes the batches of a segment that are not lost into a file that takes its place, and tells of the parts that are kept. Whenever
/// this ends before its time, there is a segment with the sidecar that belongs to it: the old ones, or the new ones, of which the
/// sidecar may still lie in the workshop.
fn rewrite(segment: &Segment, kept: &[bool], is_lost: impl Fn(usize) -> bool) -> Result<()> {
    let cannot = |error: io::Error| Error::trajectory(&segment.path, format!("cannot repair: {error}"));
    let (Some(folder), Some(name)) = (segment.path.parent(), segment.path.file_name()) else {
        return Err(cannot(io::ErrorKind::InvalidFilename.into()));
    };
    let workshop = folder.join(WORKSHOP);
    if workshop.exists() {
        fs::remove_dir_all(&workshop).map_err(cannot)?;
    }
    fs::create_dir(&workshop).map_err(cannot)?;
    let fresh = workshop.join(name);
    let mut writer = SegmentWriter::create(&fresh, &segment.steps, segment.compression, Fsync::Segment)?;
    let names = &segment.index.policies;
    let names_are_lost = segment.parts.iter().any(|part| part.policy as usize >= names.len());
    if !names_are_lost {
        writer.policies.clone_from(names);
    }
    for (index, batch) in segment.batches.iter().enumerate().filter(|(index, _)| !is_lost(*index)) {
        let (message, metadata) = segment.message(index).map_err(cannot)?;
        let mut parts: Vec<Part> = batch.parts.clone().filter(|at| kept[*at]).map(|at| segment.parts[at]).collect();
        if names_are_lost {
            let rows = segment.batch(index)?;
            let columns = Columns::of(&rows, &segment.steps).map_err(|reason| segment.contradicts(index, reason))?;
            for part in &mut parts {
                part.policy = place_of(columns.policy(part.first_row as usize), &mut writer.policies);
            }
        }
        writer.copy(&message, metadata, batch.place.rows, &parts)?;
    }
    writer.close(&segment.index.streams)?;
    if (0..segment.batches.len()).any(&is_lost) {
        // Whoever wants to try for what is in it can.
        let damaged = segment.path.with_extension("arrow.damaged");
        if !damaged.exists() {
            fs::hard_link(&segment.path, &damaged)
                .or_else(|_| fs::copy(&segment.path, &damaged).map(drop))
                .map_err(cannot)?;
        }
    }
    // The sidecar in the workshop holds from here on, and takes the place of the old one by the next.
    fs::rename(&fresh, &segment.path)
        .and_then(|()| fs::rename(index_path(&fresh), index_path(&segment.path)))
        .and_then(|()| fs::remove_dir(&workshop))
        .map_err(cannot)
}

/// Puts a sidecar in its place that a repair left in its workshop, when it ended between the two.
fn finish(path: &Path) -> Result<()> {
    let workshop = path.join(WORKSHOP);
    let cannot = |error: io::Error| Error::trajectory(&workshop, format!("cannot repair: {error}"));
    let Ok(entries) = fs::read_dir(&workshop) else { return Ok(()) };
    for entry in entries {
        let index = entry.map_err(cannot)?.path();
        if let Some(name) = index.file_name()
            && index.extension().is_some_and(|extension| extension == "index")
            && !index.with_extension("arrow").exists()
        {
            fs::rename(&index, path.join(name)).map_err(cannot)?;
        }
    }
    Ok(())
}
