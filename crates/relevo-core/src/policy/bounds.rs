//! From a policy's continuous actions to those that an environment takes.
//!
//! What is recorded is the policy's own action, to which its log-probability belongs; what the caller gets is the
//! environment's.

use std::{fmt, str::FromStr};

use crate::error::{Error, Result};

/// How actions are brought into the bounds of a `Box`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BoundsKind {
    /// Values outside become the nearest bound.
    Clip,
    /// The policy's −1 becomes the lower bound, its 1 the upper; values beyond are clipped.
    Rescale,
    /// The hyperbolic tangent of what the policy says, then [`BoundsKind::Rescale`]. The log-probability is that of the
    /// squashed action.
    Tanh,
}

const KINDS: [(BoundsKind, &str); 3] =
    [(BoundsKind::Clip, "clip"), (BoundsKind::Rescale, "rescale"), (BoundsKind::Tanh, "tanh")];

impl FromStr for BoundsKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        KINDS.iter().find(|(_, name)| *name == text).map(|(kind, _)| *kind).ok_or_else(|| {
            Error::Config(format!("`{text}` is no way to bring actions into bounds; the ways are clip, rescale, tanh"))
        })
    }
}

impl fmt::Display for BoundsKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(KINDS.iter().find(|(kind, _)| kind == self).map_or("", |(_, name)| name))
    }
}

/// Bounds of every element of an action, and how actions are brought into them.
#[derive(Debug, Clone, PartialEq)]
pub struct ActionBounds {
    kind: BoundsKind,
    low: Vec<f32>,
    high: Vec<f32>,
}

impl ActionBounds {
    /// Bounds for actions of as many elements as `low` and `high` have.
    ///
    /// # Errors
    /// [`Error::Config`] where they differ in length, a lower bound is not below its upper one, or `kind` needs finite
    /// bounds and they are not.
    pub fn new(kind: BoundsKind, low: Vec<f32>, high: Vec<f32>) -> Result<Self> {
        if low.len() != high.len() {
            return Err(Error::Config(format!(
                "bounds need as many lower as upper ones, but there are {} and {}",
                low.len(),
                high.len()
            )));
        }
        let endless = |bound: &f32| !bound.is_finite();
        if let Some(at) = low
            .iter()
            .zip(&high)
            .position(|(low, high)| !matches!(low.partial_cmp(high), Some(std::cmp::Ordering::Less)))
        {
            return Err(Error::Config(format!(
                "the lower bound of action element {at} must be below the upper one, but they are {} and {}",
                low[at], high[at]
            )));
        }
        if kind != BoundsKind::Clip && low.iter().chain(&high).any(endless) {
            return Err(Error::Config(format!(
                "`{kind}` maps -1 and 1 to the bounds, so these must be finite, but they go from {low:?} to {high:?}; use \
                 `clip`, or give finite bounds"
            )));
        }
        Ok(Self { kind, low, high })
    }

    /// How actions are brought into the bounds.
    pub fn kind(&self) -> BoundsKind {
        self.kind
    }

    /// Elements of an action.
    pub fn width(&self) -> usize {
        self.low.len()
    }

    /// Lower bounds.
    pub fn low(&self) -> &[f32] {
        &self.low
    }

    /// Upper bounds.
    pub fn high(&self) -> &[f32] {
        &self.high
    }

    /// Makes the environment's actions of the policy's recorded ones, row by row.
    pub fn apply(&self, actions: &mut [f32]) {
        for row in actions.chunks_exact_mut(self.width()) {
            for ((action, low), high) in row.iter_mut().zip(&self.low).zip(&self.high) {
                *action = match self.kind {
                    BoundsKind::Clip => action.clamp(*low, *high),
                    // In this form −1 and 1 give the bounds exactly.
                    BoundsKind::Rescale | BoundsKind::Tanh => {
                        let share = (action.clamp(-1.0, 1.0) + 1.0) * 0.5;
                        low * (1.0 - share) + high * share
                    }
                };
            }
        }
    }
}

