//! The attention cost of a sequence of tokens.

use crate::check;
use crate::error::{Error, Result};

/// Attention cost of a sequence (EchoRL): `scale · t(t+1)/2` for t = `seq_len` tokens. The product is exact before it
/// becomes a float.
///
/// ```
/// assert_eq!(relevo_kernels::bandwidth::attention_bandwidth_cost(5_000_000_000, 1.0)?, 1.25000000025e19);
/// # Ok::<(), relevo_kernels::Error>(())
/// ```
///
/// # Errors
/// A scale that is not finite.
pub fn attention_bandwidth_cost(seq_len: u64, scale: f64) -> Result<f64> {
    effective_bandwidth_cost(seq_len, 0, scale)
}

/// Attention cost that is left when a prefix of t' = `reuse_len` tokens is reused (EchoRL): `b(t) − b(t')`, worked out
/// among integers as `(t − t')(t + t' + 1)/2`, so that no digits are lost where both are large and near.
///
/// # Errors
/// More reused than there is, a scale that is not finite.
pub fn effective_bandwidth_cost(seq_len: u64, reuse_len: u64, scale: f64) -> Result<f64> {
    check::finite("scale", scale)?;
    let new = seq_len.checked_sub(reuse_len).ok_or(Error::Reuse { reuse_len, seq_len })?;
    // At most 2^64 · 2^65 / 2: it fits.
    let pairs = u128::from(new) * (u128::from(seq_len) + u128::from(reuse_len) + 1) / 2;
    Ok(scale * pairs as f64)
}
