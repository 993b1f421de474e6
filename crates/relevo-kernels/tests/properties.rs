//! Kernels against plain loops, over random shapes and flags; and what a refused call leaves behind.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]
#![expect(clippy::float_cmp, reason = "what is untouched is the same")]

use proptest::collection::vec;
use proptest::prelude::*;
use relevo_kernels::advantage::{
    DiscountedReturns, Gae, NStep, NStepOutputs, Vtrace, VtraceOutputs, discounted_returns, gae, gae_into_new, n_step,
    vtrace,
};
use relevo_kernels::prefix::{prefix_match, prefix_match_many};
use relevo_kernels::sampling::{SplitMix64, draw};
use relevo_kernels::{Error, Float};

/// Steps and streams with all that the advantage kernels take, in the wider precision.
#[derive(Debug, Clone)]
struct Rollout {
    streams: usize,
    floats: [Vec<f64>; 5],
    terminated: Vec<u8>,
    truncated: Vec<u8>,
    gamma: f64,
    lam: f64,
    n: usize,
}

/// From a single stream to many, longer than what kernels work on at once; endings from none to everywhere.
fn rollout() -> impl Strategy<Value = Rollout> {
    let shape = prop_oneof![
        (0..1500_usize, Just(1_usize)),
        (0..300_usize, 2..9_usize),
        (0..80_usize, 9..40_usize),
        (0..4_usize, 500..700_usize),
    ];
    let endings = prop_oneof![Just(0.0), Just(0.01), Just(0.3), Just(1.0)];
    (shape, endings.clone(), endings, 0.0..1.0_f64, 0.0..1.0_f64, 1..40_usize, any::<u64>()).prop_map(
        |((steps, streams), terminations, truncations, gamma, lam, n, seed)| {
            let mut random = SplitMix64::new(seed);
            let length = steps * streams;
            let floats = std::array::from_fn(|_| (0..length).map(|_| 4.0 * random.unit() - 2.0).collect());
            let terminated = (0..length).map(|_| u8::from(random.unit() < terminations)).collect();
            let truncated = (0..length).map(|_| u8::from(random.unit() < truncations)).collect();
            Rollout { streams, floats, terminated, truncated, gamma, lam, n }
        },
    )
}

fn converted<F: Float>(values: &[f64]) -> Vec<F> {
    values.iter().map(|value| F::from_f64(*value)).collect()
}

fn assert_close<F: Float>(got: &[F], wanted: &[f64], tolerance: f64) {
    assert_eq!(got.len(), wanted.len());
    for (index, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        let close = (got.to_f64() - wanted).abs() <= tolerance * (1.0 + wanted.abs());
        assert!(close, "{got} instead of {wanted} at {index}");
    }
}

impl Rollout {
    fn len(&self) -> usize {
        self.terminated.len()
    }

    /// What of the step after `index` counts: nothing at the end of an episode or of the data.
    fn following(&self, solution: &[f64], index: usize) -> f64 {
        let done = self.terminated[index] == 1 || self.truncated[index] == 1;
        if done || index + self.streams >= self.len() { 0.0 } else { solution[index + self.streams] }
    }

    fn bootstrap(&self, values: &[f64], index: usize) -> f64 {
        if self.terminated[index] == 1 { 0.0 } else { self.gamma * values[index] }
    }

    fn check_gae<F: Float>(&self, tolerance: f64) {
        let [rewards, values, next_values, ..] = &self.floats;
        let mut wanted = vec![0.0; self.len()];
        for index in (0..self.len()).rev() {
            let error = rewards[index] + self.bootstrap(next_values, index) - values[index];
            wanted[index] = error + self.gamma * self.lam * self.following(&wanted, index);
        }
        let given = [rewards, values, next_values].map(|values| converted::<F>(values));
        let given = Gae {
            streams: self.streams,
            rewards: &given[0],
            values: &given[1],
            next_values: &given[2],
            terminated: &self.terminated,
            truncated: &self.truncated,
            gamma: F::from_f64(self.gamma),
            lam: F::from_f64(self.lam),
        };
        let (mut advantages, mut returns) = (vec![F::ZERO; self.len()], vec![F::ZERO; self.len()]);
        gae(&given, &mut advantages, &mut returns).unwrap();
        let (mut again, mut returns_again) = (vec![F::ONE; self.len()], vec![F::ONE; self.len()]);
        gae_into_new(&given, &mut again, &mut returns_again).unwrap();
        assert_eq!((&again, &returns_again), (&advantages, &returns));
        assert_close(&advantages, &wanted, tolerance);
        assert_close(&returns, &wanted.iter().zip(values).map(|(a, v)| a + v).collect::<Vec<_>>(), tolerance);
    }

