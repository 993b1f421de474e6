//! Every kernel at a small, a usual and a large size, beside a copy of the bytes that it reads and writes: how far each is
//! from what memory allows. Items are elements; bytes are those copied.

#![expect(clippy::unwrap_used, reason = "a benchmark that cannot start should stop")]

use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use relevo_kernels::Float;
use relevo_kernels::advantage::{
    DiscountedReturns, Gae, NStep, NStepOutputs, Vtrace, VtraceOutputs, discounted_returns as compute_returns,
    gae as compute_gae, n_step as compute_n_step, vtrace as compute_vtrace,
};
use relevo_kernels::bandwidth::{
    Efficiency, Priorities, bandwidth_aware_priorities as compute_priorities,
    bandwidth_efficiency as compute_efficiency, effective_bandwidth_cost as compute_cost,
};
use relevo_kernels::plan::{EmaPlanTracker, Surprise, plan_surprise as compute_surprise};
use relevo_kernels::prefix::{prefix_match as compute_prefix, prefix_match_many as compute_prefixes};
use relevo_kernels::sampling::{
    Proportional, Softmax, SplitMix64, draw, proportional_probabilities, proportional_weights, softmax_probabilities,
    softmax_weights,
};

/// Steps by streams: small, one stream as PPO has it, many streams, large.
const ROLLOUTS: [(usize, usize); 5] = [(128, 1), (2048, 1), (128, 64), (1024, 8), (8192, 128)];
/// Items of a list.
const LISTS: [usize; 3] = [64, 4096, 1 << 20];
/// Numbers of a plan.
const DIM: usize = 64;
/// Items of a batch that is drawn.
const BATCH: usize = 256;

fn main() {
    divan::main();
}

/// Random numbers from −1 up to 1.
fn numbers<F: Float>(count: usize, seed: u64) -> Vec<F> {
    let mut random = SplitMix64::new(seed);
    (0..count).map(|_| F::from_f64(2.0 * random.unit() - 1.0)).collect()
}

/// Flags of which one in fifty is set.
fn flags(count: usize, seed: u64) -> Vec<u8> {
    let mut random = SplitMix64::new(seed);
    (0..count).map(|_| u8::from(random.unit() < 0.02)).collect()
}

fn positive<F: Float>(count: usize, seed: u64) -> Vec<F> {
    numbers::<F>(count, seed).into_iter().map(|number| number.abs() + F::from_f64(0.01)).collect()
}

/// What a rollout of the advantage kernels holds.
struct Rollout<F> {
    floats: [Vec<F>; 5],
    terminated: Vec<u8>,
    truncated: Vec<u8>,
    outputs: [Vec<F>; 2],
}

impl<F: Float> Rollout<F> {
    fn new((steps, streams): (usize, usize)) -> Self {
        let count = steps * streams;
        Self {
            floats: std::array::from_fn(|index| numbers(count, index as u64)),
            terminated: flags(count, 7),
            truncated: flags(count, 8),
            outputs: [vec![F::ZERO; count], vec![F::ZERO; count]],
        }
    }
}

/// A copy of as many bytes as a kernel reads and writes in all: half of them are read, half are written.
fn copied(bencher: Bencher<'_, '_>, items: usize, bytes: usize) {
    let (from, mut to) = (vec![1_u8; bytes / 2], vec![0_u8; bytes / 2]);
    bencher
        .counter(ItemsCount::new(items))
        .counter(BytesCount::new(bytes))
        .bench_local(|| black_box(&mut to).copy_from_slice(black_box(&from)));
}

#[divan::bench(types = [f32, f64], args = ROLLOUTS)]
fn gae<F: Float>(bencher: Bencher<'_, '_>, shape: (usize, usize)) {
    let Rollout { floats: [rewards, values, next_values, ..], terminated, truncated, outputs: [mut one, mut two] } =
        Rollout::<F>::new(shape);
    let given = Gae {
        streams: shape.1,
        rewards: &rewards,
        values: &values,
        next_values: &next_values,
        terminated: &terminated,
        truncated: &truncated,
        gamma: F::from_f64(0.99),
        lam: F::from_f64(0.95),
    };
    bencher
        .counter(ItemsCount::new(rewards.len()))
        .bench_local(|| compute_gae(black_box(&given), &mut one, &mut two).unwrap());
}

