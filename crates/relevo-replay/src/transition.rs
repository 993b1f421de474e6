//! From a step to a transition: the rewards of up to n steps, and the observation after them.
//!
//! With fewer steps in the episode than n, it is as many as there are: the return of k steps, and γᵏ for the value of what is
//! observed then. It never goes beyond an episode's end: a termination has no value behind it, and a truncation that of the
//! final observation. (Sutton & Barto, Reinforcement Learning, 2nd edition, section 7.1.)

use smallvec::SmallVec;

use crate::ring::{Facts, Next, Place, Ring};

/// How steps are put together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Horizon {
    /// Steps at most, 1 or more.
    pub(crate) steps: usize,
    /// The discount of a step.
    pub(crate) gamma: f64,
}

/// Where the observation after a transition is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// The observation of this step.
    Step(Place),
    /// Kept apart, at this place.
    Closing(u32),
}

/// A transition of some steps.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Transition {
    /// The steps, the first of which is the one that was asked for.
    pub(crate) steps: SmallVec<[Place; 8]>,
    /// What is observed after them.
    pub(crate) after: After,
    /// Of the last step.
    pub(crate) end: Facts,
}

/// The transition that begins with a step; `None` where the step is gone, or nothing is known yet of what followed it.
pub(crate) fn find(ring: &Ring, first: Place, steps: usize) -> Option<Transition> {
    if !ring.holds(first) {
        return None;
    }
    let mut found = SmallVec::new();
    let mut place = first;
    loop {
        let (facts, next) = (ring.facts(place), ring.next(place));
        // A termination has no value behind it, so that any observation does where its own is not known.
        let after = match next {
            Next::Step(next) if !facts.ended() => Some(After::Step(ring.place(next))),
            Next::Closing(apart) => Some(After::Closing(apart)),
            _ if facts.terminated => Some(After::Step(place)),
            _ => None,
        };
        let Some(after) = after else {
            // What came before is a transition that ends with what is observed here.
            let last = *found.last()?;
            return ring.still_holds(first).then(|| Transition {
                steps: found,
                after: After::Step(place),
                end: ring.facts(last),
            });
        };
        found.push(place);
        match after {
            After::Step(next) if !facts.ended() && found.len() < steps => place = next,
            after => return ring.still_holds(first).then_some(Transition { steps: found, after, end: facts }),
        }
    }
}