    fn check_discounted_returns<F: Float>(&self, tolerance: f64) {
        let [rewards, next_values, ..] = &self.floats;
        for with_values in [false, true] {
            let mut wanted = vec![0.0; self.len()];
            for index in (0..self.len()).rev() {
                let cut = self.truncated[index] == 1 || index + self.streams >= self.len();
                let worth = if with_values && cut { self.bootstrap(next_values, index) } else { 0.0 };
                wanted[index] = rewards[index] + worth + self.gamma * self.following(&wanted, index);
            }
            let (rewards, next_values) = (converted::<F>(rewards), converted::<F>(next_values));
            let given = DiscountedReturns {
                streams: self.streams,
                rewards: &rewards,
                next_values: with_values.then_some(&next_values),
                terminated: &self.terminated,
                truncated: &self.truncated,
                gamma: F::from_f64(self.gamma),
            };
            let mut returns = vec![F::ZERO; self.len()];
            discounted_returns(&given, &mut returns).unwrap();
            assert_close(&returns, &wanted, tolerance);
        }
    }

    fn check_vtrace<F: Float>(&self, tolerance: f64) {
        let [behaviour, target, rewards, values, next_values] = &self.floats;
        let (rho_bar, c_bar) = (1.5, f64::INFINITY);
        let ratio = |index: usize| (target[index] - behaviour[index]).exp();
        let mut corrections = vec![0.0; self.len()];
        for index in (0..self.len()).rev() {
            let error = rewards[index] + self.bootstrap(next_values, index) - values[index];
            let trace = self.gamma * self.lam * ratio(index).min(c_bar);
            corrections[index] = ratio(index).min(rho_bar) * error + trace * self.following(&corrections, index);
        }
        let vs: Vec<f64> = corrections.iter().zip(values).map(|(correction, value)| correction + value).collect();
        let advantages: Vec<f64> = (0..self.len())
            .map(|index| {
                let cut = self.truncated[index] == 1 || index + self.streams >= self.len();
                let next =
                    if cut || self.terminated[index] == 1 { next_values[index] } else { vs[index + self.streams] };
                let future = if self.terminated[index] == 1 { 0.0 } else { self.gamma * next };
                ratio(index).min(rho_bar) * (rewards[index] + future - values[index])
            })
            .collect();
        let given = self.floats.each_ref().map(|values| converted::<F>(values));
        let given = Vtrace {
            streams: self.streams,
            behaviour_log_probs: &given[0],
            target_log_probs: &given[1],
            rewards: &given[2],
            values: &given[3],
            next_values: &given[4],
            terminated: &self.terminated,
            truncated: &self.truncated,
            gamma: F::from_f64(self.gamma),
            rho_bar: F::from_f64(rho_bar),
            c_bar: F::from_f64(c_bar),
            lam: F::from_f64(self.lam),
        };
        let (mut got_vs, mut got_advantages) = (vec![F::ZERO; self.len()], vec![F::ZERO; self.len()]);
        vtrace(&given, VtraceOutputs { vs: &mut got_vs, pg_advantages: &mut got_advantages }).unwrap();
        // Traces that are not clipped may grow without bound, and errors with them.
        let largest = corrections.iter().fold(1.0_f64, |largest, correction| largest.max(correction.abs()));
        assert_close(&got_vs, &vs, tolerance * largest);
        assert_close(&got_advantages, &advantages, tolerance * largest * 10.0);
    }