/// [`gae`] reads three numbers and two flags of each step, and writes two numbers.
#[divan::bench(types = [f32, f64], args = ROLLOUTS)]
fn gae_copy<F: Float>(bencher: Bencher<'_, '_>, (steps, streams): (usize, usize)) {
    copied(bencher, steps * streams, steps * streams * (5 * size_of::<F>() + 2));
}

#[divan::bench(types = [f32, f64], args = ROLLOUTS)]
fn discounted_returns<F: Float>(bencher: Bencher<'_, '_>, shape: (usize, usize)) {
    let Rollout { floats: [rewards, next_values, ..], terminated, truncated, outputs: [mut returns, _] } =
        Rollout::<F>::new(shape);
    let given = DiscountedReturns {
        streams: shape.1,
        rewards: &rewards,
        next_values: Some(&next_values),
        terminated: &terminated,
        truncated: &truncated,
        gamma: F::from_f64(0.99),
    };
    bencher
        .counter(ItemsCount::new(rewards.len()))
        .bench_local(|| compute_returns(black_box(&given), &mut returns).unwrap());
}

/// [`discounted_returns`] reads two numbers and two flags of each step, and writes one number.
#[divan::bench(types = [f32, f64], args = ROLLOUTS)]
fn discounted_returns_copy<F: Float>(bencher: Bencher<'_, '_>, (steps, streams): (usize, usize)) {
    copied(bencher, steps * streams, steps * streams * (3 * size_of::<F>() + 2));
}

#[divan::bench(types = [f32, f64], args = ROLLOUTS)]
fn vtrace<F: Float>(bencher: Bencher<'_, '_>, shape: (usize, usize)) {
    let Rollout { floats, terminated, truncated, outputs: [mut vs, mut pg_advantages] } = Rollout::<F>::new(shape);
    let given = Vtrace {
        streams: shape.1,
        behaviour_log_probs: &floats[0],
        target_log_probs: &floats[1],
        rewards: &floats[2],
        values: &floats[3],
        next_values: &floats[4],
        terminated: &terminated,
        truncated: &truncated,
        gamma: F::from_f64(0.99),
        rho_bar: F::ONE,
        c_bar: F::ONE,
        lam: F::ONE,
    };
    bencher.counter(ItemsCount::new(terminated.len())).bench_local(|| {
        let outputs = VtraceOutputs { vs: &mut vs, pg_advantages: &mut pg_advantages };
        compute_vtrace(black_box(&given), outputs).unwrap();
    });
}

/// [`vtrace`] reads five numbers and two flags of each step, and writes two numbers.
#[divan::bench(types = [f32, f64], args = ROLLOUTS)]
fn vtrace_copy<F: Float>(bencher: Bencher<'_, '_>, (steps, streams): (usize, usize)) {
    copied(bencher, steps * streams, steps * streams * (7 * size_of::<F>() + 2));
}

#[divan::bench(types = [f32, f64], args = ROLLOUTS)]
fn n_step<F: Float>(bencher: Bencher<'_, '_>, shape: (usize, usize)) {
    let Rollout { floats: [rewards, ..], terminated, truncated, outputs: [mut returns, mut discounts] } =
        Rollout::<F>::new(shape);
    let (mut bootstrap_index, mut steps) = (vec![0; rewards.len()], vec![0; rewards.len()]);
    let given = NStep {
        streams: shape.1,
        rewards: &rewards,
        terminated: &terminated,
        truncated: &truncated,
        gamma: F::from_f64(0.99),
        n: 3,
    };
    bencher.counter(ItemsCount::new(rewards.len())).bench_local(|| {
        let outputs = NStepOutputs {
            returns: &mut returns,
            discounts: &mut discounts,
            bootstrap_index: &mut bootstrap_index,
            steps: &mut steps,
        };
        compute_n_step(black_box(&given), outputs).unwrap();
    });
}

/// [`n_step`] reads one number and two flags of each step, and writes two numbers and two integers.
#[divan::bench(types = [f32, f64], args = ROLLOUTS)]
fn n_step_copy<F: Float>(bencher: Bencher<'_, '_>, (steps, streams): (usize, usize)) {
    copied(bencher, steps * streams, steps * streams * (3 * size_of::<F>() + 18));
}

