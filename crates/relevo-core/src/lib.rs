//! Relevo's engine: policies, the multi-actor runtime and trajectories.
//!
//! Read it in this order: [`spec`] and [`tensor`] (what data looks like), [`policy`] (models, their contracts, heads),
//! [`runtime`] (a call from `act` to the recorded step), [`trajectory`] (blocks, episodes, sinks, the reader).

pub mod error;
pub mod fork;
pub mod policy;
pub mod runtime;
pub mod spec;
pub mod tensor;
pub mod trajectory;

pub use error::{Error, Result};
