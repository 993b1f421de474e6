//! Draws by given probabilities.

use crate::check;
use crate::error::{Error, Place, Result};
use crate::float::Float;

/// A small generator of random numbers (G. L. Steele, D. Lea, C. H. Flood, 2014). The same seed gives the same numbers on
/// every machine. Not for secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A generator that begins at `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number, from 0 up to but without 1, in steps of 2⁻⁵³.
    pub fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }
}

/// Draws items independently, each as often as its probability says; one of probability 0 is never drawn. Probabilities need
/// not sum up to 1. The working memory is of their number.
///
/// # Errors
/// A probability that is negative, NaN or infinite, none above 0. The output is then as it was.
pub fn draw<F: Float>(probabilities: &[F], random: &mut SplitMix64, indices: &mut [usize]) -> Result<()> {
    let is_wrong = |one: F| !(one >= F::ZERO && one.is_finite());
    check::elements("probabilities", probabilities, "0 or more and finite", Place::Position, is_wrong)?;
    let mut total = 0.0;
    let ends: Vec<f64> = probabilities
        .iter()
        .map(|one| {
            total += one.to_f64();
            total
        })
        .collect();
    if total == 0.0 {
        return Err(Error::Empty { name: "probabilities", expected: "one above 0" });
    }
    for index in indices {
        // A unit is less than 1 by at least 2⁻⁵³, so the product rounds to less than the total and some end lies beyond it. The
        // first such end belongs to an item above 0, as the end before it is not beyond.
        let at = random.unit() * total;
        *index = ends.partition_point(|end| *end <= at);
    }
    Ok(())
}
