//! n-step returns.

use pulp::{Arch, Simd, WithSimd};

use super::{same_shape, whole_rows};
use crate::check;
use crate::error::{Error, Result};
use crate::float::Float;

/// Elements that are worked on at once.
const BLOCK: usize = 512;

/// What [`n_step`] takes; each slice is `[T, streams]`.
#[derive(Debug, Clone, Copy)]
pub struct NStep<'a, F> {
    /// N: how many streams lie side by side in a row.
    pub streams: usize,
    /// What each step earned.
    pub rewards: &'a [F],
    /// 1 where a step ended its episode.
    pub terminated: &'a [u8],
    /// 1 where a step's episode was cut off after it.
    pub truncated: &'a [u8],
    /// Discount.
    pub gamma: F,
    /// How many steps are taken together at most.
    pub n: usize,
}

/// What [`n_step`] writes; each slice is `[T, streams]`.
#[derive(Debug)]
pub struct NStepOutputs<'a, F> {
    /// Sum of the rewards of the steps taken, each discounted.
    pub returns: &'a mut [F],
    /// What the value of the bootstrap state counts: `γ^m`, or 0 if the last step taken terminated.
    pub discounts: &'a mut [F],
    /// The row whose next (final) observation is the bootstrap state.
    pub bootstrap_index: &'a mut [i64],
    /// m: how many steps were taken.
    pub steps: &'a mut [i64],
}

/// n-step returns that never cross an episode's end (Sutton & Barto, chapter 7).
///
/// From step t on, steps are taken until there are n of them, or one is terminated or truncated, or it is the last row: m
/// steps. `returns = Σ_(k<m) γ^k · r_(t+k)`, and the target is `returns + discounts · next_values[bootstrap_index]`.
///
/// The time grows with the number of steps taken together.
///
/// # Errors
/// Slices of different lengths, NaN, a flag other than 0 and 1, a discount that is not finite, n = 0. The outputs are then
/// as they were.
pub fn n_step<F: Float>(given: &NStep<'_, F>, outputs: NStepOutputs<'_, F>) -> Result<()> {
    let rewards = given.rewards.len();
    whole_rows(rewards, given.streams)?;
    same_shape("terminated", given.terminated, rewards)?;
    same_shape("truncated", given.truncated, rewards)?;
    same_shape("returns", outputs.returns, rewards)?;
    same_shape("discounts", outputs.discounts, rewards)?;
    same_shape("bootstrap_index", outputs.bootstrap_index, rewards)?;
    same_shape("steps", outputs.steps, rewards)?;
    check::finite("gamma", given.gamma)?;
    if given.n == 0 {
        return Err(Error::Setting { name: "n", expected: "1 or more", came: 0.0 });
    }
    Arch::new().dispatch(Work { given, outputs })
}

/// The checks of elements and the computation, for the best instructions of the processor.
struct Work<'a, F> {
    given: &'a NStep<'a, F>,
    outputs: NStepOutputs<'a, F>,
}

impl<F: Float> WithSimd for Work<'_, F> {
    type Output = Result<()>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> Self::Output {
        let Self { given, outputs } = self;
        check::no_nan("rewards", given.rewards, given.streams)?;
        check::flags("terminated", given.terminated, given.streams)?;
        check::flags("truncated", given.truncated, given.streams)?;
        count(given, outputs.discounts, outputs.bootstrap_index, outputs.steps);
        let length = given.rewards.len();
        for start in (0..length).step_by(BLOCK) {
            sum_up(given, start, &mut outputs.returns[start..length.min(start + BLOCK)]);
        }
        Ok(())
    }
}

/// Steps that are taken from each row, from the last row back, and what follows from their number.
fn count<F: Float>(given: &NStep<'_, F>, discounts: &mut [F], bootstrap_index: &mut [i64], steps: &mut [i64]) {
    let (length, streams) = (steps.len(), given.streams);
    let n = given.n as i64;
    // The full discount, multiplied in the order in which shorter ones grow to it.
    let full = (0..given.n.min(length / streams.max(1))).fold(F::ONE, |power, _| power * given.gamma);
    for index in (0..length).rev() {
        let done = given.terminated[index] | given.truncated[index] != 0;
        let next = index + streams;
        let (taken, discount) = if done || next >= length {
            (1, if given.terminated[index] == 0 { given.gamma } else { F::ZERO })
        } else if steps[next] < n {
            (steps[next] + 1, given.gamma * discounts[next])
        } else {
            (n, full)
        };
        steps[index] = taken;
        discounts[index] = discount;
        bootstrap_index[index] = (index / streams) as i64 + taken - 1;
    }
}

/// The returns of the elements from `start` on, a step at a time for all of them, until all have ended.
#[inline(always)]
fn sum_up<F: Float>(given: &NStep<'_, F>, start: usize, returns: &mut [F]) {
    let mut weights = [F::ONE; BLOCK];
    let mut going_on = true;
    returns.fill(F::ZERO);
    for step in 0..given.n {
        let from = start + step.saturating_mul(given.streams);
        if !going_on || from >= given.rewards.len() {
            return;
        }
        let size = returns.len().min(given.rewards.len() - from);
        let rewards = &given.rewards[from..][..size];
        let (terminated, truncated) = (&given.terminated[from..][..size], &given.truncated[from..][..size]);
        let (returns, weights) = (&mut returns[..size], &mut weights[..size]);
        for index in 0..size {
            let reward = weights[index] * rewards[index];
            returns[index] += if weights[index] == F::ZERO { F::ZERO } else { reward };
            let on = terminated[index] | truncated[index] == 0;
            weights[index] = if on { weights[index] * given.gamma } else { F::ZERO };
        }
        going_on = F::any(weights, |weight| weight != F::ZERO);
    }
}
