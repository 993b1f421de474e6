//! Reward for each unit of bandwidth.

use crate::check;
use crate::error::{Error, Place, Result};
use crate::float::Float;

/// What [`bandwidth_efficiency`] takes.
#[derive(Debug, Clone, Copy)]
pub struct Efficiency<'a, F> {
    /// Sum of the rewards of each episode.
    pub episode_rewards: &'a [F],
    /// Sum of the attention costs of each episode.
    pub episode_b_eff: &'a [F],
    /// Importance weight of each sample of a learner's batch; may be empty.
    pub weights: &'a [F],
    /// Policy-gradient loss of each sample of that batch.
    pub pg_losses: &'a [F],
}

/// Reward for each unit of bandwidth, that of rollouts and the learner's together (EchoRL):
/// `mean(episode_rewards) / (mean(episode_b_eff) + mean(weights · |pg_losses|))`.
///
/// Averages are plain, and summed up in `f64`. Of an empty batch the average is 0.
///
/// # Errors
/// No episode, paired slices of different lengths, NaN, a negative cost, a denominator of zero.
pub fn bandwidth_efficiency<F: Float>(given: &Efficiency<'_, F>) -> Result<F> {
    let episodes = given.episode_rewards.len();
    check::length("episode_b_eff", given.episode_b_eff, episodes, "one for each of the episode_rewards")?;
    check::length("weights", given.weights, given.pg_losses.len(), "one for each of the pg_losses")?;
    if episodes == 0 {
        return Err(Error::Empty { name: "episode_rewards", expected: "at least one episode" });
    }
    check::elements("episode_rewards", given.episode_rewards, "a number", Place::Position, Float::is_nan)?;
    check::no_negative("episode_b_eff", given.episode_b_eff)?;
    check::elements("weights", given.weights, "a number", Place::Position, Float::is_nan)?;
    check::elements("pg_losses", given.pg_losses, "a number", Place::Position, Float::is_nan)?;
    let losses =
        mean(given.weights.len(), |index| given.weights[index].to_f64() * given.pg_losses[index].to_f64().abs());
    let spent = mean(episodes, |index| given.episode_b_eff[index].to_f64()) + losses;
    if spent == 0.0 {
        return Err(Error::ZeroDenominator {
            what: "mean(episode_b_eff) + mean(weights · |pg_losses|)",
            place: None,
            advice: "an efficiency is only defined where bandwidth was spent",
        });
    }
    Ok(F::from_f64(mean(episodes, |index| given.episode_rewards[index].to_f64()) / spent))
}

/// The average of so many values, or 0 of none. They are summed up in eight parts that do not wait for each other.
fn mean(count: usize, value: impl Fn(usize) -> f64) -> f64 {
    let mut parts = [0.0; 8];
    for index in 0..count {
        parts[index % 8] += value(index);
    }
    parts.iter().sum::<f64>() / count.max(1) as f64
}
