//! Discounted returns.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::{same_shape, whole_rows};
use crate::check;
use crate::error::Result;
use crate::float::Float;
use crate::recurrence::{Terms, solve};

/// What [`discounted_returns`] takes; each slice is `[T, streams]`.
#[derive(Debug, Clone, Copy)]
pub struct DiscountedReturns<'a, F> {
    /// N: how many streams lie side by side in a row.
    pub streams: usize,
    /// What each step earned.
    pub rewards: &'a [F],
    /// Value of the observation that truly followed each step; 0 everywhere without it.
    pub next_values: Option<&'a [F]>,
    /// 1 where a step ended its episode.
    pub terminated: &'a [u8],
    /// 1 where a step's episode was cut off after it.
    pub truncated: &'a [u8],
    /// Discount.
    pub gamma: F,
}

/// Discounted returns (Sutton & Barto, chapter 3): `G_t = r_t + γ · future`, where the future is 0 if step t terminated,
/// `next_values_t` if it was truncated or is the last row, and else `G_(t+1)`.
///
/// # Errors
/// Slices of different lengths, NaN anywhere (also where it would not be used), a flag other than 0 and 1, a discount that
/// is not finite. The output is then as it was.
pub fn discounted_returns<F: Float>(given: &DiscountedReturns<'_, F>, returns: &mut [F]) -> Result<()> {
    let rewards = given.rewards.len();
    whole_rows(rewards, given.streams)?;
    if let Some(next_values) = given.next_values {
        same_shape("next_values", next_values, rewards)?;
    }
    same_shape("terminated", given.terminated, rewards)?;
    same_shape("truncated", given.truncated, rewards)?;
    same_shape("returns", returns, rewards)?;
    check::finite("gamma", given.gamma)?;
    Arch::new().dispatch(Work { given, returns })
}

/// The checks of elements and the computation, for the best instructions of the processor.
struct Work<'a, F> {
    given: &'a DiscountedReturns<'a, F>,
    returns: &'a mut [F],
}

impl<F: Float> WithSimd for Work<'_, F> {
    type Output = Result<()>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> Self::Output {
        let Self { given, returns } = self;
        let streams = given.streams;
        check::no_nan("rewards", given.rewards, streams)?;
        if let Some(next_values) = given.next_values {
            check::no_nan("next_values", next_values, streams)?;
        }
        check::flags("terminated", given.terminated, streams)?;
        check::flags("truncated", given.truncated, streams)?;
        let last_row = returns.len() - streams.min(returns.len());
        let after = given.next_values.map(|next_values| &next_values[last_row..]);
        solve(&mut Rewards(given), streams, after, returns);
        Ok(())
    }
}

/// Rewards, with what a truncated step's future is worth.
struct Rewards<'a, F>(&'a DiscountedReturns<'a, F>);

impl<F: Float> Terms<F> for Rewards<'_, F> {
    #[inline(always)]
    fn write(&mut self, range: Range<usize>, constants: &mut [F], factors: &mut [F]) {
        let (gamma, size) = (self.0.gamma, range.len());
        let (terminated, truncated) = (&self.0.terminated[range.clone()], &self.0.truncated[range.clone()]);
        let (constants, factors) = (&mut constants[..size], &mut factors[..size]);
        constants.copy_from_slice(&self.0.rewards[range.clone()]);
        for index in 0..size {
            factors[index] = if terminated[index] | truncated[index] == 0 { gamma } else { F::ZERO };
        }
        if let Some(next_values) = self.0.next_values {
            let next_values = &next_values[range];
            for index in 0..size {
                let future = gamma * next_values[index];
                // Truncated and not terminated; written without a branch, for the compiler's sake.
                constants[index] += if truncated[index] > terminated[index] { future } else { F::ZERO };
            }
        }
    }

    #[inline(always)]
    fn solved(&mut self, _range: Range<usize>, _solution: &[F]) {}
}
