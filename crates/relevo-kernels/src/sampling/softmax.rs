//! Softmax sampling (EchoRL), with the importance weights of prioritized replay (arXiv 1511.05952).

use super::in_range;
use crate::check;
use crate::error::{Error, Place, Result};
use crate::float::Float;

/// The scores that are sampled from.
#[derive(Debug, Clone, Copy)]
pub struct Softmax<'a, F> {
    /// One for each item, at least one.
    pub scores: &'a [F],
    /// How much the distribution is flattened.
    pub temperature: F,
}

impl<F: Float> Softmax<'_, F> {
    fn check(&self) -> Result<()> {
        let fits = self.temperature > F::ZERO && self.temperature.is_finite();
        check::setting("temperature", self.temperature, "above 0 and finite", fits)?;
        if self.scores.is_empty() {
            return Err(Error::Empty { name: "scores", expected: "at least one score" });
        }
        check::elements("scores", self.scores, "finite", Place::Position, |score: F| !score.is_finite())
    }
}

/// `softmax(scores / temperature)`, which does not overflow.
///
/// # Errors
/// No scores, one that is NaN or infinite, a temperature that is not positive and finite, an output of another length. The
/// output is then as it was.
pub fn softmax_probabilities<F: Float>(given: &Softmax<'_, F>, probabilities: &mut [F]) -> Result<()> {
    given.check()?;
    check::length("probabilities", probabilities, given.scores.len(), "one for each score")?;
    let highest =
        given.scores.iter().fold(-F::INFINITY, |highest, score| if *score > highest { *score } else { highest });
    let mut sum = 0.0;
    for (probability, score) in probabilities.iter_mut().zip(given.scores) {
        *probability = ((*score - highest) / given.temperature).exp();
        sum += probability.to_f64();
    }
    let sum = F::from_f64(sum);
    for probability in probabilities {
        *probability = *probability / sum;
    }
    Ok(())
}

/// Importance weights of the items drawn, `(N · p)^(−beta)` divided by the largest of them. They are worked out from the
/// scores, so that they hold where a probability is too small for a float.
///
/// # Errors
/// As [`softmax_probabilities`]; also a beta that is negative or not finite, an index out of range.
pub fn softmax_weights<F: Float>(given: &Softmax<'_, F>, beta: F, indices: &[usize], weights: &mut [F]) -> Result<()> {
    given.check()?;
    check::setting("beta", beta, "0 or more and finite", beta >= F::ZERO && beta.is_finite())?;
    check::length("weights", weights, indices.len(), "one for each index")?;
    in_range(indices, given.scores.len())?;
    let lowest = indices.iter().fold(F::INFINITY, |lowest, index| given.scores[*index].min(lowest));
    for (weight, index) in weights.iter_mut().zip(indices) {
        let above = (given.scores[*index] - lowest) / given.temperature;
        *weight = if beta == F::ZERO { F::ONE } else { (-(beta * above)).exp() };
    }
    Ok(())
}