#[divan::bench(args = LISTS)]
fn effective_bandwidth_cost(bencher: Bencher<'_, '_>, count: usize) {
    let lengths: Vec<u64> = (0..count as u64).map(|index| 1000 + index % 4096).collect();
    let mut costs = vec![0.0; count];
    bencher.counter(ItemsCount::new(count)).bench_local(|| {
        for (cost, length) in costs.iter_mut().zip(black_box(&lengths)) {
            *cost = compute_cost(*length, 96, 1.0).unwrap();
        }
    });
}

/// [`effective_bandwidth_cost`] reads and writes eight bytes.
#[divan::bench(args = LISTS)]
fn effective_bandwidth_cost_copy(bencher: Bencher<'_, '_>, count: usize) {
    copied(bencher, count, count * 16);
}

#[divan::bench(types = [f32, f64], args = LISTS)]
fn bandwidth_aware_priorities<F: Float>(bencher: Bencher<'_, '_>, count: usize) {
    let (rewards, b_eff, queue_times) = (numbers::<F>(count, 0), positive(count, 1), positive(count, 2));
    let mut priorities = vec![F::ZERO; count];
    let given = Priorities {
        rewards: &rewards,
        b_eff: &b_eff,
        queue_times: &queue_times,
        bandwidth_weight: F::ONE,
        eps: F::from_f64(1e-6),
    };
    bencher
        .counter(ItemsCount::new(count))
        .bench_local(|| compute_priorities(black_box(&given), &mut priorities).unwrap());
}

/// [`bandwidth_aware_priorities`] reads three numbers and writes one.
#[divan::bench(types = [f32, f64], args = LISTS)]
fn bandwidth_aware_priorities_copy<F: Float>(bencher: Bencher<'_, '_>, count: usize) {
    copied(bencher, count, count * 4 * size_of::<F>());
}

#[divan::bench(types = [f32, f64], args = LISTS)]
fn bandwidth_efficiency<F: Float>(bencher: Bencher<'_, '_>, count: usize) {
    let [rewards, b_eff, weights, losses] = std::array::from_fn(|index| positive::<F>(count, index as u64));
    let given = Efficiency { episode_rewards: &rewards, episode_b_eff: &b_eff, weights: &weights, pg_losses: &losses };
    bencher.counter(ItemsCount::new(count)).bench_local(|| compute_efficiency(black_box(&given)).unwrap());
}

/// [`bandwidth_efficiency`] reads four numbers.
#[divan::bench(types = [f32, f64], args = LISTS)]
fn bandwidth_efficiency_copy<F: Float>(bencher: Bencher<'_, '_>, count: usize) {
    copied(bencher, count, count * 4 * size_of::<F>());
}

#[divan::bench(types = [f32, f64], args = [16, 1024, 16384])]
fn plan_surprise<F: Float>(bencher: Bencher<'_, '_>, count: usize) {
    let (plans, mean_plan, rewards) = (numbers::<F>(count * DIM, 0), numbers(DIM, 1), numbers(count, 2));
    let mut scores = vec![F::ZERO; count];
    let given = Surprise { plans: &plans, mean_plan: &mean_plan, rewards: &rewards, alpha: F::ONE };
    bencher
        .counter(ItemsCount::new(count * DIM))
        .bench_local(|| compute_surprise(black_box(&given), &mut scores).unwrap());
}

/// [`plan_surprise`] reads each number of a plan.
#[divan::bench(types = [f32, f64], args = [16, 1024, 16384])]
fn plan_surprise_copy<F: Float>(bencher: Bencher<'_, '_>, count: usize) {
    copied(bencher, count * DIM, count * DIM * size_of::<F>());
}

#[divan::bench(types = [f32, f64], args = [1, 64, 4096])]
fn ema_plan_tracker<F: Float>(bencher: Bencher<'_, '_>, count: usize) {
    let plans = numbers::<F>(count * DIM, 0);
    let mut tracker = EmaPlanTracker::new(DIM, F::from_f64(0.99)).unwrap();
    bencher.counter(ItemsCount::new(count * DIM)).bench_local(|| tracker.update(black_box(&plans)).unwrap());
}

