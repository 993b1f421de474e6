//! The arithmetic of heads, across rows: a pass over all rows at a time, so that the compiler and `wide` use SIMD.

use wide::f32x8;

use super::random::{Stream, open_unit, philox, philox_words, unit};

/// Buffers that heads reuse from call to call.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    logits: Vec<f32x8>,
    relative: Vec<f32x8>,
    deviations: Vec<f32>,
    normals: Vec<f32>,
    angles: Vec<f32>,
}

/// Rows that are worked on at a time.
const LANES: usize = 8;

/// How a discrete action is picked from its logits.
#[derive(Clone, Copy)]
pub(crate) enum Pick<'a> {
    /// The largest logit; the first of equals.
    Largest,
    /// By chance, each with its softmax probability; `block` tells the draws of one action apart.
    Draw { seed: u64, streams: &'a [Stream], block: u32 },
}

/// The index of the first NaN's row, if there is one.
pub(crate) fn first_nan_row(values: &[f32], width: usize) -> Option<usize> {
    // Without branches, so that the compiler uses SIMD; the search runs only where there is one.
    let has_nan = |chunk: &[f32]| chunk.iter().fold(0, |any, value| any | u32::from(value.is_nan())) != 0;
    let chunk = values.chunks(1024).position(has_nan)?;
    values.iter().skip(chunk * 1024).position(|value| value.is_nan()).map(|index| (chunk * 1024 + index) / width)
}

/// The row of the first value that is NaN or infinite, if there is one.
///
/// Written out beside [`first_nan_row`] on purpose: with one search for both, which took the test as a function, a call of
/// `act` for 1,024 actors took 208 µs instead of 184.
pub(crate) fn first_wild_row(values: &[f32], width: usize) -> Option<usize> {
    let is_wild = |chunk: &[f32]| chunk.iter().fold(0, |any, value| any | u32::from(!value.is_finite())) != 0;
    let chunk = values.chunks(1024).position(is_wild)?;
    values.iter().skip(chunk * 1024).position(|value| !value.is_finite()).map(|index| (chunk * 1024 + index) / width)
}

/// Picks an action from each row of `logits` (`actions.len()` rows of `width`). Where `mask` (one byte a logit) is 0, the
/// logit counts as −∞. With `log_probs`, the log-probability of the picked action under softmax(logits) goes there.
///
/// Eight rows are worked on at a time, one in each lane, so what a row gives does not depend on its neighbours. Where the
/// processor has AVX2 a version compiled for it runs; the arithmetic is the same.
///
/// # Errors
/// The first row whose logits are no distribution: all of them −∞, or one +∞.
#[multiversion::multiversion(targets("x86_64+avx2+fma"))]
pub(crate) fn pick_discrete<'a>(
    logits: &[f32],
    mask: Option<&[u8]>,
    width: usize,
    pick: Pick<'a>,
    actions: &mut [i64],
    mut log_probs: Option<&mut [f32]>,
    scratch: &mut Scratch,
) -> Result<(), usize> {
    let rows = actions.len();
    let softmax = log_probs.is_some() || matches!(pick, Pick::Draw { .. });
    let (choices, relative) = (&mut scratch.logits, &mut scratch.relative);
    choices.resize(width, f32x8::ZERO);
    for first in (0..rows).step_by(LANES) {
        let lanes = LANES.min(rows - first);
        let cells = first * width..(first + lanes) * width;
        let block = &logits[cells.clone()];
        load_lanes(choices, block, mask.map(|mask| &mask[cells]), lanes);
        let top = choices.iter().copied().fold(f32x8::splat(f32::NEG_INFINITY), f32x8::fast_max);
        // Softmax weights relative to the largest, where a distribution is asked for.
        relative.clear();
        let mut total = f32x8::ZERO;
        if softmax {
            relative.extend(choices.iter().map(|logit| (*logit - top).exp()));
            total = relative.iter().copied().fold(total, |sum, weight| sum + weight);
        }
        let proof = if softmax { total } else { top };
        if let Some(lane) = proof.to_array()[..lanes].iter().position(|value| !value.is_finite()) {
            return Err(first + lane);
        }
        let picked = match pick {
            Pick::Largest => first_equal(choices, top),
            Pick::Draw { seed, streams, block } => {
                let streams = std::array::from_fn(|lane| streams[first + lane.min(lanes - 1)]);
                let words = philox_words(seed, streams, block);
                first_beyond(relative, f32x8::from(words.map(unit)) * total)
            }
        };
        for lane in 0..lanes {
            actions[first + lane] = picked[lane] as i64;
        }
        if let Some(log_probs) = &mut log_probs {
            let (top, log_total) = (top.to_array(), total.ln().to_array());
            for (lane, log_prob) in log_probs[first..first + lanes].iter_mut().enumerate() {
                *log_prob = block[lane * width + picked[lane] as usize] - top[lane] - log_total[lane];
            }
        }
    }
    Ok(())
}

