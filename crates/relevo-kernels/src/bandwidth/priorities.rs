//! Priorities of requests.

use pulp::{Arch, Simd, WithSimd};

use crate::check;
use crate::error::{Error, Place, Result};
use crate::float::Float;

/// What [`bandwidth_aware_priorities`] takes; slices hold one number for each request.
#[derive(Debug, Clone, Copy)]
pub struct Priorities<'a, F> {
    /// What each is expected to earn; may be negative.
    pub rewards: &'a [F],
    /// Attention cost of each that is left when prefixes are reused.
    pub b_eff: &'a [F],
    /// How long each has waited.
    pub queue_times: &'a [F],
    /// How much the cost counts beside the time.
    pub bandwidth_weight: F,
    /// What is added to each denominator.
    pub eps: F,
}

/// Priority of each request (EchoRL): `rewards / (bandwidth_weight · b_eff + queue_times + eps)`.
///
/// # Errors
/// Slices of different lengths, NaN, a cost, time, weight or eps that is negative, a denominator of zero. The output is then
/// as it was.
pub fn bandwidth_aware_priorities<F: Float>(given: &Priorities<'_, F>, priorities: &mut [F]) -> Result<()> {
    let requests = given.rewards.len();
    check::length("b_eff", given.b_eff, requests, "one for each reward")?;
    check::length("queue_times", given.queue_times, requests, "one for each reward")?;
    check::length("priorities", priorities, requests, "one for each reward")?;
    check::setting("bandwidth_weight", given.bandwidth_weight, "0 or more", given.bandwidth_weight >= F::ZERO)?;
    check::setting("eps", given.eps, "0 or more", given.eps >= F::ZERO)?;
    Arch::new().dispatch(Work { given, priorities })
}

/// The checks of elements and the computation, for the best instructions of the processor.
struct Work<'a, F> {
    given: &'a Priorities<'a, F>,
    priorities: &'a mut [F],
}

impl<F: Float> WithSimd for Work<'_, F> {
    type Output = Result<()>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> Self::Output {
        let Priorities { rewards, b_eff, queue_times, bandwidth_weight, eps } = *self.given;
        check::elements("rewards", rewards, "a number", Place::Position, Float::is_nan)?;
        check::no_negative("b_eff", b_eff)?;
        check::no_negative("queue_times", queue_times)?;
        let denominators =
            || b_eff.iter().zip(queue_times).map(|(b_eff, time)| bandwidth_weight * *b_eff + *time + eps);
        let none = F::Mask::default();
        if denominators().fold(none, |any, denominator| any | F::mask(denominator == F::ZERO)) != none
            && let Some(position) = denominators().position(|denominator| denominator == F::ZERO)
        {
            return Err(Error::ZeroDenominator {
                what: "bandwidth_weight · b_eff + queue_times + eps",
                place: Some(Place::Position(position)),
                advice: "give an eps above 0",
            });
        }
        for ((priority, reward), denominator) in self.priorities.iter_mut().zip(rewards).zip(denominators()) {
            *priority = *reward / denominator;
        }
        Ok(())
    }
}
