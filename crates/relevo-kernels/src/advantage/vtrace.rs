//! V-trace.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::{same_shape, whole_rows};
use crate::check;
use crate::error::{Error, Place, Result};
use crate::float::Float;
use crate::recurrence::{Terms, solve};

/// What [`vtrace`] takes; each slice is `[T, streams]`.
#[derive(Debug, Clone, Copy)]
pub struct Vtrace<'a, F> {
    /// N: how many streams lie side by side in a row.
    pub streams: usize,
    /// Log-probability of each action under the policy that acted.
    pub behaviour_log_probs: &'a [F],
    /// Log-probability of each action under the policy that learns.
    pub target_log_probs: &'a [F],
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
    /// Where the weights of one-step errors are clipped; infinite for not at all.
    pub rho_bar: F,
    /// Where the weights of traces are clipped; infinite for not at all.
    pub c_bar: F,
    /// λ: how far traces look ahead.
    pub lam: F,
}

/// What [`vtrace`] writes; each slice is `[T, streams]`.
#[derive(Debug)]
pub struct VtraceOutputs<'a, F> {
    /// Targets of the values.
    pub vs: &'a mut [F],
    /// Advantages for the policy gradient.
    pub pg_advantages: &'a mut [F],
}

/// V-trace targets and advantages (IMPALA, arXiv 1802.01561, section 4.1 and remark 2).
///
/// With `ratio = exp(target − behaviour)`, `ρ_t = min(ρ̄, ratio)`, `c_t = λ · min(c̄, ratio)`, `g_t = γ · (1 − terminated_t)`
/// and `done` = terminated or truncated:
///
/// ```text
/// δ_t  = ρ_t · (r_t + g_t · next_values_t − values_t)
/// x_t  = δ_t + γ · c_t · (1 − done_t) · x_(t+1), x_T = 0
/// vs_t = values_t + x_t
/// pg_advantages_t = ρ_t · (r_t + g_t · u_t − values_t)
/// ```
///
/// where `u_t` is `vs_(t+1)`, or `next_values_t` where the step is done or the last row.
///
/// # Errors
/// Slices of different lengths, NaN anywhere (also where it would not be used), both log-probabilities −∞, a flag other
/// than 0 and 1, a discount or λ that is not finite, a bar that is negative. The outputs are then as they were.
pub fn vtrace<F: Float>(given: &Vtrace<'_, F>, outputs: VtraceOutputs<'_, F>) -> Result<()> {
    let rewards = given.rewards.len();
    whole_rows(rewards, given.streams)?;
    for (name, slice) in given.floats() {
        same_shape(name, slice, rewards)?;
    }
    same_shape("terminated", given.terminated, rewards)?;
    same_shape("truncated", given.truncated, rewards)?;
    same_shape("vs", outputs.vs, rewards)?;
    same_shape("pg_advantages", outputs.pg_advantages, rewards)?;
    check::finite("gamma", given.gamma)?;
    check::finite("lam", given.lam)?;
    check::setting("rho_bar", given.rho_bar, "0 or more", given.rho_bar >= F::ZERO)?;
    check::setting("c_bar", given.c_bar, "0 or more", given.c_bar >= F::ZERO)?;
    Arch::new().dispatch(Work { given, outputs })
}

impl<'a, F> Vtrace<'a, F> {
    fn floats(&self) -> [(&'static str, &'a [F]); 5] {
        [
            ("behaviour_log_probs", self.behaviour_log_probs),
            ("target_log_probs", self.target_log_probs),
            ("rewards", self.rewards),
            ("values", self.values),
            ("next_values", self.next_values),
        ]
    }
}

/// The checks of elements and the computation, for the best instructions of the processor.
struct Work<'a, F> {
    given: &'a Vtrace<'a, F>,
    outputs: VtraceOutputs<'a, F>,
}

impl<F: Float> WithSimd for Work<'_, F> {
    type Output = Result<()>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> Self::Output {
        let Self { given, outputs: VtraceOutputs { vs, pg_advantages } } = self;
        let streams = given.streams;
        for (name, slice) in given.floats() {
            check::no_nan(name, slice, streams)?;
        }
        check::flags("terminated", given.terminated, streams)?;
        check::flags("truncated", given.truncated, streams)?;
        let log_probs = || given.target_log_probs.iter().zip(given.behaviour_log_probs);
        // Two infinities of one sign have no ratio.
        let none = F::Mask::default();
        let have_no_ratio = |target: &F, behaviour: &F| (*target - *behaviour).is_nan();
        if log_probs().fold(none, |any, (target, behaviour)| any | F::mask(have_no_ratio(target, behaviour))) != none
            && let Some(index) = log_probs().position(|(target, behaviour)| have_no_ratio(target, behaviour))
        {
            return Err(Error::Element {
                name: "behaviour_log_probs",
                expected: "finite where target_log_probs is infinite",
                came: given.behaviour_log_probs[index].to_f64(),
                place: Place::in_rows(index, streams),
            });
        }
        // Ratios stand where the advantages will, until they are clipped there.
        for (ratio, (target, behaviour)) in pg_advantages.iter_mut().zip(log_probs()) {
            *ratio = (*target - *behaviour).exp();
        }
        solve(&mut Corrections { given, ratios: pg_advantages }, streams, None, vs);
        for (vs, value) in vs.iter_mut().zip(given.values) {
            *vs += *value;
        }
        let last_row = vs.len() - streams.min(vs.len());
        for index in 0..vs.len() {
            let done = given.terminated[index] | given.truncated[index] != 0;
            let next = if done || index >= last_row { given.next_values[index] } else { vs[index + streams] };
            let future = if given.terminated[index] == 0 { given.gamma * next } else { F::ZERO };
            let rho = pg_advantages[index].min(given.rho_bar);
            pg_advantages[index] = rho * (given.rewards[index] + future - given.values[index]);
        }
        Ok(())
    }
}

/// What the values are corrected by.
struct Corrections<'a, F> {
    given: &'a Vtrace<'a, F>,
    ratios: &'a [F],
}

impl<F: Float> Terms<F> for Corrections<'_, F> {
    #[inline(always)]
    fn write(&mut self, range: Range<usize>, constants: &mut [F], factors: &mut [F]) {
        let Vtrace { gamma, rho_bar, c_bar, lam, .. } = *self.given;
        let size = range.len();
        let (ratios, rewards) = (&self.ratios[range.clone()], &self.given.rewards[range.clone()]);
        let (values, next_values) = (&self.given.values[range.clone()], &self.given.next_values[range.clone()]);
        let (terminated, truncated) = (&self.given.terminated[range.clone()], &self.given.truncated[range]);
        let (constants, factors) = (&mut constants[..size], &mut factors[..size]);
        for index in 0..size {
            let future = gamma * next_values[index];
            let future = if terminated[index] == 0 { future } else { F::ZERO };
            constants[index] = ratios[index].min(rho_bar) * (rewards[index] + future - values[index]);
            let decay = gamma * lam * ratios[index].min(c_bar);
            factors[index] = if terminated[index] | truncated[index] == 0 { decay } else { F::ZERO };
        }
    }

    #[inline(always)]
    fn solved(&mut self, _range: Range<usize>, _solution: &[F]) {}
}