    fn check_n_step<F: Float>(&self, tolerance: f64) {
        let [rewards, ..] = &self.floats;
        let (mut returns, mut discounts) = (vec![0.0; self.len()], vec![0.0; self.len()]);
        let (mut bootstrap_index, mut steps) = (vec![0; self.len()], vec![0; self.len()]);
        for index in 0..self.len() {
            let (mut discount, mut at) = (1.0, index);
            loop {
                returns[index] += discount * rewards[at];
                discount *= self.gamma;
                steps[index] += 1;
                let done = self.terminated[at] == 1 || self.truncated[at] == 1;
                if done || steps[index] == self.n as i64 || at + self.streams >= self.len() {
                    break;
                }
                at += self.streams;
            }
            discounts[index] = if self.terminated[at] == 1 { 0.0 } else { discount };
            bootstrap_index[index] = (at / self.streams) as i64;
        }
        let rewards = converted::<F>(rewards);
        let given = NStep {
            streams: self.streams,
            rewards: &rewards,
            terminated: &self.terminated,
            truncated: &self.truncated,
            gamma: F::from_f64(self.gamma),
            n: self.n,
        };
        let (mut got_returns, mut got_discounts) = (vec![F::ONE; self.len()], vec![F::ONE; self.len()]);
        let (mut got_index, mut got_steps) = (vec![9; self.len()], vec![9; self.len()]);
        let outputs = NStepOutputs {
            returns: &mut got_returns,
            discounts: &mut got_discounts,
            bootstrap_index: &mut got_index,
            steps: &mut got_steps,
        };
        n_step(&given, outputs).unwrap();
        assert_close(&got_returns, &returns, tolerance);
        assert_close(&got_discounts, &discounts, tolerance);
        assert_eq!((got_index, got_steps), (bootstrap_index, steps));
    }
}

proptest! {
    #[test]
    fn advantages_are_those_of_a_plain_loop(rollout in rollout()) {
        rollout.check_gae::<f64>(1e-12);
        rollout.check_gae::<f32>(2e-5);
    }

    #[test]
    fn returns_are_those_of_a_plain_loop(rollout in rollout()) {
        rollout.check_discounted_returns::<f64>(1e-11);
        rollout.check_discounted_returns::<f32>(2e-4);
    }

    #[test]
    fn v_trace_is_that_of_a_plain_loop(rollout in rollout()) {
        rollout.check_vtrace::<f64>(1e-10);
        rollout.check_vtrace::<f32>(1e-4);
    }

    #[test]
    fn n_step_returns_are_those_of_a_plain_loop(rollout in rollout()) {
        rollout.check_n_step::<f64>(1e-12);
        rollout.check_n_step::<f32>(2e-5);
    }

    #[test]
    fn nothing_crosses_the_end_of_an_episode(mut rollout in rollout(), at in any::<prop::sample::Index>()) {
        // An episode of infinite rewards, behind a step that ended one.
        let steps = rollout.len() / rollout.streams;
        prop_assume!(steps >= 2);
        let end = at.index(steps - 1);
        for stream in 0..rollout.streams {
            rollout.terminated[end * rollout.streams + stream] = 1;
            for step in end + 1..steps {
                rollout.floats[0][step * rollout.streams + stream] = f64::INFINITY;
            }
        }
        let [rewards, values, next_values, ..] = &rollout.floats;
        let given = Gae {
            streams: rollout.streams,
            rewards,
            values,
            next_values,
            terminated: &rollout.terminated,
            truncated: &rollout.truncated,
            gamma: rollout.gamma,
            lam: rollout.lam,
        };
        let (mut advantages, mut returns) = (vec![0.0; rollout.len()], vec![0.0; rollout.len()]);
        gae(&given, &mut advantages, &mut returns).unwrap();
        let (mut again, mut returns_again) = (vec![0.0; rollout.len()], vec![0.0; rollout.len()]);
        gae_into_new(&given, &mut again, &mut returns_again).unwrap();
        prop_assert_eq!(&again, &advantages);
        let before = (end + 1) * rollout.streams;
        prop_assert!(advantages[..before].iter().all(|advantage| advantage.is_finite()));
        prop_assert!(advantages[before..].iter().all(|advantage| *advantage == f64::INFINITY));
    }

    #[test]
    fn a_refused_call_changes_nothing(
        mut rollout in rollout(), which in 0..3_usize, at in any::<prop::sample::Index>()
    ) {
        prop_assume!(rollout.len() > 0);
        let at = at.index(rollout.len());
        rollout.floats[which][at] = f64::NAN;
        let [rewards, values, next_values, ..] = &rollout.floats;
        let given = Gae {
            streams: rollout.streams,
            rewards,
            values,
            next_values,
            terminated: &rollout.terminated,
            truncated: &rollout.truncated,
            gamma: rollout.gamma,
            lam: rollout.lam,
        };
        let (mut advantages, mut returns) = (vec![7.0; rollout.len()], vec![7.0; rollout.len()]);
        let error = gae(&given, &mut advantages, &mut returns).unwrap_err();
        let place = format!("step {} of stream {}", at / rollout.streams, at % rollout.streams);
        let name = ["rewards", "values", "next_values"][which];
        prop_assert_eq!(error.to_string(), format!("{name} must be a number, but NaN came at {place}"));
        let (mut new, mut new_returns) = (vec![0.0; rollout.len()], vec![0.0; rollout.len()]);
        let of_new = gae_into_new(&given, &mut new, &mut new_returns).unwrap_err();
        prop_assert_eq!(of_new.to_string(), error.to_string());
        prop_assert!(advantages.iter().chain(&returns).all(|output| *output == 7.0));
    }

    #[test]
    fn many_prefixes_are_those_of_each_pair(
        a in vec(vec(0..3_u8, 0..90), 0..8), b in vec(vec(0..3_u8, 0..90), 0..8), shared in 0..200_usize
    ) {
        let with_head = |tails: &[Vec<u8>]| -> Vec<Vec<u8>> {
            tails.iter().map(|tail| [&vec![1; shared][..], tail].concat()).collect()
        };
        let (a, b) = (with_head(&a), with_head(&b));
        let (a, b): (Vec<&[u8]>, Vec<&[u8]>) = (a.iter().map(Vec::as_slice).collect(), b.iter().map(Vec::as_slice).collect());
        let mut lengths = vec![-1; a.len() * b.len()];
        prefix_match_many(&a, &b, &mut lengths).unwrap();
        let plain = |left: &[u8], right: &[u8]| left.iter().zip(right).take_while(|(left, right)| left == right).count();
        for (row, left) in a.iter().enumerate() {
            for (column, right) in b.iter().enumerate() {
                prop_assert_eq!(lengths[row * b.len() + column], plain(left, right) as i64);
                prop_assert_eq!(prefix_match(left, right), plain(left, right));
            }
        }
    }
}