/// Puts the rows of `block` into the lanes of `choices`, one vector a choice. Lanes beyond the last row repeat it.
fn load_lanes(choices: &mut [f32x8], block: &[f32], mask: Option<&[u8]>, lanes: usize) {
    let width = choices.len();
    let choices: &mut [[f32; LANES]] = bytemuck::cast_slice_mut(choices);
    for lane in 0..LANES {
        let row = lane.min(lanes - 1) * width;
        let logits = &block[row..row + width];
        match mask {
            None => choices.iter_mut().zip(logits).for_each(|(choice, logit)| choice[lane] = *logit),
            Some(mask) => {
                for ((choice, logit), allowed) in choices.iter_mut().zip(logits).zip(&mask[row..row + width]) {
                    choice[lane] = if *allowed == 0 { f32::NEG_INFINITY } else { *logit };
                }
            }
        }
    }
}

/// In each lane, the first choice whose logit is the largest.
fn first_equal(logits: &[f32x8], top: f32x8) -> [f32; LANES] {
    let mut found = f32x8::ZERO;
    for (choice, logit) in logits.iter().enumerate().rev() {
        found = logit.simd_eq(top).select(f32x8::splat(choice as f32), found);
    }
    found.to_array()
}

/// In each lane, the choice in whose interval of the cumulated weights `point` lies; never one of weight zero.
fn first_beyond(weights: &[f32x8], point: f32x8) -> [f32; LANES] {
    let (mut sum, mut passed, mut last) = (f32x8::ZERO, f32x8::ZERO, f32x8::ZERO);
    for (choice, weight) in weights.iter().enumerate() {
        sum += *weight;
        passed += sum.simd_le(point).select(f32x8::ONE, f32x8::ZERO);
        last = weight.simd_gt(f32x8::ZERO).select(f32x8::splat(choice as f32), last);
    }
    // Rounding may put the point on the very end.
    passed.fast_min(last).to_array()
}

/// Writes Gaussian actions into `actions` (rows of `width`, holding the means when called) and their log-densities:
/// Σ −½ z² − log σ − ½ ln 2π. `log_std` has one row for each action row, or one row for all. Without streams the mean
/// is the action. Two elements take a block of random bits, the first of them `block`.
pub(crate) fn pick_gaussian(
    actions: &mut [f32],
    log_std: &[f32],
    width: usize,
    draw: Option<(u64, &[Stream], u32)>,
    log_probs: &mut [f32],
    scratch: &mut Scratch,
) {
    let half_log_two_pi = 0.918_938_5_f32;
    scratch.deviations.clear();
    scratch.deviations.extend_from_slice(log_std);
    map(&mut scratch.deviations, f32x8::exp);
    let normals = &mut scratch.normals;
    normals.clear();
    match draw {
        Some((seed, streams, block)) => standard_normals(seed, streams, block, width, normals, &mut scratch.angles),
        None => normals.resize(actions.len(), 0.0),
    }
    let rows = actions.chunks_exact_mut(width).zip(normals.chunks_exact(width)).zip(log_probs);
    let draws = draw.is_some();
    let parameters = log_std.chunks_exact(width).zip(scratch.deviations.chunks_exact(width)).cycle();
    for (((action, normal), log_prob), (log_std, std)) in rows.zip(parameters) {
        let mut sum = 0.0;
        for column in 0..width {
            if draws {
                action[column] += std[column] * normal[column];
            }
            sum -= 0.5 * normal[column] * normal[column] + log_std[column] + half_log_two_pi;
        }
        *log_prob = sum;
    }
}

