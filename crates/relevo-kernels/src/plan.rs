//! Latent plans (EchoRL): how surprising one is, and their running mean.

use pulp::{Arch, Simd, WithSimd};

use crate::check;
use crate::error::{Error, Place, Result};
use crate::float::Float;

/// What [`plan_surprise`] takes.
#[derive(Debug, Clone, Copy)]
pub struct Surprise<'a, F> {
    /// `[N, d]`, row by row.
    pub plans: &'a [F],
    /// `[d]`.
    pub mean_plan: &'a [F],
    /// `[N]`.
    pub rewards: &'a [F],
    /// How much a reward counts beside a distance.
    pub alpha: F,
}

/// Replay score of each plan (EchoRL): `‖plan − mean_plan‖² + alpha · |reward|`, the squared Euclidean distance.
///
/// # Errors
/// Lengths that do not fit, NaN, an alpha that is not finite. The output is then as it was.
pub fn plan_surprise<F: Float>(given: &Surprise<'_, F>, scores: &mut [F]) -> Result<()> {
    let expected = given.rewards.len() * given.mean_plan.len();
    check::length("plans", given.plans, expected, "one plan of the length of mean_plan for each reward")?;
    check::length("scores", scores, given.rewards.len(), "one for each reward")?;
    check::finite("alpha", given.alpha)?;
    Arch::new().dispatch(Work { given, scores })
}

/// The checks of elements and the computation, for the best instructions of the processor.
struct Work<'a, F> {
    given: &'a Surprise<'a, F>,
    scores: &'a mut [F],
}

impl<F: Float> WithSimd for Work<'_, F> {
    type Output = Result<()>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> Self::Output {
        let Surprise { plans, mean_plan, rewards, alpha } = *self.given;
        let width = mean_plan.len();
        let in_plans = |index| Place::Row { row: index / width, column: index % width };
        check::elements("plans", plans, "a number", in_plans, Float::is_nan)?;
        check::elements("mean_plan", mean_plan, "a number", Place::Position, Float::is_nan)?;
        check::elements("rewards", rewards, "a number", Place::Position, Float::is_nan)?;
        for (index, (score, reward)) in self.scores.iter_mut().zip(rewards).enumerate() {
            *score = squared_distance(&plans[index * width..][..width], mean_plan) + alpha * reward.abs();
        }
        Ok(())
    }
}

/// ‖a − b‖², summed up in eight parts that do not wait for each other.
#[inline(always)]
fn squared_distance<F: Float>(a: &[F], b: &[F]) -> F {
    let ((a, rest_of_a), (b, rest_of_b)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut parts = [F::ZERO; 8];
    for (a, b) in a.iter().zip(b) {
        for ((part, a), b) in parts.iter_mut().zip(a).zip(b) {
            *part += (*a - *b) * (*a - *b);
        }
    }
    for ((part, a), b) in parts.iter_mut().zip(rest_of_a).zip(rest_of_b) {
        *part += (*a - *b) * (*a - *b);
    }
    parts.into_iter().fold(F::ZERO, |sum, part| sum + part)
}

/// Running mean of plans (EchoRL): the first plan becomes the mean, each later one moves it,
/// `mean ← decay · mean + (1 − decay) · plan`.
#[derive(Debug, Clone, PartialEq)]
pub struct EmaPlanTracker<F> {
    decay: F,
    mean: Vec<F>,
    count: u64,
}

impl<F: Float> EmaPlanTracker<F> {
    /// A tracker of plans of `dim` numbers that has seen none.
    ///
    /// # Errors
    /// A dim of 0, a decay outside 0 to 1.
    pub fn new(dim: usize, decay: F) -> Result<Self> {
        if dim == 0 {
            return Err(Error::Setting { name: "dim", expected: "1 or more", came: 0.0 });
        }
        check::setting("decay", decay, "from 0 to 1", decay >= F::ZERO && decay <= F::ONE)?;
        Ok(Self { decay, mean: vec![F::ZERO; dim], count: 0 })
    }

    /// How many numbers a plan has.
    pub fn dim(&self) -> usize {
        self.mean.len()
    }

    /// How much of the mean stays with each plan.
    pub fn decay(&self) -> F {
        self.decay
    }

    /// How many plans were taken in.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The mean, or `None` before the first plan.
    pub fn mean(&self) -> Option<&[F]> {
        (self.count > 0).then_some(&self.mean[..])
    }

    /// Takes in one plan, or several row by row, in order.
    ///
    /// # Errors
    /// Rows of another length, a number that is NaN or infinite. Nothing is then taken in.
    pub fn update(&mut self, plans: &[F]) -> Result<()> {
        let dim = self.dim();
        if !plans.len().is_multiple_of(dim) {
            let expected = plans.len().div_ceil(dim) * dim;
            return Err(Error::Length { name: "plans", expected, came: plans.len(), reason: "whole plans of dim" });
        }
        let place = |index| Place::Row { row: index / dim, column: index % dim };
        check::elements("plans", plans, "finite", place, |value: F| !value.is_finite())?;
        for plan in plans.chunks_exact(dim) {
            if self.count == 0 {
                self.mean.copy_from_slice(plan);
            } else {
                for (mean, plan) in self.mean.iter_mut().zip(plan) {
                    *mean = self.decay * *mean + (F::ONE - self.decay) * *plan;
                }
            }
            self.count += 1;
        }
        Ok(())
    }
}