#[test]
fn infinities_that_make_nan_are_not_taken_for_nan() {
    let given = Gae {
        streams: 1,
        rewards: &[f64::INFINITY, 1.0],
        values: &[f64::INFINITY, 0.5],
        next_values: &[0.0, 0.0],
        terminated: &[1, 1],
        truncated: &[0, 0],
        gamma: 0.9,
        lam: 0.9,
    };
    let (mut advantages, mut returns) = ([0.0; 2], [0.0; 2]);
    gae_into_new(&given, &mut advantages, &mut returns).unwrap();
    assert!(advantages[0].is_nan());
    assert_eq!(advantages[1], 0.5);
}

#[test]
fn draws_come_as_often_as_their_probabilities_say() {
    let probabilities = [0.1, 0.0, 0.4, 0.2, 0.3, 0.0];
    let mut indices = vec![0; 1_000_000];
    draw(&probabilities, &mut SplitMix64::new(5), &mut indices).unwrap();
    let mut counts = [0.0_f64; 6];
    for index in &indices {
        counts[*index] += 1.0;
    }
    let expected = probabilities.map(|probability| probability * 1e6);
    // χ² with 3 degrees of freedom is beyond 16.3 once in a thousand seeds.
    let cells = counts.iter().zip(expected).filter(|(_, expected)| *expected > 0.0);
    let chi_squared: f64 = cells.map(|(count, expected)| (count - expected).powi(2) / expected).sum();
    assert!(chi_squared < 16.3, "{chi_squared}");
    assert_eq!((counts[1], counts[5]), (0.0, 0.0));
    let refused = draw(&[0.0, 0.0], &mut SplitMix64::new(5), &mut indices);
    assert!(matches!(refused, Err(Error::Empty { name: "probabilities", .. })));
}
