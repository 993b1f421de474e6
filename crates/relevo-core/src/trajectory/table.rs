//! The episodes of a run: which parts each was written in, and what the sidecars tell of it.

use std::{ops::Range, sync::Arc};

use uuid::Uuid;

use super::{index::Part, segment::Segment};

/// What is known of an episode without reading its steps.
#[derive(Debug, Clone, PartialEq)]
pub struct EpisodeSummary {
    /// Ordinal within the run.
    pub number: u64,
    /// The actor's id when it began.
    pub actor_id: Uuid,
    /// Number of steps.
    pub steps: u64,
    /// Sum of the rewards that came.
    pub episode_return: f64,
    /// Whether the environment's rules ended it.
    pub terminated: bool,
    /// Whether something else ended it.
    pub truncated: bool,
    /// Whether it ended at all.
    pub complete: bool,
    /// The policy that acted first.
    pub policy: Arc<str>,
    /// Steps whose reward never came.
    pub rewards_missing: u64,
    /// Rewards that are NaN.
    pub rewards_nan: u64,
    /// Rewards that are infinite.
    pub rewards_infinite: u64,
    /// The lowest version that acted in it.
    pub lowest_version: u64,
    /// The highest version that acted in it.
    pub highest_version: u64,
    /// When its first step was, in nanoseconds since 1970.
    pub first_time: i64,
    /// When its last step was.
    pub last_time: i64,
}

/// Where a part lies: its segment, the batch in that, and the part in that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    pub(crate) segment: u32,
    pub(crate) batch: u32,
    pub(crate) part: u32,
}

/// Which episodes are wanted: all, or those that meet every condition given.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Selection {
    /// Numbers, sorted.
    pub numbers: Option<Vec<u64>>,
    /// One of these versions acted in it.
    pub versions: Option<(u64, u64)>,
    /// Its return lies between these, both included.
    pub returns: Option<(f64, f64)>,
}

impl Selection {
    /// Whether the episode is wanted.
    pub fn takes(&self, episode: &EpisodeSummary) -> bool {
        self.numbers.as_ref().is_none_or(|numbers| numbers.binary_search(&episode.number).is_ok())
            && self.versions.is_none_or(|(low, high)| low <= episode.highest_version && episode.lowest_version <= high)
            && self.returns.is_none_or(|(low, high)| low <= episode.episode_return && episode.episode_return <= high)
    }

    /// Whether all are wanted.
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }
}

/// All episodes of a run.
#[derive(Debug)]
pub(crate) struct Table {
    /// By number.
    pub(crate) episodes: Vec<EpisodeSummary>,
    /// The parts of each, in order.
    parts: Vec<Range<u32>>,
    places: Vec<Place>,
    /// In the order in which they ended; behind them those that did not.
    pub(crate) order: Vec<u32>,
    /// Parts whose episodes lack the steps before them.
    pub(crate) orphans: Vec<Place>,
}

impl Table {
    pub(crate) fn of(segments: &[Segment]) -> Self {
        let mut places: Vec<(u64, u32, Place)> =
            Vec::with_capacity(segments.iter().map(|segment| segment.parts.len()).sum());
        for (index, segment) in segments.iter().enumerate() {
            for batch in 0..segment.batches.len() {
                places.extend(segment.parts(batch).iter().enumerate().map(|(part, known)| {
                    let place = Place { segment: index as u32, batch: batch as u32, part: part as u32 };
                    (known.number, known.first_step, place)
                }));
            }
        }
        places.sort_unstable();
        let mut table = Self {
            episodes: Vec::new(),
            parts: Vec::new(),
            places: Vec::with_capacity(places.len()),
            order: Vec::new(),
            orphans: Vec::new(),
        };
        for same in places.chunk_by(|left, right| left.0 == right.0) {
            table.add(segments, same);
        }
        let mut order: Vec<(bool, Place, u32)> = (0..table.episodes.len() as u32)
            .map(|episode| {
                let last = table.places_of(episode as usize).last().copied();
                let last = last.unwrap_or(Place { segment: 0, batch: 0, part: 0 });
                (!part_at(segments, last).has(Part::LAST), last, episode)
            })
            .collect();
        order.sort_unstable();
        table.order = order.into_iter().map(|(_, _, episode)| episode).collect();
        table
    }

    /// Adds the episodes with one number: more than one only where segments were copied. Parts whose beginning is lost belong to
    /// none.
    fn add(&mut self, segments: &[Segment], places: &[(u64, u32, Place)]) {
        let mut groups: Vec<(Vec<Place>, u64, bool)> = Vec::new();
        for (_, first_step, place) in places {
            let part = part_at(segments, *place);
            let (steps, last) = (u64::from(part.steps), part.has(Part::LAST));
            if *first_step == 0 {
                groups.push((vec![*place], steps, last));
            } else if let Some(group) =
                groups.iter_mut().find(|(_, known, ended)| !ended && *known == u64::from(*first_step))
            {
                group.0.push(*place);
                (group.1, group.2) = (group.1 + steps, last);
            } else {
                self.orphans.push(*place);
            }
        }
        for (places, ..) in groups {
            let from = self.places.len() as u32;
            let policy = places.first().and_then(|place| {
                let policies = &segments[place.segment as usize].index.policies;
                policies.get(part_at(segments, *place).policy as usize).cloned()
            });
            let parts = places.iter().map(|place| part_at(segments, *place));
            self.episodes.push(summary(parts, policy.unwrap_or_else(|| "".into())));
            self.places.extend(places);
            self.parts.push(from..self.places.len() as u32);
        }
    }

    /// Where the parts of an episode lie, in order.
    pub(crate) fn places_of(&self, episode: usize) -> &[Place] {
        let range = &self.parts[episode];
        &self.places[range.start as usize..range.end as usize]
    }

    /// The first episode with this number.
    pub(crate) fn find(&self, number: u64) -> Option<usize> {
        let at = self.episodes.partition_point(|episode| episode.number < number);
        (self.episodes.get(at)?.number == number).then_some(at)
    }
}

pub(crate) fn part_at(segments: &[Segment], place: Place) -> &Part {
    &segments[place.segment as usize].parts(place.batch as usize)[place.part as usize]
}

fn summary<'a>(parts: impl Iterator<Item = &'a Part>, policy: Arc<str>) -> EpisodeSummary {
    let mut parts = parts.peekable();
    let mut summary = EpisodeSummary {
        number: 0,
        actor_id: Uuid::nil(),
        steps: 0,
        episode_return: 0.0,
        terminated: false,
        truncated: false,
        complete: false,
        policy,
        rewards_missing: 0,
        rewards_nan: 0,
        rewards_infinite: 0,
        lowest_version: u64::MAX,
        highest_version: 0,
        first_time: parts.peek().map_or(0, |part| part.first_time),
        last_time: 0,
    };
    for part in parts {
        summary.number = part.number;
        summary.actor_id = part.actor_id();
        summary.steps += u64::from(part.steps);
        summary.episode_return += part.reward_sum;
        summary.terminated |= part.has(Part::TERMINATED);
        summary.truncated |= part.has(Part::TRUNCATED);
        summary.complete |= part.has(Part::COMPLETE);
        summary.rewards_nan += u64::from(part.rewards_nan);
        summary.rewards_infinite += u64::from(part.rewards_infinite);
        summary.rewards_missing += u64::from(part.rewards_missing);
        summary.lowest_version = summary.lowest_version.min(part.lowest_version);
        summary.highest_version = summary.highest_version.max(part.highest_version);
        summary.last_time = part.last_time;
    }
    summary
}