/// Standard normals, `width` for each stream, by Box and Muller's transform (1958): four random words give two of them.
fn standard_normals(
    seed: u64,
    streams: &[Stream],
    block: u32,
    width: usize,
    normals: &mut Vec<f32>,
    angles: &mut Vec<f32>,
) {
    let padded = width.next_multiple_of(2);
    angles.clear();
    for stream in streams {
        for pair in 0..padded / 2 {
            let words = philox(seed, *stream, block + pair as u32);
            normals.extend([open_unit(words[0]); 2]);
            angles.extend([open_unit(words[1]) * std::f32::consts::TAU; 2]);
        }
    }
    map(normals, |uniform| (uniform.ln() * f32x8::splat(-2.0)).sqrt());
    for (radius, angle) in normals.chunks_exact_mut(2).zip(angles.chunks_exact(2)) {
        let (sine, cosine) = angle[0].sin_cos();
        radius[0] *= cosine;
        radius[1] *= sine;
    }
    if padded != width {
        let mut row = 0;
        normals.retain(|_| {
            row += 1;
            row % padded != 0
        });
    }
}

/// Applies an 8-lane function to every value; the last chunk is padded with ones.
fn map(values: &mut [f32], function: impl Fn(f32x8) -> f32x8) {
    let mut chunks = values.chunks_exact_mut(8);
    for chunk in &mut chunks {
        let mut lanes = [0.0; 8];
        lanes.copy_from_slice(chunk);
        chunk.copy_from_slice(&function(f32x8::from(lanes)).to_array());
    }
    let rest = chunks.into_remainder();
    if !rest.is_empty() {
        let mut lanes = [1.0; 8];
        lanes[..rest.len()].copy_from_slice(rest);
        rest.copy_from_slice(&function(f32x8::from(lanes)).to_array()[..rest.len()]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn streams(count: u32, draw: u64) -> Vec<Stream> {
        (0..count).map(|actor| Stream { actor, draw }).collect()
    }

    fn reference_log_softmax(row: &[f32]) -> Vec<f64> {
        let top = row.iter().map(|value| f64::from(*value)).fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = row.iter().map(|value| (f64::from(*value) - top).exp()).sum();
        row.iter().map(|value| f64::from(*value) - top - total.ln()).collect()
    }

    proptest! {
        #[test]
        fn log_probs_equal_a_plain_formula(
            rows in prop::collection::vec(prop::collection::vec(-30.0_f32..30.0, 5), 1..40),
            masked in 0_usize..4,
            seed in any::<u64>(),
        ) {
            let logits: Vec<f32> = rows.concat();
            let mask: Vec<u8> = (0..logits.len()).map(|index| u8::from(index % 5 != masked)).collect();
            let streams = streams(rows.len() as u32, 3);
            let (mut actions, mut log_probs) = (vec![0; rows.len()], vec![0.0; rows.len()]);
            let pick = Pick::Draw { seed, streams: &streams, block: 0 };
            let picked =
                pick_discrete(&logits, Some(&mask), 5, pick, &mut actions, Some(&mut log_probs), &mut Scratch::default());
            prop_assert_eq!(picked, Ok(()));
            for ((row, action), log_prob) in rows.iter().zip(&actions).zip(&log_probs) {
                let mut row = row.clone();
                row[masked] = f32::NEG_INFINITY;
                prop_assert_ne!(*action as usize, masked);
                let right = reference_log_softmax(&row)[*action as usize];
                prop_assert!((f64::from(*log_prob) - right).abs() <= 1e-4 + 1e-5 * right.abs(), "{log_prob} {right}");
            }
        }

        #[test]
        fn what_an_actor_draws_does_not_depend_on_its_company(
            logits in prop::collection::vec(-3.0_f32..3.0, 33 * 4),
            seed in any::<u64>(),
        ) {
            let streams = streams(33, 11);
            let pick = |logits: &[f32], streams: &[Stream]| {
                let mut actions = vec![0; streams.len()];
                let pick = Pick::Draw { seed, streams, block: 0 };
                assert_eq!(pick_discrete(logits, None, 4, pick, &mut actions, None, &mut Scratch::default()), Ok(()));
                actions
            };
            let together = pick(&logits, &streams);
            for (row, action) in together.iter().enumerate() {
                prop_assert_eq!(pick(&logits[row * 4..row * 4 + 4], &streams[row..=row]), vec![*action]);
            }
        }
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        let probabilities = [0.1_f64, 0.2, 0.3, 0.4];
        let count = 40_000;
        let logits: Vec<f32> =
            (0..count).flat_map(|_| probabilities.iter().map(|probability| probability.ln() as f32)).collect();
        let mut actions = vec![0; count];
        let streams = streams(count as u32, 0);
        let pick = Pick::Draw { seed: 1, streams: &streams, block: 0 };
        assert_eq!(pick_discrete(&logits, None, 4, pick, &mut actions, None, &mut Scratch::default()), Ok(()));
        for (index, probability) in probabilities.iter().enumerate() {
            let share = actions.iter().filter(|action| **action == index as i64).count() as f64 / count as f64;
            // Four standard errors of a share of 40,000 are at most 0.01.
            assert!((share - probability).abs() < 0.01, "{index}: {share}");
        }
    }

    #[test]
    fn largest_takes_the_first_of_equals_and_honours_the_mask() {
        let logits = [1.0, 5.0, 5.0, 9.0, 2.0, 9.0];
        let mut actions = [0; 2];
        let mut pick = |mask: Option<&[u8]>| {
            pick_discrete(&logits, mask, 3, Pick::Largest, &mut actions, None, &mut Scratch::default())
                .map(|()| actions)
        };
        assert_eq!(pick(None), Ok([1, 0]));
        assert_eq!(pick(Some(&[1, 0, 1, 0, 1, 0])), Ok([2, 1]));
    }

    #[test]
    fn a_row_that_is_no_distribution_is_told() {
        let streams = streams(2, 0);
        for pick in [Pick::Largest, Pick::Draw { seed: 1, streams: &streams, block: 0 }] {
            let logits = [0.0, 1.0, f32::NEG_INFINITY, f32::NEG_INFINITY];
            let picked =
                pick_discrete(&logits, None, 2, pick, &mut [0; 2], Some(&mut [0.0; 2]), &mut Scratch::default());
            assert_eq!(picked, Err(1));
        }
        let pick = Pick::Draw { seed: 1, streams: &streams, block: 0 };
        let logits = [f32::INFINITY, 1.0, 0.0, 0.0];
        assert_eq!(pick_discrete(&logits, None, 2, pick, &mut [0; 2], None, &mut Scratch::default()), Err(0));
    }

    #[test]
    fn gaussian_moments_and_density() {
        let (count, width) = (30_001, 3);
        let mut actions = [1.0, -2.0, 0.5].repeat(count);
        let log_std = [0.0, -1.0, 0.7];
        let mut log_probs = vec![0.0; count];
        let streams = streams(count as u32, 5);
        pick_gaussian(&mut actions, &log_std, width, Some((3, &streams, 0)), &mut log_probs, &mut Scratch::default());
        for (column, (mean, log_std)) in [1.0_f64, -2.0, 0.5].into_iter().zip([0.0_f64, -1.0, 0.7]).enumerate() {
            let values: Vec<f64> = actions.iter().skip(column).step_by(width).map(|value| f64::from(*value)).collect();
            let average = values.iter().sum::<f64>() / count as f64;
            let deviation = (values.iter().map(|value| (value - average).powi(2)).sum::<f64>() / count as f64).sqrt();
            assert!((average - mean).abs() < 0.06, "{column}: {average}");
            assert!((deviation / log_std.exp() - 1.0).abs() < 0.03, "{column}: {deviation}");
        }
        for (row, log_prob) in actions.chunks(width).zip(&log_probs) {
            let right: f64 = row
                .iter()
                .zip([1.0_f64, -2.0, 0.5])
                .zip([0.0_f64, -1.0, 0.7])
                .map(|((action, mean), log_std)| {
                    let z = (f64::from(*action) - mean) / log_std.exp();
                    -0.5 * z * z - log_std - 0.5 * std::f64::consts::TAU.ln()
                })
                .sum();
            assert!((f64::from(*log_prob) - right).abs() < 1e-4, "{log_prob} {right}");
        }
    }

    #[test]
    fn nan_is_found_and_infinity_is_not() {
        assert_eq!(first_nan_row(&[0.0; 400], 4), None);
        assert_eq!(first_nan_row(&[f32::INFINITY, f32::NEG_INFINITY], 1), None);
        let mut values = [0.0; 400];
        values[333] = f32::NAN;
        assert_eq!(first_nan_row(&values, 4), Some(83));
        values[2] = f32::INFINITY;
        assert_eq!(first_nan_row(&values, 4), Some(83));
    }
}
