//! Sampling from a replay buffer: probabilities, draws, and the importance weights of what was drawn.

mod draw;
mod proportional;
mod softmax;

pub use draw::{SplitMix64, draw};
pub use proportional::{Proportional, proportional_probabilities, proportional_weights};
pub use softmax::{Softmax, softmax_probabilities, softmax_weights};

use crate::error::{Error, Place, Result};

/// Refuses indices past the end of `count` items.
fn in_range(indices: &[usize], count: usize) -> Result<()> {
    match indices.iter().position(|index| *index >= count) {
        None => Ok(()),
        Some(position) => Err(Error::Index { came: indices[position], count, place: Place::Position(position) }),
    }
}
