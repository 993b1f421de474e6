//! Proportional prioritized replay (arXiv 1511.05952, section 3).

use super::in_range;
use crate::check;
use crate::error::{Error, Place, Result};
use crate::float::Float;

/// The priorities that are sampled from.
#[derive(Debug, Clone, Copy)]
pub struct Proportional<'a, F> {
    /// One for each item; 0 for one that is never drawn, also at `alpha` 0.
    pub priorities: &'a [F],
    /// How much priorities count: at 0 all items that can be drawn are alike.
    pub alpha: F,
}

impl<F: Float> Proportional<'_, F> {
    /// Refuses what is no set of priorities; gives the largest.
    fn check(&self) -> Result<F> {
        check::setting("alpha", self.alpha, "0 or more and finite", self.alpha >= F::ZERO && self.alpha.is_finite())?;
        let is_wrong = |priority: F| !(priority >= F::ZERO && priority.is_finite());
        check::elements("priorities", self.priorities, "0 or more and finite", Place::Position, is_wrong)?;
        let largest = self.priorities.iter().fold(F::ZERO, |largest, one| if *one > largest { *one } else { largest });
        if largest == F::ZERO {
            return Err(Error::Empty { name: "priorities", expected: "one above 0" });
        }
        Ok(largest)
    }
}

/// `priority^alpha / Σ priority^alpha`. Priorities are taken relative to the largest, so that no power overflows.
///
/// # Errors
/// A priority that is negative, NaN or infinite, none above 0, an alpha that is negative or not finite, an output of another
/// length. The output is then as it was.
pub fn proportional_probabilities<F: Float>(given: &Proportional<'_, F>, probabilities: &mut [F]) -> Result<()> {
    let largest = given.check()?;
    check::length("probabilities", probabilities, given.priorities.len(), "one for each priority")?;
    let mut sum = 0.0;
    for (probability, priority) in probabilities.iter_mut().zip(given.priorities) {
        let mass = if *priority == F::ZERO { F::ZERO } else { (*priority / largest).powf(given.alpha) };
        *probability = mass;
        sum += mass.to_f64();
    }
    let sum = F::from_f64(sum);
    for probability in probabilities {
        *probability = *probability / sum;
    }
    Ok(())
}

/// Importance weights of the items drawn: `(N · P)^(−beta)`, divided by the largest of these into `weights`, and by the largest
/// over all items that can be drawn into `weights_global_max`.
///
/// # Errors
/// As [`proportional_probabilities`]; also a beta that is negative or not finite, an index out of range or of an item of
/// priority 0.
pub fn proportional_weights<F: Float>(
    given: &Proportional<'_, F>,
    beta: F,
    indices: &[usize],
    weights: &mut [F],
    weights_global_max: &mut [F],
) -> Result<()> {
    given.check()?;
    check::setting("beta", beta, "0 or more and finite", beta >= F::ZERO && beta.is_finite())?;
    check::length("weights", weights, indices.len(), "one for each index")?;
    check::length("weights_global_max", weights_global_max, indices.len(), "one for each index")?;
    in_range(indices, given.priorities.len())?;
    let drawn = || indices.iter().map(|index| given.priorities[*index]);
    if let Some(position) = drawn().position(|priority| priority == F::ZERO) {
        return Err(Error::Element {
            name: "priorities",
            expected: "above 0 for an item that was drawn",
            came: 0.0,
            place: Place::Position(indices[position]),
        });
    }
    // (N · P)^(−beta) falls with the priority, so the largest weight is that of the smallest priority.
    let exponent = given.alpha * beta;
    let smallest = |priorities: &mut dyn Iterator<Item = F>| priorities.fold(F::INFINITY, |least, one| one.min(least));
    let smallest_drawn = smallest(&mut drawn());
    let smallest_of_all = smallest(&mut given.priorities.iter().copied().filter(|priority| *priority > F::ZERO));
    for ((weight, global), priority) in weights.iter_mut().zip(weights_global_max).zip(drawn()) {
        *weight = (smallest_drawn / priority).powf(exponent);
        *global = (smallest_of_all / priority).powf(exponent);
    }
    Ok(())
}
