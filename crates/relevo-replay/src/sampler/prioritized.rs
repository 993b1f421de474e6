//! In proportion to priorities.

use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::{Prioritized, is_ready, uniform::empty};
use crate::{
    batch::Draw,
    error::{Error, Result},
    ring::{Ring, Ticket},
    tree::{Least, Max, Sum, Tree},
};

/// What became of priorities that were told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UpdateReport {
    /// Those of steps that are there.
    pub updated: usize,
    /// Those of steps that have been written over since: passed over.
    pub stale: usize,
}

/// Priorities of all steps, and the trees over them. A step that cannot be drawn yet, or never, has none.
#[derive(Debug)]
pub(crate) struct PrioritizedState {
    settings: Prioritized,
    /// Priorities to the power of α.
    masses: Tree<Sum>,
    /// Priorities as told.
    priorities: Tree<Max>,
    /// The masses once more, where the least of them is asked for.
    least: Option<Tree<Least>>,
    /// The step that each place stands for.
    owners: Vec<Option<Ticket>>,
    /// Steps before this ticket have been looked at.
    seen: Ticket,
    /// Of those, the ones of which it was not known what followed.
    waiting: Vec<Ticket>,
    changed: Vec<usize>,
    found: Vec<usize>,
}

impl PrioritizedState {
    pub(crate) fn new(settings: Prioritized, capacity: usize) -> Result<Self> {
        check("alpha", settings.alpha)?;
        check("beta", settings.beta)?;
        Ok(Self {
            settings,
            masses: Tree::new(capacity),
            priorities: Tree::new(capacity),
            least: settings.by_buffer.then(|| Tree::new(capacity)),
            owners: vec![None; capacity],
            seen: 0,
            waiting: Vec::new(),
            changed: Vec::new(),
            found: Vec::new(),
        })
    }

    pub(crate) fn settings(&self) -> Prioritized {
        self.settings
    }

    pub(crate) fn set_beta(&mut self, beta: f64) -> Result<()> {
        check("beta", beta)?;
        self.settings.beta = beta;
        Ok(())
    }

    /// Another α: all masses are made anew.
    pub(crate) fn set_alpha(&mut self, alpha: f64) -> Result<()> {
        check("alpha", alpha)?;
        self.settings.alpha = alpha;
        for (leaf, priority) in self.priorities.leaves().iter().enumerate() {
            let mass = mass(*priority, alpha);
            self.masses.set(leaf, mass);
            self.least.iter_mut().for_each(|least| least.set(leaf, mass));
        }
        self.masses.settle_all();
        self.least.iter_mut().for_each(Tree::settle_all);
        Ok(())
    }

    pub(crate) fn draw(
        &mut self,
        ring: &Ring,
        count: usize,
        random: &mut Xoshiro256PlusPlus,
        draws: &mut Vec<Draw>,
    ) -> Result<()> {
        draws.clear();
        self.absorb(ring);
        let total = self.masses.root();
        if total <= 0.0 {
            return Err(empty());
        }
        if !total.is_finite() {
            return Err(Error::Contract(
                "the priorities' sum is beyond what a float64 holds; give smaller priorities, or a smaller alpha"
                    .into(),
            ));
        }
        let share = total / count as f64;
        let mut masses: Vec<f64> = (0..count)
            .map(|draw| {
                let random: f64 = random.random();
                if self.settings.stratified { (draw as f64 + random) * share } else { random * total }
            })
            .collect();
        self.masses.find(&mut masses, &mut self.found);
        for leaf in &self.found {
            // A place that has a mass has an owner.
            let ticket = self.owners[*leaf].ok_or_else(empty)?;
            draws.push(Draw { ticket, probability: self.masses.get(*leaf) / total });
        }
        Ok(())
    }

    /// The chance of the step that is drawn least often, where weights are to be divided by its.
    pub(crate) fn least_probability(&self) -> Option<f64> {
        self.least.as_ref().map(|least| least.root() / self.masses.root())
    }

    /// Takes priorities; all, or none where one is not a number, 0 or more.
    pub(crate) fn update(&mut self, ring: &Ring, keys: &[u64], priorities: &[f64]) -> Result<UpdateReport> {
        if keys.len() != priorities.len() {
            return Err(Error::Contract(format!(
                "there must be a priority for each of the {} keys, but {} came",
                keys.len(),
                priorities.len()
            )));
        }
        if let Some(at) = priorities.iter().position(|priority| !(priority.is_finite() && *priority >= 0.0)) {
            return Err(Error::Contract(format!(
                "priorities must be finite and 0 or more, but that at position {at} is {}; nothing was updated",
                priorities[at]
            )));
        }
        self.absorb(ring);
        let mut report = UpdateReport::default();
        for (key, priority) in keys.iter().zip(priorities) {
            let place = ring.place(*key);
            let leaf = place.slot;
            if self.owners[leaf] == Some(*key) && ring.holds(place) {
                self.set(leaf, *priority);
                report.updated += 1;
            } else {
                report.stale += 1;
            }
        }
        self.settle();
        Ok(report)
    }

    /// Takes in the steps that came since; they get the largest priority of those that are there.
    fn absorb(&mut self, ring: &Ring) {
        let cursor = ring.cursor();
        if self.seen == cursor && self.waiting.is_empty() {
            return;
        }
        let oldest = cursor.saturating_sub(ring.capacity() as u64);
        // What they take the place of is gone, its priority too.
        for ticket in self.seen.max(oldest)..cursor {
            let leaf = ring.place(ticket).slot;
            self.owners[leaf] = None;
            self.set(leaf, 0.0);
        }
        self.settle();
        let largest = self.priorities.root();
        let new = if largest > 0.0 { largest } else { 1.0 };
        let mut tickets = std::mem::take(&mut self.waiting);
        tickets.extend(self.seen.max(oldest)..cursor);
        self.seen = cursor;
        tickets.retain(|ticket| {
            if *ticket < oldest {
                return false;
            }
            let place = ring.place(*ticket);
            if is_ready(ring, place) {
                self.owners[place.slot] = Some(*ticket);
                self.set(place.slot, new);
                return false;
            }
            // One that ended an episode whose final observation is not known will never be ready.
            !(ring.holds(place) && ring.facts(place).ended())
        });
        self.waiting = tickets;
        self.settle();
    }

    fn set(&mut self, leaf: usize, priority: f64) {
        self.priorities.set(leaf, priority);
        let mass = mass(priority, self.settings.alpha);
        self.masses.set(leaf, mass);
        self.least.iter_mut().for_each(|least| least.set(leaf, mass));
        self.changed.push(leaf);
    }

    fn settle(&mut self) {
        self.priorities.settle(&self.changed);
        self.masses.settle(&self.changed);
        self.least.iter_mut().for_each(|least| least.settle(&self.changed));
        self.changed.clear();
    }
}

/// A step of priority 0 is never drawn, whatever α is.
fn mass(priority: f64, alpha: f64) -> f64 {
    if priority == 0.0 { 0.0 } else { priority.powf(alpha) }
}

fn check(name: &str, value: f64) -> Result<()> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    Err(Error::Config(format!("{name} must be a finite number, 0 or more, but is {value}")))
}
