//! Counter-based random numbers: each actor has a stream of its own, so what it draws does not depend on who shares the
//! batch, on the number of threads, or on the order of calls.
//!
//! The generator is Philox 4x32 with 10 rounds (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2,
//! 3", SC 2011), the one that NumPy, PyTorch on CUDA and TensorFlow offer as well. The key is the run's seed; the counter
//! is (draw, actor ordinal, block).

/// An actor's place in its random stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    /// Ordinal of the actor within the run.
    pub actor: u32,
    /// How many actions the actor has drawn so far.
    pub draw: u64,
}

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// 128 random bits for block `block` of what `stream` draws under `seed`.
#[inline]
pub fn philox(seed: u64, stream: Stream, block: u32) -> [u32; 4] {
    philox_4x32(
        [stream.draw as u32, (stream.draw >> 32) as u32, stream.actor, block],
        [seed as u32, (seed >> 32) as u32],
    )
}

#[inline]
fn philox_4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let left = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let right = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [
            (right >> 32) as u32 ^ counter[1] ^ key[0],
            right as u32,
            (left >> 32) as u32 ^ counter[3] ^ key[1],
            left as u32,
        ];
    }
    counter
}

/// The first word of block `block` for eight streams: what [`philox`] gives for each, worked out side by side.
#[inline(always)]
#[expect(clippy::inline_always, reason = "only inside its caller is it compiled for AVX2")]
pub fn philox_words(seed: u64, streams: [Stream; 8], block: u32) -> [u32; 8] {
    let mut counter = [
        streams.map(|stream| stream.draw as u32),
        streams.map(|stream| (stream.draw >> 32) as u32),
        streams.map(|stream| stream.actor),
        [block; 8],
    ];
    let mut key = [seed as u32, (seed >> 32) as u32];
    for _ in 0..10 {
        let [first, second, third, fourth] = &mut counter;
        for lane in 0..8 {
            let left = u64::from(MULTIPLIERS[0]) * u64::from(first[lane]);
            let right = u64::from(MULTIPLIERS[1]) * u64::from(third[lane]);
            first[lane] = (right >> 32) as u32 ^ second[lane] ^ key[0];
            second[lane] = right as u32;
            third[lane] = (left >> 32) as u32 ^ fourth[lane] ^ key[1];
            fourth[lane] = left as u32;
        }
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter[0]
}

/// A float32 in [0, 1).
#[inline]
pub fn unit(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// A float32 in (0, 1], so that its logarithm is finite.
#[inline]
pub fn open_unit(word: u32) -> f32 {
    ((word >> 8) + 1) as f32 * (1.0 / 16_777_216.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers published with the reference implementation (Random123's `kat_vectors`).
    #[test]
    fn known_answers() {
        assert_eq!(philox_4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox_4x32([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox_4x32([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn eight_at_a_time_are_the_same_as_one() {
        let streams =
            std::array::from_fn(|index| Stream { actor: 3 * index as u32, draw: u64::MAX / 7 * index as u64 });
        let seed = 0x0123_4567_89ab_cdef;
        for block in [0, 7] {
            assert_eq!(philox_words(seed, streams, block), streams.map(|stream| philox(seed, stream, block)[0]));
        }
    }

    #[test]
    fn units_stay_in_their_range() {
        assert!(unit(u32::MAX) < 1.0);
        assert!(unit(0) >= 0.0);
        assert!(open_unit(0) > 0.0);
        assert!((open_unit(u32::MAX) - 1.0).abs() < f32::EPSILON);
    }

    #[test]
    fn streams_are_uniform_and_apart() {
        let draws = 20_000;
        let mean = |actor| {
            (0..draws).map(|draw| f64::from(unit(philox(7, Stream { actor, draw }, 0)[0]))).sum::<f64>()
                / f64::from(draws as u32)
        };
        // The standard error of a mean of 20,000 uniforms is 0.002.
        assert!((mean(0) - 0.5).abs() < 0.01);
        assert!((mean(1) - 0.5).abs() < 0.01);
        assert_ne!(philox(7, Stream { actor: 0, draw: 1 }, 0), philox(7, Stream { actor: 1, draw: 0 }, 0));
        assert_ne!(philox(7, Stream { actor: 0, draw: 1 }, 0), philox(8, Stream { actor: 0, draw: 1 }, 0));
    }
}
