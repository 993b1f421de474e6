//! Checks of what comes in, before anything is written.

use crate::error::{Error, Place, Result};
use crate::float::Float;

/// Elements that are looked through between two looks at the outcome.
const CHUNK: usize = 1024;

/// Refuses a slice of another length.
pub(crate) fn length<T>(name: &'static str, slice: &[T], expected: usize, reason: &'static str) -> Result<()> {
    if slice.len() == expected {
        return Ok(());
    }
    Err(Error::Length { name, expected, came: slice.len(), reason })
}

/// Refuses a setting that is not finite.
pub(crate) fn finite<F: Float>(name: &'static str, value: F) -> Result<()> {
    setting(name, value, "a finite number", Float::is_finite(value))
}

/// Refuses a setting unless `holds`.
pub(crate) fn setting<F: Float>(name: &'static str, came: F, expected: &'static str, holds: bool) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::Setting { name, expected, came: came.to_f64() }) }
}

/// Refuses elements that are wrong, and says where the first is. That is looked for only where there is one.
#[inline(always)]
pub(crate) fn elements<F: Float>(
    name: &'static str,
    slice: &[F],
    expected: &'static str,
    place: impl Fn(usize) -> Place,
    is_wrong: impl Fn(F) -> bool,
) -> Result<()> {
    if !slice.chunks(CHUNK).any(|chunk| F::any(chunk, &is_wrong)) {
        return Ok(());
    }
    match slice.iter().position(|value| is_wrong(*value)) {
        None => Ok(()),
        Some(index) => Err(Error::Element { name, expected, came: slice[index].to_f64(), place: place(index) }),
    }
}

/// Refuses NaN in `[T, streams]`.
#[inline(always)]
pub(crate) fn no_nan<F: Float>(name: &'static str, slice: &[F], streams: usize) -> Result<()> {
    let place = |index| Place::in_rows(index, streams);
    elements(name, slice, "a number", place, Float::is_nan)
}

/// Refuses NaN and negative numbers.
#[inline(always)]
pub(crate) fn no_negative<F: Float>(name: &'static str, slice: &[F]) -> Result<()> {
    // So written that NaN is refused as well.
    elements(
        name,
        slice,
        "0 or more",
        Place::Position,
        |value: F| !matches!(value.partial_cmp(&F::ZERO), Some(order) if order.is_ge()),
    )
}

/// Refuses flags other than 0 and 1 in `[T, streams]`.
#[inline(always)]
pub(crate) fn flags(name: &'static str, slice: &[u8], streams: usize) -> Result<()> {
    if slice.iter().fold(0, |any, flag| any | flag) <= 1 {
        return Ok(());
    }
    match slice.iter().position(|flag| *flag > 1) {
        None => Ok(()),
        Some(index) => Err(Error::Element {
            name,
            expected: "0 or 1",
            came: slice[index].into(),
            place: Place::in_rows(index, streams),
        }),
    }
}