/// [`ema_plan_tracker`] reads each number of a plan.
#[divan::bench(types = [f32, f64], args = [1, 64, 4096])]
fn ema_plan_tracker_copy<F: Float>(bencher: Bencher<'_, '_>, count: usize) {
    copied(bencher, count * DIM, count * DIM * size_of::<F>());
}

#[divan::bench(args = LISTS)]
fn prefix_match(bencher: Bencher<'_, '_>, count: usize) {
    let (a, b): (Vec<i64>, Vec<i64>) = ((0..count as i64).collect(), (0..count as i64).collect());
    bencher.counter(ItemsCount::new(count)).bench_local(|| compute_prefix(black_box(&a), black_box(&b)));
}

/// [`prefix_match`] reads two tokens of eight bytes.
#[divan::bench(args = LISTS)]
fn prefix_match_copy(bencher: Bencher<'_, '_>, count: usize) {
    copied(bencher, count, count * 16);
}

/// So many sequences on each side, which share half of their 1,024 tokens. Items are pairs.
#[divan::bench(args = [4, 32, 256])]
fn prefix_match_many(bencher: Bencher<'_, '_>, count: usize) {
    let sequence = |own: usize| -> Vec<i64> { (0..1024).map(|at| if at < 512 { at } else { own as i64 }).collect() };
    let sequences: Vec<Vec<i64>> = (0..count).map(sequence).collect();
    let sequences: Vec<&[i64]> = sequences.iter().map(Vec::as_slice).collect();
    let mut lengths = vec![0; count * count];
    bencher
        .counter(ItemsCount::new(count * count))
        .bench_local(|| compute_prefixes(black_box(&sequences), black_box(&sequences), &mut lengths).unwrap());
}

/// [`prefix_match_many`] reads the sequences of both sides, and writes eight bytes for each pair.
#[divan::bench(args = [4, 32, 256])]
fn prefix_match_many_copy(bencher: Bencher<'_, '_>, count: usize) {
    copied(bencher, count * count, 8 * (2 * 1024 * count + count * count));
}

/// Probabilities of all items, a batch of 256 that is drawn, and its weights.
#[divan::bench(types = [f32, f64], args = LISTS)]
fn priority_sample<F: Float>(bencher: Bencher<'_, '_>, count: usize) {
    let scores = numbers::<F>(count, 0);
    let (mut probabilities, mut indices) = (vec![F::ZERO; count], [0; BATCH]);
    let (mut weights, mut random) = ([F::ZERO; BATCH], SplitMix64::new(1));
    let given = Softmax { scores: &scores, temperature: F::ONE };
    bencher.counter(ItemsCount::new(count)).bench_local(|| {
        softmax_probabilities(black_box(&given), &mut probabilities).unwrap();
        draw(&probabilities, &mut random, &mut indices).unwrap();
        softmax_weights(&given, F::ONE, &indices, &mut weights).unwrap();
    });
}

/// [`priority_sample`] reads one number of each item and writes another.
#[divan::bench(types = [f32, f64], args = LISTS)]
fn priority_sample_copy<F: Float>(bencher: Bencher<'_, '_>, count: usize) {
    copied(bencher, count, count * 2 * size_of::<F>());
}

/// Probabilities of all items, and the weights of a batch of 256.
#[divan::bench(types = [f32, f64], args = LISTS)]
fn prioritized_proportional<F: Float>(bencher: Bencher<'_, '_>, count: usize) {
    let priorities = positive::<F>(count, 0);
    let (mut probabilities, indices) = (vec![F::ZERO; count], std::array::from_fn::<_, BATCH, _>(|at| at % count));
    let (mut weights, mut global) = ([F::ZERO; BATCH], [F::ZERO; BATCH]);
    let given = Proportional { priorities: &priorities, alpha: F::from_f64(0.6) };
    bencher.counter(ItemsCount::new(count)).bench_local(|| {
        proportional_probabilities(black_box(&given), &mut probabilities).unwrap();
        proportional_weights(&given, F::from_f64(0.4), &indices, &mut weights, &mut global).unwrap();
    });
}

/// [`prioritized_proportional`] reads one number of each item and writes another.
#[divan::bench(types = [f32, f64], args = LISTS)]
fn prioritized_proportional_copy<F: Float>(bencher: Bencher<'_, '_>, count: usize) {
    copied(bencher, count, count * 2 * size_of::<F>());
}
