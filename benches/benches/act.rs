//! One call of `act` and one of `observe`, with a linear model of 8 inputs and 4 outputs: what the engine adds to a model.

#![expect(clippy::unwrap_used, reason = "a benchmark that cannot start should stop")]

use relevo_benches::common::{Linear, act, agent};
use relevo_core::{
    policy::HeadKind,
    runtime::{ActOptions, FinalObservations, Outcome, Recording, Rewards, Values},
};

const ACTORS: [usize; 3] = [1, 64, 1024];

fn main() {
    divan::main();
}

/// Calls of `act` and `observe`; every tenth call ends an episode for all actors.
fn calls(bencher: divan::Bencher<'_, '_>, actors: usize, head: HeadKind, trajectories: usize) {
    let output = if head == HeadKind::Gaussian { "actions" } else { "logits" };
    let weights = (0..32).map(|index| (index as f32 * 0.7).sin()).collect();
    let agent = agent(vec![Linear::new(8, output, weights).slot("default", Some(head))], actors, trajectories);
    let group = agent.group(&agent.actor_ids().unwrap()).unwrap();
    let observations: Vec<f32> = (0..actors * 8).map(|index| (index as f32).cos()).collect();
    let rewards = vec![1.0; actors];
    let options = ActOptions { deterministic: None, record: Recording::All };
    let mut call = 0_u32;
    bencher.counter(divan::counter::ItemsCount::new(actors)).bench_local(|| {
        call += 1;
        let results = act(&group, &observations, None, &options);
        let ended = u8::from(call.is_multiple_of(10));
        let outcome = Outcome {
            rewards: Rewards::Float64(Values::Each(&rewards)),
            terminated: Values::Same(ended),
            truncated: Values::Same(0),
        };
        let observed = group.try_observe(&outcome, &FinalObservations::default());
        assert!(results.is_ok() && matches!(observed, Ok(true)));
    });
}

#[divan::bench(args = ACTORS)]
fn argmax_unrecorded(bencher: divan::Bencher<'_, '_>, actors: usize) {
    calls(bencher, actors, HeadKind::Argmax, 0);
}

#[divan::bench(args = ACTORS)]
fn categorical_unrecorded(bencher: divan::Bencher<'_, '_>, actors: usize) {
    calls(bencher, actors, HeadKind::Categorical, 0);
}

#[divan::bench(args = ACTORS)]
fn categorical_in_memory(bencher: divan::Bencher<'_, '_>, actors: usize) {
    calls(bencher, actors, HeadKind::Categorical, 1_000);
}

#[divan::bench(args = ACTORS)]
fn gaussian_in_memory(bencher: divan::Bencher<'_, '_>, actors: usize) {
    calls(bencher, actors, HeadKind::Gaussian, 1_000);
}
