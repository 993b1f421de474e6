//! The linear recurrence behind advantages and returns, backward in time: `x_t = constant_t + factor_t · x_(t+1)`.
//!
//! Over many streams, lanes of the processor's vectors hold neighbouring streams. Over few, a step would have to wait for
//! the one after it; so the recurrence is first rewritten to reach further, by recursive doubling (P. M. Kogge, H. S. Stone,
//! 1973): `x_t = (constant_t + factor_t · constant_(t+1)) + factor_t · factor_(t+1) · x_(t+2)`, and so on, until lanes
//! can hold neighbouring steps.

use std::ops::Range;

use crate::float::Float;

/// Elements that are worked on at once. Their terms stay in the fastest cache, on the stack. No power of two: arrays that lie
/// 4 KiB apart get in each other's way when one is read and another written.
const BLOCK: usize = 384;
/// Terms of a block, and of what its last elements reach.
const TERMS: usize = BLOCK + 64;
/// Elements that do not depend on each other in the loop that does: one or two vectors of the processor.
const LANES: usize = 8;

/// What the constants and factors are, for elements of `[T, N]`.
pub(crate) trait Terms<F> {
    /// Writes those of the elements in `range`. A factor of 0 ends an episode: nothing comes over from the step after it.
    fn write(&mut self, range: Range<usize>, constants: &mut [F], factors: &mut [F]);

    /// Called with each range, from the last to the first, once the recurrence is solved there, while it is in the cache.
    fn solved(&mut self, range: Range<usize>, solution: &[F]);
}

/// Solves the recurrence over `[T, streams]` into `solution`. After the last step come the values `after` (`[streams]`),
/// or zeros.
#[inline(always)]
pub(crate) fn solve<F: Float>(terms: &mut impl Terms<F>, streams: usize, after: Option<&[F]>, solution: &mut [F]) {
    let length = solution.len();
    let mut constants = [F::ZERO; TERMS];
    let mut factors = [F::ZERO; TERMS];
    let last_row = length - streams.min(length);
    for (range, size) in blocks(last_row..length) {
        terms.write(range.clone(), &mut constants[..size], &mut factors[..size]);
        let solved = &mut solution[range.clone()];
        match after {
            None => solved.copy_from_slice(&constants[..size]),
            Some(after) => {
                let after = &after[range.start - last_row..range.end - last_row];
                for (((solved, constant), factor), after) in solved.iter_mut().zip(&constants).zip(&factors).zip(after)
                {
                    *solved = *constant + carried(*factor, *after);
                }
            }
        }
        terms.solved(range, solved);
    }
    let reach = reach(streams);
    if reach == streams {
        for (range, size) in blocks(0..last_row) {
            terms.write(range.clone(), &mut constants[..size], &mut factors[..size]);
            scan(&constants[..size], &factors[..size], streams, &mut solution[range.start..]);
            terms.solved(range.clone(), &solution[range]);
        }
        return;
    }
    let mut further = ([F::ZERO; TERMS], [F::ZERO; TERMS]);
    for (range, size) in blocks(0..last_row) {
        // With the terms that the last elements of the block reach; those are solved already.
        let reached_too = range.start..last_row.min(range.end + reach);
        let count = reached_too.len();
        terms.write(reached_too, &mut constants[..count], &mut factors[..count]);
        let from_here = &mut solution[range.start..];
        // What would reach beyond the last row is solved step by step.
        let near = size.min(count.saturating_sub(reach));
        for index in (near..size).rev() {
            from_here[index] = constants[index] + carried(factors[index], from_here[index + streams]);
        }
        let mut reached = streams;
        let (mut from, mut to) = ((&mut constants, &mut factors), (&mut further.0, &mut further.1));
        while reached < reach {
            double((&from.0[..count], &from.1[..count]), reached, (&mut *to.0, &mut *to.1));
            std::mem::swap(&mut from, &mut to);
            reached *= 2;
        }
        scan(&from.0[..near], &from.1[..near], reach, from_here);
        terms.solved(range.clone(), &solution[range]);
    }
}

/// How far the terms are made to reach: a multiple of [`LANES`], so that what is read was written by one store, which the
/// processor hands on before it is in the cache. Far ahead it is in the cache by then.
fn reach(streams: usize) -> usize {
    let mut reach = streams;
    while !reach.is_multiple_of(LANES) && reach < 4 * LANES {
        reach *= 2;
    }
    reach
}

/// The blocks of a range, from the last to the first, each with its size.
fn blocks(range: Range<usize>) -> impl Iterator<Item = (Range<usize>, usize)> {
    let count = range.len().div_ceil(BLOCK);
    (0..count).rev().map(move |block| {
        let start = range.start + block * BLOCK;
        let end = range.end.min(start + BLOCK);
        (start..end, end - start)
    })
}

/// `factor · next`, and 0 where the factor is 0, even if the next episode holds an infinite number.
#[inline(always)]
fn carried<F: Float>(factor: F, next: F) -> F {
    if factor == F::ZERO { F::ZERO } else { factor * next }
}

/// From terms that reach `reached` elements ahead to terms that reach twice as far, where those are in the block.
#[inline(always)]
fn double<F: Float>(from: (&[F], &[F]), reached: usize, to: (&mut [F], &mut [F])) {
    let Some(size) = from.0.len().checked_sub(reached) else { return };
    let (constants, next_constants) = (&from.0[..size], &from.0[reached..][..size]);
    let (factors, next_factors) = (&from.1[..size], &from.1[reached..][..size]);
    let (to_constants, to_factors) = (&mut to.0[..size], &mut to.1[..size]);
    for index in 0..size {
        to_constants[index] = constants[index] + carried(factors[index], next_constants[index]);
        to_factors[index] = factors[index] * next_factors[index];
    }
}

/// Solves the elements of these terms, which reach `reach` (at least [`LANES`]) elements ahead, where all is solved.
#[inline(always)]
fn scan<F: Float>(constants: &[F], factors: &[F], reach: usize, solution: &mut [F]) {
    let (constants, rest_of_constants) = constants.as_chunks::<LANES>();
    let (factors, rest_of_factors) = factors.as_chunks::<LANES>();
    let chunked = constants.len() * LANES;
    for (index, (constant, factor)) in rest_of_constants.iter().zip(rest_of_factors).enumerate().rev() {
        solution[chunked + index] = *constant + carried(*factor, solution[chunked + index + reach]);
    }
    let mut next = [F::ZERO; LANES];
    if reach == LANES && chunked > 0 {
        next.copy_from_slice(&solution[chunked..chunked + LANES]);
    }
    for (chunk, (constants, factors)) in constants.iter().zip(factors).enumerate().rev() {
        let start = chunk * LANES;
        // At this reach the former turn's result is the next value, so it need not go through memory.
        if reach != LANES {
            next.copy_from_slice(&solution[start + reach..start + reach + LANES]);
        }
        for ((next, constant), factor) in next.iter_mut().zip(constants).zip(factors) {
            *next = *constant + carried(*factor, *next);
        }
        solution[start..start + LANES].copy_from_slice(&next);
    }
}