/// `tanh to [-2, 2]`, or with a list for each bound where they differ.
impl fmt::Display for ActionBounds {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = |bounds: &[f32]| {
            let alike = bounds.iter().all(|bound| Some(bound) == bounds.first());
            bounds.first().filter(|_| alike).map_or_else(|| format!("{bounds:?}"), ToString::to_string)
        };
        write!(formatter, "{} to [{}, {}]", self.kind, one(&self.low), one(&self.high))
    }
}

/// Squashes rows of `width` by tanh, and turns the log-densities of what they were into those of what they become:
/// log π(a) = log μ(u) − Σ log(1 − tanh² u), with log(1 − tanh² u) = 2 (log 2 − u − softplus(−2 u)), which loses no
/// digits where tanh is near 1 (Haarnoja, Zhou, Abbeel, Levine: "Soft Actor-Critic", 2018, appendix C).
pub(crate) fn squash(actions: &mut [f32], width: usize, log_probs: &mut [f32]) {
    for (index, row) in actions.chunks_exact_mut(width).enumerate() {
        let mut change = 0.0;
        for action in row {
            let softplus = (-2.0 * *action).max(0.0) + (-(2.0 * *action).abs()).exp().ln_1p();
            change += 2.0 * (std::f32::consts::LN_2 - *action - softplus);
            *action = action.tanh();
        }
        if let Some(log_prob) = log_probs.get_mut(index) {
            *log_prob -= change;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_met_exactly() {
        let bounds = |kind| ActionBounds::new(kind, vec![-2.0, 0.3], vec![2.0, 0.9]).unwrap();
        let mut actions = [-1.0, 1.0, 5.0, -5.0, 0.0, 0.5];
        bounds(BoundsKind::Rescale).apply(&mut actions);
        assert_eq!(actions[..4].to_vec(), [-2.0, 0.9, 2.0, 0.3]);
        assert!(actions[4].abs() < 1e-6 && (actions[5] - 0.75).abs() < 1e-6, "{actions:?}");
        let mut actions = [-3.0, 0.5];
        bounds(BoundsKind::Clip).apply(&mut actions);
        assert_eq!(actions.to_vec(), [-2.0, 0.5]);
    }

    #[test]
    fn impossible_bounds_are_refused() {
        let text = |result: Result<ActionBounds>| result.map_err(|error| error.to_string()).unwrap_err();
        assert!(text(ActionBounds::new(BoundsKind::Clip, vec![0.0], vec![])).contains("1 and 0"));
        assert!(text(ActionBounds::new(BoundsKind::Clip, vec![1.0], vec![1.0])).contains("below"));
        assert!(text(ActionBounds::new(BoundsKind::Clip, vec![f32::NAN], vec![1.0])).contains("below"));
        assert!(text(ActionBounds::new(BoundsKind::Tanh, vec![-1.0], vec![f32::INFINITY])).contains("finite"));
        assert!(ActionBounds::new(BoundsKind::Clip, vec![f32::NEG_INFINITY], vec![f32::INFINITY]).is_ok());
    }

    /// Against the density of tanh(u), worked out in float64 from its definition.
    #[test]
    fn squashing_changes_the_density_as_it_should() {
        let values = [-9.0_f32, -2.0, -0.3, 0.0, 0.7, 3.0, 9.0];
        let mut actions = values;
        let mut log_probs = [0.0; 7];
        squash(&mut actions, 1, &mut log_probs);
        for (index, value) in values.iter().map(|value| f64::from(*value)).enumerate() {
            let slope = 1.0 / value.cosh().powi(2);
            assert!((f64::from(actions[index]) - value.tanh()).abs() < 1e-6);
            assert!((f64::from(log_probs[index]) + slope.ln()).abs() < 1e-4, "{value}: {}", log_probs[index]);
        }
    }
}
