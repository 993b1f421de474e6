//! What is drawn is what was played: against a plain list of all episodes, for whatever order steps come in.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering},
};

use proptest::prelude::*;
use relevo_core::{spec::DType, trajectory::ColumnSpec};
use relevo_replay::{Error, Prioritized, ReplayBuffer, Sampler, Schema, Settings, Steps};

const WIDTH: usize = 3;

fn column(key: &str, dtype: DType, shape: &[usize]) -> ColumnSpec {
    ColumnSpec { key: key.into(), dtype, shape: shape.to_vec() }
}

fn settings(capacity: usize) -> Settings {
    let columns = vec![
        column("obs", DType::Float32, &[WIDTH]),
        column("action", DType::Int64, &[]),
        column("reward", DType::Float32, &[]),
    ];
    let schema = Schema::new(columns, "obs", Some("reward")).unwrap();
    Settings { capacity, schema, sampler: Sampler::Uniform, n_step: 1, gamma: 0.5, seed: 7 }
}

/// A step as a test plays it: its number tells everything of it.
#[derive(Debug, Clone, Copy)]
struct Played {
    env: u32,
    terminated: bool,
    truncated: bool,
    told: bool,
}

fn observation(number: f32) -> [f32; WIDTH] {
    [number, number + 0.25, -number]
}

/// Adds the steps `first..`, one call for each group of equal length.
fn add(buffer: &ReplayBuffer, first: usize, played: &[Played]) {
    let numbers: Vec<f32> = (first..first + played.len()).map(|number| number as f32).collect();
    let observations: Vec<f32> = numbers.iter().flat_map(|number| observation(*number)).collect();
    let actions: Vec<i64> = numbers.iter().map(|number| *number as i64).collect();
    let finals: Vec<f32> = numbers.iter().flat_map(|number| observation(*number + 0.5)).collect();
    let columns: [&[u8]; 3] =
        [bytemuck::cast_slice(&observations), bytemuck::cast_slice(&actions), bytemuck::cast_slice(&numbers)];
    let flags = |flag: fn(&Played) -> bool| played.iter().map(|step| u8::from(flag(step))).collect::<Vec<_>>();
    buffer
        .add(&Steps {
            count: played.len(),
            columns: &columns,
            terminated: &flags(|step| step.terminated),
            truncated: &flags(|step| step.truncated),
            final_observations: played.iter().any(|step| step.told).then(|| bytemuck::cast_slice(&finals)),
            envs: &played.iter().map(|step| step.env).collect::<Vec<_>>(),
        })
        .unwrap();
}

/// What a transition from a step should be: its return, its length, what is observed then, and its end.
#[derive(Debug, PartialEq)]
struct Expected {
    reward: f32,
    steps: u32,
    next: Option<[f32; WIDTH]>,
    terminated: bool,
    truncated: bool,
}

/// By walking through the episode. `None` where the step cannot be drawn.
fn expected(all: &[Played], first: usize, n: usize, gamma: f32) -> Option<Expected> {
    let mut steps = vec![first];
    loop {
        let last = *steps.last().unwrap();
        let step = all[last];
        let following = (last + 1..all.len()).find(|other| all[*other].env == step.env);
        let ended = step.terminated || step.truncated;
        let next = match following {
            _ if ended && step.told => Some(Some(observation(last as f32 + 0.5))),
            _ if step.terminated => Some(None),
            Some(following) if !ended => Some(Some(observation(following as f32))),
            _ => None,
        };
        let Some(next) = next else {
            // The transition ends before it, with what it observed.
            steps.pop();
            let before = *steps.last()?;
            return Some(sum(all, &steps, Some(observation(last as f32)), before, gamma));
        };
        if ended || steps.len() == n {
            return Some(sum(all, &steps, next, last, gamma));
        }
        steps.push(following.unwrap());
    }
}

fn sum(all: &[Played], steps: &[usize], next: Option<[f32; WIDTH]>, last: usize, gamma: f32) -> Expected {
    let reward = steps.iter().rev().fold(0.0, |sum, step| *step as f32 + gamma * sum);
    let Played { terminated, truncated, .. } = all[last];
    Expected { reward, steps: steps.len() as u32, next, terminated, truncated }
}

fn floats(bytes: &[u8]) -> &[f32] {
    bytemuck::cast_slice(bytes)
}

fn played() -> impl Strategy<Value = Played> {
    (0..4_u32, prop::bool::weighted(0.15), prop::bool::weighted(0.15)).prop_map(|(env, terminated, truncated)| Played {
        env,
        terminated,
        truncated,
        told: false,
    })
}

