//! Relevo's mathematics: slices in, slices out.
//!
//! Every function checks what it is given before it writes: where it fails, outputs are as they were. It computes in the
//! precision of its slices ([`Float`]), and allocates nothing, except where it says so.
//!
//! The loops are written so that the compiler uses the processor's vectors, and compiled once more for AVX2, which is
//! taken where the processor has it. The arithmetic is the same, to the bit.
#![forbid(unsafe_code)]
#![expect(
    clippy::inline_always,
    reason = "a loop must be compiled anew for each instruction set that it is dispatched to"
)]

pub mod advantage;
pub mod bandwidth;
mod check;
mod error;
mod float;
pub mod plan;
pub mod prefix;
mod recurrence;
pub mod sampling;

pub use error::{Error, Place, Result};
pub use float::Float;
