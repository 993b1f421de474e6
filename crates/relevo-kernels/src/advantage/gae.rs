//! Generalised advantage estimation.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::{same_shape, whole_rows};
use crate::check;
use crate::error::Result;
use crate::float::Float;
use crate::recurrence::{Terms, solve};

/// What [`gae`] takes; each slice is `[T, streams]`.
#[derive(Debug, Clone, Copy)]
pub struct Gae<'a, F> {
    /// N: how many streams lie side by side in a row.
    pub streams: usize,
    /// What each step earned.
    pub rewards: &'a [F],
    /// Value of the observation that each step began with.
    pub values: &'a [F],
    /// Value of the observation that truly followed it.
    pub next_values: &'a [F],
    /// 1 where a step ended its episode.
    pub terminated: &'a [u8],
    /// 1 where a step's episode was cut off after it.
    pub truncated: &'a [u8],
    /// Discount.
    pub gamma: F,
    /// λ: how far advantages look ahead.
    pub lam: F,
}

/// Advantages and returns (arXiv 1506.02438), with `done` = terminated or truncated and `A_T` = 0:
///
/// ```text
/// δ_t = r_t + γ · next_values_t · (1 − terminated_t) − values_t
/// A_t = δ_t + γ · λ · (1 − done_t) · A_(t+1)
/// returns_t = A_t + values_t
/// ```
///
/// ```
/// use relevo_kernels::advantage::{Gae, gae};
///
/// let given = Gae {
///     streams: 1,
///     rewards: &[1.0, 2.0],
///     values: &[0.5, 1.0],
///     next_values: &[1.0, 3.0],
///     terminated: &[0, 0],
///     truncated: &[0, 1],
///     gamma: 0.5,
///     lam: 0.5,
/// };
/// let (mut advantages, mut returns) = ([0.0; 2], [0.0; 2]);
/// gae(&given, &mut advantages, &mut returns)?;
/// assert_eq!((advantages, returns), ([1.625, 2.5], [2.125, 3.5]));
/// # Ok::<(), relevo_kernels::Error>(())
/// ```
///
/// # Errors
/// Slices of different lengths, NaN anywhere (also where it would not be used), a flag other than 0 and 1, a discount or λ
/// that is not finite. The outputs are then as they were.
pub fn gae<F: Float>(given: &Gae<'_, F>, advantages: &mut [F], returns: &mut [F]) -> Result<()> {
    dispatch(given, advantages, returns, true)
}

/// As [`gae`], for outputs that nobody else sees yet: NaN is looked for while they are written, so that the input is read once.
///
/// # Errors
/// As [`gae`], but the outputs may hold anything after.
pub fn gae_into_new<F: Float>(given: &Gae<'_, F>, advantages: &mut [F], returns: &mut [F]) -> Result<()> {
    dispatch(given, advantages, returns, false)
}

fn dispatch<F: Float>(given: &Gae<'_, F>, advantages: &mut [F], returns: &mut [F], check_first: bool) -> Result<()> {
    let rewards = given.rewards.len();
    whole_rows(rewards, given.streams)?;
    same_shape("values", given.values, rewards)?;
    same_shape("next_values", given.next_values, rewards)?;
    same_shape("terminated", given.terminated, rewards)?;
    same_shape("truncated", given.truncated, rewards)?;
    same_shape("advantages", advantages, rewards)?;
    same_shape("returns", returns, rewards)?;
    check::finite("gamma", given.gamma)?;
    check::finite("lam", given.lam)?;
    Arch::new().dispatch(Work { given, advantages, returns, check_first })
}

/// The checks of elements and the computation, for the best instructions of the processor.
struct Work<'a, F> {
    given: &'a Gae<'a, F>,
    advantages: &'a mut [F],
    returns: &'a mut [F],
    check_first: bool,
}

impl<F: Float> WithSimd for Work<'_, F> {
    type Output = Result<()>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> Self::Output {
        let Self { given, advantages, returns, check_first } = self;
        check::flags("terminated", given.terminated, given.streams)?;
        check::flags("truncated", given.truncated, given.streams)?;
        if check_first {
            check_numbers(given)?;
        }
        let none = F::Mask::default();
        let mut errors = Errors { given, decay: given.gamma * given.lam, returns, seen: none };
        solve(&mut errors, given.streams, None, advantages);
        // Infinities of both signs make NaN as well; so the numbers are asked.
        if errors.seen != none && !check_first { check_numbers(given) } else { Ok(()) }
    }
}

#[inline(always)]
fn check_numbers<F: Float>(given: &Gae<'_, F>) -> Result<()> {
    check::no_nan("rewards", given.rewards, given.streams)?;
    check::no_nan("values", given.values, given.streams)?;
    check::no_nan("next_values", given.next_values, given.streams)
}

/// One-step errors, summed up into advantages.
struct Errors<'a, F: Float> {
    given: &'a Gae<'a, F>,
    decay: F,
    returns: &'a mut [F],
    /// Not 0 once NaN came up, also in what a termination leaves out.
    seen: F::Mask,
}

impl<F: Float> Terms<F> for Errors<'_, F> {
    #[inline(always)]
    fn write(&mut self, range: Range<usize>, constants: &mut [F], factors: &mut [F]) {
        let (gamma, decay, size) = (self.given.gamma, self.decay, range.len());
        let (rewards, values) = (&self.given.rewards[range.clone()], &self.given.values[range.clone()]);
        let next_values = &self.given.next_values[range.clone()];
        let (terminated, truncated) = (&self.given.terminated[range.clone()], &self.given.truncated[range]);
        let (constants, factors) = (&mut constants[..size], &mut factors[..size]);
        let mut seen = self.seen;
        for index in 0..size {
            let future = gamma * next_values[index];
            let gain = rewards[index] - values[index];
            seen = seen | F::mask((gain + future).is_nan());
            constants[index] = gain + if terminated[index] == 0 { future } else { F::ZERO };
            factors[index] = if terminated[index] | truncated[index] == 0 { decay } else { F::ZERO };
        }
        self.seen = seen;
    }

    #[inline(always)]
    fn solved(&mut self, range: Range<usize>, advantages: &[F]) {
        let values = &self.given.values[range.clone()];
        for ((output, advantage), value) in self.returns[range].iter_mut().zip(advantages).zip(values) {
            *output = *advantage + *value;
        }
    }
}
