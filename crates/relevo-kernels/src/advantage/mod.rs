//! Advantages and returns over `[T, N]`: T steps of N streams, oldest first, row by row in a slice. Flags are bytes, 0 or 1.
//!
//! A step that is *terminated* ends its episode: nothing follows. One that is *truncated* was cut off: what followed is
//! worth `next_values` there, the value of the observation that truly came after it, never that of the next episode's
//! first. Where both flags are set, terminated wins.

mod gae;
mod n_step;
mod returns;
mod vtrace;

pub use gae::{Gae, gae, gae_into_new};
pub use n_step::{NStep, NStepOutputs, n_step};
pub use returns::{DiscountedReturns, discounted_returns};
pub use vtrace::{Vtrace, VtraceOutputs, vtrace};

use crate::check;
use crate::error::Result;

/// Refuses slices that are not `[T, streams]`, as the rewards must be too.
fn same_shape<T>(name: &'static str, slice: &[T], rewards: usize) -> Result<()> {
    check::length(name, slice, rewards, "one for each reward")
}

/// Refuses a number of rewards that is no multiple of the streams.
fn whole_rows(rewards: usize, streams: usize) -> Result<()> {
    if rewards == 0 || (streams > 0 && rewards.is_multiple_of(streams)) {
        return Ok(());
    }
    let expected = rewards.checked_div(streams).map_or(0, |steps| steps * streams);
    Err(crate::Error::Length { name: "rewards", expected, came: rewards, reason: "whole rows of all streams" })
}