/// Groups of steps that are added at once, with whether their final observations are told. An environment has one step a group.
fn groups() -> impl Strategy<Value = Vec<Vec<Played>>> {
    let group = (prop::collection::vec(played(), 1..4), any::<bool>()).prop_map(|(mut steps, told)| {
        for (env, step) in (0..).zip(&mut steps) {
            step.env = env;
            step.told = told;
        }
        steps
    });
    prop::collection::vec(group, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn transitions_are_those_that_were_played(
        groups in groups(),
        capacity in 4..200_usize,
        n in 1..6_usize,
        prioritized in any::<bool>(),
    ) {
        let sampler = if prioritized { Sampler::Prioritized(Prioritized::default()) } else { Sampler::Uniform };
        let buffer = ReplayBuffer::new(Settings { n_step: n, sampler, ..settings(capacity) }).unwrap();
        let mut all = Vec::new();
        for group in &groups {
            add(&buffer, all.len(), group);
            all.extend(group.iter().copied());
            prop_assert_eq!(buffer.len(), all.len().min(capacity));
            let oldest = all.len().saturating_sub(capacity);
            let ready: Vec<_> = (oldest..all.len()).filter(|first| expected(&all, *first, 1, 0.5).is_some()).collect();
            let sampled = buffer.sample(16);
            if ready.is_empty() {
                prop_assert!(matches!(sampled, Err(Error::NotReady(_))));
                continue;
            }
            let batch = sampled.unwrap();
            for row in 0..batch.len {
                let first = batch.keys[row] as usize;
                prop_assert!(ready.contains(&first), "step {} of {:?}", first, all);
                let wanted = expected(&all, first, n, 0.5).unwrap();
                prop_assert_eq!(&floats(batch.columns[0].bytes())[row * WIDTH..][..WIDTH], &observation(first as f32)[..]);
                let actions: &[i64] = bytemuck::cast_slice(batch.columns[1].bytes());
                prop_assert_eq!(actions[row], first as i64);
                let next: [f32; WIDTH] = floats(batch.next_observations.bytes())[row * WIDTH..][..WIDTH].try_into().unwrap();
                let found = Expected {
                    reward: floats(batch.columns[2].bytes())[row],
                    steps: batch.steps[row],
                    next: wanted.next.map(|_| next),
                    terminated: batch.terminated[row] != 0,
                    truncated: batch.truncated[row] != 0,
                };
                prop_assert_eq!(found, wanted, "step {} of {:?}", first, all);
                prop_assert_eq!(batch.discounts[row].to_bits(), 0.5_f32.powi(batch.steps[row] as i32).to_bits());
                prop_assert_eq!(batch.indices[row], (first % capacity) as i64);
                prop_assert_eq!(batch.envs[row], all[first].env);
            }
        }
    }
}

fn going_on(env: u32) -> Played {
    Played { env, terminated: false, truncated: false, told: false }
}

/// A buffer of `count` steps of one environment that goes on, all of which but the last can be drawn.
fn filled(capacity: usize, count: usize, sampler: Sampler) -> ReplayBuffer {
    let buffer = ReplayBuffer::new(Settings { sampler, ..settings(capacity) }).unwrap();
    (0..count).for_each(|number| add(&buffer, number, &[going_on(0)]));
    buffer
}

/// How far counts are from what chances say, by Pearson's test: (χ² − degrees) in its standard deviations.
fn surprise(counts: &HashMap<u64, usize>, chances: &HashMap<u64, f64>) -> f64 {
    let draws: usize = counts.values().sum();
    let distance: f64 = chances
        .iter()
        .map(|(key, chance)| {
            let expected = chance * draws as f64;
            let count = counts.get(key).copied().unwrap_or(0) as f64;
            (count - expected).powi(2) / expected
        })
        .sum();
    let degrees = chances.len() as f64 - 1.0;
    (distance - degrees) / (2.0 * degrees).sqrt()
}

fn count(buffer: &ReplayBuffer, draws: usize) -> HashMap<u64, usize> {
    let mut counts = HashMap::new();
    for _ in 0..draws / 500 {
        for key in buffer.sample(500).unwrap().keys {
            *counts.entry(key).or_default() += 1;
        }
    }
    counts
}

#[test]
fn a_million_draws_are_as_the_chances_say() {
    let independent = Prioritized { alpha: 0.7, stratified: false, ..Prioritized::default() };
    for sampler in [Sampler::Uniform, Sampler::Prioritized(independent)] {
        let buffer = filled(1000, 1501, sampler);
        let keys: Vec<u64> = (501..1500).collect();
        let mut chances: HashMap<u64, f64> = keys.iter().map(|key| (*key, 1.0)).collect();
        if let Sampler::Prioritized(settings) = sampler {
            let priorities: Vec<f64> = keys.iter().map(|key| (key % 17) as f64).collect();
            buffer.update_priorities(&keys, &priorities).unwrap();
            // Then some are written over.
            (1501..1700).for_each(|number| add(&buffer, number, &[going_on(0)]));
            chances = keys
                .iter()
                .filter(|key| **key >= 700)
                .map(|key| (*key, ((key % 17) as f64).powf(settings.alpha)))
                .collect();
            chances.extend((1500..1699).map(|key| (key, 16_f64.powf(settings.alpha))));
            chances.retain(|_, chance| *chance > 0.0);
        }
        let total: f64 = chances.values().sum();
        for chance in chances.values_mut() {
            *chance /= total;
        }
        let counts = count(&buffer, 1_000_000);
        assert!(counts.keys().all(|key| chances.contains_key(key)), "{sampler:?}");
        let surprise = surprise(&counts, &chances);
        assert!(surprise.abs() < 4.0, "{sampler:?}: {surprise}");
    }
}

#[test]
fn weights_undo_the_chances() {
    for by_buffer in [false, true] {
        let settings = Prioritized { alpha: 0.5, beta: 1.0, stratified: true, by_buffer };
        let buffer = filled(64, 41, Sampler::Prioritized(settings));
        let keys: Vec<u64> = (0..40).collect();
        let priorities: Vec<f64> = keys.iter().map(|key| ((key + 1) * (key + 1)) as f64).collect();
        buffer.update_priorities(&keys, &priorities).unwrap();
        let batch = buffer.sample(200).unwrap();
        // Chances are in proportion to key + 1, and weights to its inverse.
        let least = if by_buffer { 1 } else { batch.keys.iter().min().unwrap() + 1 } as f64;
        for (key, weight) in batch.keys.iter().zip(&batch.weights) {
            let expected = least / (key + 1) as f64;
            assert!((f64::from(*weight) - expected).abs() < 1e-6, "{by_buffer}: {key} has {weight} for {expected}");
        }
    }
}

#[test]
fn new_steps_get_the_largest_priority_that_is_there() {
    let buffer = filled(8, 5, Sampler::Prioritized(Prioritized { alpha: 1.0, ..Prioritized::default() }));
    buffer.update_priorities(&[0, 1, 2, 3], &[1.0, 50.0, 3.0, 2.0]).unwrap();
    let share = |key: u64| count(&buffer, 100_000).get(&key).copied().unwrap_or(0) as f64 / 1e5;
    add(&buffer, 5, &[going_on(0)]);
    assert!((share(4) - 50.0 / 106.0).abs() < 0.01);
    // The one of 50 is written over, and so are those of 1 and 3.
    (6..11).for_each(|number| add(&buffer, number, &[going_on(0)]));
    let held: f64 = 2.0 + 50.0 * 6.0;
    assert!((share(9) - 50.0 / held).abs() < 0.01);
    buffer.update_priorities(&(4..10).collect::<Vec<_>>(), &[0.5; 6]).unwrap();
    add(&buffer, 11, &[going_on(0)]);
    // The largest is now that of step 3, of 2, but it was written over by step 11.
    assert!((share(10) - 0.5 / 3.5).abs() < 0.01);
}

#[test]
fn what_cannot_be_drawn_never_is() {
    let buffer = filled(128, 128, Sampler::Prioritized(Prioritized::default()));
    let keys: Vec<u64> = (0..127).collect();
    let priorities: Vec<f64> = keys.iter().map(|key| f64::from(u8::from(*key == 77))).collect();
    let report = buffer.update_priorities(&keys, &priorities).unwrap();
    assert_eq!((report.updated, report.stale), (127, 0));
    assert!(buffer.sample(10_000).unwrap().keys.iter().all(|key| *key == 77));
    for alpha in [0.0, 3.0] {
        buffer.set_alpha(alpha).unwrap();
        assert!(buffer.sample(1000).unwrap().keys.iter().all(|key| *key == 77));
    }
    buffer.update_priorities(&[77], &[0.0]).unwrap();
    assert!(matches!(buffer.sample(1), Err(Error::NotReady(_))));
}

#[test]
fn priorities_of_steps_that_are_gone_are_passed_over() {
    let buffer = filled(16, 17, Sampler::Prioritized(Prioritized { alpha: 1.0, ..Prioritized::default() }));
    let batch = buffer.sample(16).unwrap();
    (17..25).for_each(|number| add(&buffer, number, &[going_on(0)]));
    let report = buffer.update_priorities(&batch.keys, &[1e6; 16]).unwrap();
    let stale = batch.keys.iter().filter(|key| **key < 9).count();
    assert!(stale > 0);
    assert_eq!((report.updated, report.stale), (16 - stale, stale));
    // None landed on a step that took the place of one.
    let late = buffer.sample(1000).unwrap().keys.into_iter().filter(|key| *key >= 17).count();
    assert!(late < 20, "{late}");
}

#[test]
fn bad_priorities_change_nothing() {
    let buffer = filled(16, 9, Sampler::Prioritized(Prioritized { alpha: 1.0, ..Prioritized::default() }));
    for bad in [f64::NAN, f64::INFINITY, -1.0] {
        let error = buffer.update_priorities(&[0, 1, 2], &[1e9, bad, 1.0]).unwrap_err().to_string();
        assert!(error.contains("position 1") && error.contains("nothing was updated"), "{error}");
    }
    assert!(matches!(buffer.update_priorities(&[0, 1], &[1.0]), Err(Error::Contract(_))));
    let counts = count(&buffer, 8_000);
    assert!(counts.values().all(|count| (900..1100).contains(count)), "{counts:?}");
}

#[test]
fn threads_add_and_sample_at_a_time_and_no_row_is_torn() {
    let threads = 4_u32;
    let wide = Schema::new(
        vec![column("obs", DType::UInt32, &[64]), column("reward", DType::Float32, &[])],
        "obs",
        Some("reward"),
    );
    let sampler = Sampler::Prioritized(Prioritized::default());
    let buffer = ReplayBuffer::new(Settings { schema: wide.unwrap(), n_step: 3, sampler, ..settings(257) }).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for env in 0..threads {
            let (buffer, done) = (&buffer, &done);
            scope.spawn(move || {
                for number in 0..20_000_u32 {
                    let (observation, last) = ([number * threads + env; 64], [(number + 1) * threads + env; 64]);
                    let columns: [&[u8]; 2] = [bytemuck::cast_slice(&observation), bytemuck::bytes_of(&1.0_f32)];
                    let steps = Steps {
                        count: 1,
                        columns: &columns,
                        terminated: &[0],
                        truncated: &[u8::from(number % 50 == 49)],
                        final_observations: Some(bytemuck::cast_slice(&last)),
                        envs: &[env],
                    };
                    buffer.add(&steps).unwrap();
                }
                done.store(true, Ordering::Relaxed);
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                let mut sampled = 0;
                while !done.load(Ordering::Relaxed) || sampled == 0 {
                    let Ok(batch) = buffer.sample(32) else { continue };
                    for row in 0..batch.len {
                        let rows = |bytes: &[u8]| bytemuck::cast_slice::<u8, u32>(bytes)[row * 64..][..64].to_vec();
                        let (first, next) = (rows(batch.columns[0].bytes()), rows(batch.next_observations.bytes()));
                        assert!(first.iter().all(|value| *value == first[0]), "{first:?}");
                        assert!(next.iter().all(|value| *value == next[0]), "{next:?}");
                        assert_eq!(next[0], first[0] + batch.steps[row] * threads);
                        assert_eq!(first[0] % threads, batch.envs[row]);
                    }
                    let priorities: Vec<f64> = batch.keys.iter().map(|key| (key % 5) as f64 + 0.1).collect();
                    buffer.update_priorities(&batch.keys, &priorities).unwrap();
                    sampled += 1;
                }
            });
        }
    });
    assert_eq!(buffer.added(), 20_000 * u64::from(threads));
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let refused = |settings: Settings| ReplayBuffer::new(settings).unwrap_err();
    assert!(matches!(refused(settings(0)), Error::Config(_)));
    assert!(matches!(refused(Settings { n_step: 0, ..settings(8) }), Error::Config(_)));
    assert!(matches!(refused(Settings { gamma: 1.5, ..settings(8) }), Error::Config(_)));
    let alpha = Sampler::Prioritized(Prioritized { alpha: -1.0, ..Prioritized::default() });
    assert!(matches!(refused(Settings { sampler: alpha, ..settings(8) }), Error::Config(_)));
    let error = refused(settings(1 << 50)).to_string();
    assert!(error.contains("of memory, and") && error.contains("GB"), "{error}");
}
