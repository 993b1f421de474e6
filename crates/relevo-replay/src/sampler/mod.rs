//! Which steps are drawn.

mod prioritized;
mod uniform;

use rand_xoshiro::Xoshiro256PlusPlus;

pub(crate) use self::prioritized::PrioritizedState;
pub use self::prioritized::UpdateReport;
use crate::{
    batch::Draw,
    error::Result,
    ring::{Place, Ring},
};

/// By what steps are drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Sampler {
    /// Each alike.
    Uniform,
    /// In proportion to their priorities to the power of α.
    Prioritized(Prioritized),
}

/// Settings of prioritized replay (Schaul et al., <https://arxiv.org/abs/1511.05952>).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prioritized {
    /// How much priorities count: 0 draws alike, 1 in proportion.
    pub alpha: f64,
    /// How much importance weights undo it: 1 does so wholly.
    pub beta: f64,
    /// Whether each draw is from a share of its own of the whole mass, which lowers the variance; otherwise all are independent.
    pub stratified: bool,
    /// Whether weights are divided by the largest that any step of the buffer could have; otherwise, by the largest of the batch.
    pub by_buffer: bool,
}

impl Default for Prioritized {
    fn default() -> Self {
        Self { alpha: 0.6, beta: 0.4, stratified: true, by_buffer: false }
    }
}

/// What a sampler remembers.
#[derive(Debug)]
pub(crate) enum State {
    Uniform,
    Prioritized(Box<PrioritizedState>),
}

impl State {
    pub(crate) fn new(sampler: Sampler, capacity: usize) -> Result<Self> {
        Ok(match sampler {
            Sampler::Uniform => Self::Uniform,
            Sampler::Prioritized(settings) => Self::Prioritized(Box::new(PrioritizedState::new(settings, capacity)?)),
        })
    }

    /// Draws steps, of which some may turn out to be such as cannot be drawn: for those, others are asked for by
    /// [`draw`](Self::draw).
    pub(crate) fn draw_unseen(
        &mut self,
        ring: &Ring,
        count: usize,
        random: &mut Xoshiro256PlusPlus,
        draws: &mut Vec<Draw>,
    ) -> Result<()> {
        match self {
            Self::Uniform => uniform::draw_unseen(ring, count, random, draws),
            Self::Prioritized(state) => state.draw(ring, count, random, draws),
        }
    }

    /// Draws steps.
    pub(crate) fn draw(
        &mut self,
        ring: &Ring,
        count: usize,
        random: &mut Xoshiro256PlusPlus,
        draws: &mut Vec<Draw>,
    ) -> Result<()> {
        match self {
            Self::Uniform => uniform::draw(ring, count, random, draws),
            Self::Prioritized(state) => state.draw(ring, count, random, draws),
        }
    }
}

/// Whether a transition may begin with the step.
pub(crate) fn is_ready(ring: &Ring, place: Place) -> bool {
    crate::transition::find(ring, place, 1).is_some()
}
