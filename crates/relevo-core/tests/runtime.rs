//! The runtime from `act` to the recorded step, with a linear model whose every number can be worked out by hand.

#![expect(clippy::float_cmp, clippy::unwrap_used, reason = "test code; numbers are passed on, not computed")]

mod common;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use common::{Linear, act, agent, column, floats, flushed, observe, outcome};
use proptest::prelude::*;
use relevo_core::{
    Error,
    policy::HeadKind,
    runtime::{ActOptions, ActorGroup, Agent, AgentConfig, Batching, FinalObservations, Recording, Request},
    tensor::as_bytes,
    trajectory::MemoryLimit,
};
use uuid::Uuid;

const RECORD: ActOptions<'_> = ActOptions { deterministic: None, record: Recording::All };

/// Two inputs, two logits: the action is 1 where the second input is larger.
fn identity() -> Linear {
    Linear::new(2, "logits", vec![1.0, 0.0, 0.0, 1.0])
}

fn all(agent: &Agent) -> Arc<ActorGroup> {
    agent.group(&agent.actor_ids().unwrap()).unwrap()
}

#[test]
fn a_step_is_recorded_as_it_was_inferred() {
    let agent = agent(vec![identity().slot("default", Some(HeadKind::Argmax))], 2, 10);
    let group = all(&agent);
    let results = act(&group, &[1.0, 2.0, 4.0, 3.0], None, &RECORD).unwrap();
    assert_eq!(results.actions[0].values::<i64>(), [1, 0]);
    assert_eq!(results.policy_versions, [1, 1]);
    observe(&group, &outcome(&[0.5, -0.5], &[0, 1], &[0, 0]), &FinalObservations::default()).unwrap();
    act(&group, &[5.0, 6.0, 8.0, 7.0], None, &RECORD).unwrap();
    let finals = FinalObservations {
        rows: vec![0],
        bytes: bytemuck::cast_slice(&[9.0_f32, 10.0]).to_vec(),
        columns: column(2),
        ..Default::default()
    };
    observe(&group, &outcome(&[1.5, 2.5], &[0, 0], &[1, 0]), &finals).unwrap();

    let episodes = flushed(&agent);
    assert_eq!(episodes.len(), 2);
    let of = |id: Uuid| episodes.iter().find(|episode| episode.actor_id == id).unwrap();
    let ids = agent.actor_ids().unwrap();
    let first = of(ids[0]);
    assert_eq!((first.len, first.terminated, first.truncated, first.complete), (2, false, true, true));
    assert_eq!(floats(&first.observations[0]), [1.0, 2.0, 5.0, 6.0, 9.0, 10.0]);
    assert_eq!(first.actions[0].typed_data::<i64>(), [1, 1]);
    assert_eq!(first.rewards.typed_data::<f64>(), [0.5, 1.5]);
    let second = of(ids[1]);
    assert_eq!((second.len, second.terminated, second.has_final_observation), (1, true, false));
    assert_eq!(floats(&second.observations[0]), [4.0, 3.0]);
    assert_eq!(agent.stats().unwrap().final_observations_missing, 0);
}

#[test]
fn a_reward_that_never_came_is_null_and_counted() {
    let agent = agent(vec![identity().slot("default", None)], 1, 10);
    let group = all(&agent);
    act(&group, &[1.0, 2.0], None, &RECORD).unwrap();
    act(&group, &[3.0, 4.0], None, &RECORD).unwrap();
    observe(&group, &outcome(&[1.0], &[0], &[1]), &FinalObservations::default()).unwrap();
    let episodes = flushed(&agent);
    assert_eq!(episodes[0].reward_known.as_deref(), Some(&[0_u8, 1][..]));
    assert_eq!((agent.stats().unwrap().rewards_missing, agent.stats().unwrap().final_observations_missing), (1, 1));
}

fn is_state(error: Error) -> bool {
    match error {
        Error::OfActor { error, .. } => is_state(*error),
        other => matches!(other, Error::State(_)),
    }
}

#[test]
fn calls_at_the_wrong_moment_are_errors_and_change_nothing() {
    let agent = agent(vec![identity().slot("default", None)], 2, 10);
    let group = all(&agent);
    let nothing = FinalObservations::default();
    let told = outcome(&[1.0, 1.0], &[0, 0], &[0, 0]);
    assert!(observe(&group, &told, &nothing).is_err_and(is_state));
    act(&group, &[1.0; 4], None, &RECORD).unwrap();
    observe(&group, &told, &nothing).unwrap();
    assert!(observe(&group, &told, &nothing).is_err_and(is_state));

    let id = agent.actor_ids().unwrap()[1];
    let twice = agent.group(&[id, id]);
    assert!(matches!(twice, Err(Error::Config(message)) if message.contains("twice")));
    let unknown = Uuid::new_v4();
    assert!(matches!(agent.group(&[unknown]), Err(Error::ActorNotFound { id, .. }) if id == unknown));
    assert!(matches!(agent.group(&[]), Err(Error::Config(_))));

    agent.shutdown(&mut || Ok(())).unwrap();
    assert!(matches!(act(&group, &[1.0; 4], None, &RECORD), Err(Error::State(_))));
    assert!(observe(&group, &told, &nothing).is_err_and(is_state));
    agent.shutdown(&mut || Ok(())).unwrap();
    assert!(matches!(agent.start(), Err(Error::State(_))));
}

#[test]
fn a_failed_call_leaves_no_trace() {
    let mut model = identity();
    model.fails_on = Some(13.0);
    let agent = agent(vec![model.slot("default", Some(HeadKind::Categorical))], 2, 10);
    let group = all(&agent);
    let without_failures = common::agent(vec![identity().slot("default", Some(HeadKind::Categorical))], 2, 10);
    let twin = all(&without_failures);
    for step in 0..20 {
        let observations = [step as f32 * 0.1, 0.3, 0.2, 0.4];
        let failed = act(&group, &[13.0, 0.0, 0.0, 0.0], None, &RECORD);
        let failed = failed.unwrap_err();
        assert!(failed.to_string().contains("told to fail"), "{failed}");
        assert_eq!(failed.actor(), Some(agent.actor_ids().unwrap()[0]));
        let nan = act(&group, &[0.0, 0.0, f32::NAN, 0.0], None, &RECORD);
        let id = agent.actor_ids().unwrap()[1];
        let Err(Error::OfActor { id: named, error }) = nan else { panic!("{nan:?}") };
        assert_eq!(named, id);
        assert!(matches!(&*error, Error::Contract(text) if text.contains("NaN") && text.contains(&id.to_string())));
        let infinite = act(&group, &[0.0, 0.0, f32::INFINITY, 0.0], None, &RECORD);
        let Err(Error::OfActor { id: named, error }) = infinite else { panic!("{infinite:?}") };
        assert_eq!(named, id);
        assert!(matches!(&*error, Error::Inference(text) if text.contains(&id.to_string())));
        let left = act(&group, &observations, None, &RECORD).unwrap();
        let right = act(&twin, &observations, None, &RECORD).unwrap();
        assert_eq!(left.actions[0].values::<i64>(), right.actions[0].values::<i64>());
        let ended = [u8::from(step == 19); 2];
        for group in [&group, &twin] {
            observe(group, &outcome(&[1.0, 2.0], &ended, &[0, 0]), &FinalObservations::default()).unwrap();
        }
    }
    assert_eq!(flushed(&agent).iter().map(|episode| episode.len).collect::<Vec<_>>(), [20, 20]);
    assert_eq!(agent.stats().unwrap().policies[0].errors, 40);
}

#[test]
fn an_open_step_outlives_a_call_that_fails_at_a_full_block() {
    let agent = agent(vec![identity().slot("default", None)], 2, 10);
    let group = all(&agent);
    // The first block has 16 rows; each step is told only after a call that fails.
    for step in 0..40 {
        act(&group, &[step as f32; 4], None, &RECORD).unwrap();
        assert!(act(&group, &[f32::NAN; 4], None, &RECORD).is_err());
        let ended = [u8::from(step == 39); 2];
        observe(&group, &outcome(&[f64::from(step); 2], &ended, &[0; 2]), &FinalObservations::default()).unwrap();
    }
    for episode in flushed(&agent) {
        assert_eq!(episode.rewards.typed_data::<f64>(), (0..40).map(f64::from).collect::<Vec<_>>());
        assert_eq!(episode.reward_known, None);
    }
}

#[test]
fn masked_actions_are_never_taken_and_masks_are_recorded() {
    let agent = agent(vec![identity().slot("default", Some(HeadKind::Categorical))], 2, 10);
    let group = all(&agent);
    act(&group, &[0.0; 4], None, &RECORD).unwrap();
    observe(&group, &outcome(&[0.0; 2], &[0; 2], &[0; 2]), &FinalObservations::default()).unwrap();
    for step in 0..50 {
        let results = act(&group, &[0.0, 9.0, 0.0, 9.0], Some(&[1, 0, 1, 1]), &RECORD).unwrap();
        assert_eq!(results.actions[0].values::<i64>()[0], 0);
        assert_eq!(results.log_probs.as_ref().unwrap()[0], 0.0);
        let ended = [u8::from(step == 49); 2];
        observe(&group, &outcome(&[0.0; 2], &ended, &[0; 2]), &FinalObservations::default()).unwrap();
    }
    let none = act(&group, &[0.0; 4], Some(&[1, 0, 0, 0]), &RECORD);
    let none = none.unwrap_err();
    assert!(none.to_string().contains("allows no action"));
    assert_eq!(none.actor(), Some(agent.actor_ids().unwrap()[1]));
    let episodes = flushed(&agent);
    let masks = episodes[0].masks.as_deref().unwrap();
    // The first step came without a mask: everything was allowed.
    assert_eq!(&masks[..4], [1, 1, 1, 0]);
    assert_eq!(masks.len(), 2 * 51);
}

#[test]
fn unrecorded_steps_break_an_episode_and_peeks_do_not() {
    let agent = agent(vec![identity().slot("default", None)], 2, 10);
    let group = all(&agent);
    let nothing = FinalObservations::default();
    let step = |observations: [f32; 4], record: Recording<'_>, ended: [u8; 2]| {
        act(&group, &observations, None, &ActOptions { deterministic: None, record }).unwrap();
        observe(&group, &outcome(&[1.0; 2], &ended, &[0; 2]), &nothing).unwrap();
    };
    step([1.0; 4], Recording::All, [0, 0]);
    // A peek: no step of the environment follows.
    act(&group, &[1.5; 4], None, &ActOptions { deterministic: None, record: Recording::Nothing }).unwrap();
    step([2.0; 4], Recording::All, [0, 0]);
    step([3.0; 4], Recording::Rows(&[1, 0]), [0, 0]);
    step([4.0; 4], Recording::All, [1, 1]);
    let mut episodes = flushed(&agent);
    episodes.sort_by_key(|episode| (episode.actor_id != agent.actor_ids().unwrap()[0], episode.number));
    let firsts: Vec<(usize, bool, f32)> =
        episodes.iter().map(|episode| (episode.len, episode.complete, floats(&episode.observations[0])[0])).collect();
    assert_eq!(firsts, [(4, true, 1.0), (2, false, 1.0), (1, true, 4.0)]);
}

#[test]
fn actors_of_several_policies_act_in_one_call_in_the_callers_order() {
    let swapped = Linear::new(2, "logits", vec![0.0, 1.0, 1.0, 0.0]);
    let policies =
        vec![identity().slot("default", Some(HeadKind::Argmax)), swapped.slot("swapped", Some(HeadKind::Categorical))];
    let agent = agent(policies, 5, 10);
    let ids = agent.actor_ids().unwrap();
    agent.assign(&[ids[0], ids[3]], "swapped").unwrap();
    let group = all(&agent);
    let observations: Vec<f32> = (0..5).flat_map(|actor| [0.0, 40.0 + actor as f32]).collect();
    let results = act(&group, &observations, None, &RECORD).unwrap();
    assert_eq!(results.actions[0].values::<i64>(), [0, 1, 1, 0, 1]);
    let log_probs = results.log_probs.as_ref().unwrap();
    assert_eq!(log_probs.iter().map(|value| value.is_nan()).collect::<Vec<_>>(), [false, true, true, false, true]);
    let rewards = [0.0, 1.0, 2.0, 3.0, 4.0];
    observe(&group, &outcome(&rewards, &[1; 5], &[0; 5]), &FinalObservations::default()).unwrap();
    for episode in flushed(&agent) {
        let actor = ids.iter().position(|id| *id == episode.actor_id).unwrap();
        assert_eq!(floats(&episode.observations[0]), [0.0, 40.0 + actor as f32]);
        assert_eq!(episode.rewards.typed_data::<f64>(), [rewards[actor]]);
        assert_eq!(&*episode.policies[0].policy, if [0, 3].contains(&actor) { "swapped" } else { "default" });
        assert_eq!(episode.log_probs.is_some(), [0, 3].contains(&actor));
    }
    let refused = agent.assign(&ids, "none such");
    assert!(matches!(refused, Err(Error::Config(message)) if message.contains("default, swapped")));
}

#[test]
fn the_same_seed_gives_the_same_actions_whoever_shares_the_batch() {
    let play = |together: bool| {
        let agent = agent(vec![identity().slot("default", Some(HeadKind::Categorical))], 6, 10);
        let ids = agent.actor_ids().unwrap();
        let groups: Vec<Arc<ActorGroup>> =
            if together { vec![all(&agent)] } else { ids.chunks(2).map(|ids| agent.group(ids).unwrap()).collect() };
        let mut actions = Vec::new();
        for step in 0..30 {
            for group in &groups {
                let observations: Vec<f32> = group.actors.iter().flat_map(|_| [step as f32 * 0.05, 0.4]).collect();
                actions.extend_from_slice(act(group, &observations, None, &RECORD).unwrap().actions[0].values::<i64>());
                let rows = group.actors.len();
                observe(
                    group,
                    &outcome(&vec![0.0; rows], &vec![0; rows], &vec![0; rows]),
                    &FinalObservations::default(),
                )
                .unwrap();
            }
        }
        actions
    };
    let together = play(true);
    assert_eq!(together, play(false));
    assert!(together.contains(&0) && together.contains(&1));
}

#[test]
fn a_model_is_exchanged_between_two_calls_or_not_at_all() {
    let agent = agent(vec![identity().slot("default", Some(HeadKind::Argmax))], 1, 10);
    let group = all(&agent);
    let nothing = FinalObservations::default();
    act(&group, &[0.0, 1.0], None, &RECORD).unwrap();
    observe(&group, &outcome(&[0.0], &[0], &[0]), &nothing).unwrap();
    let wider = Linear::new(2, "logits", vec![1.0; 6]).load();
    assert!(
        matches!(agent.update_model("default", wider, None), Err(Error::Contract(message)) if message.contains("3 choices"))
    );
    let swapped = Linear::new(2, "logits", vec![0.0, 1.0, 1.0, 0.0]).load();
    assert!(
        matches!(agent.update_model("default", swapped.clone(), Some(1)), Err(Error::Config(message)) if message.contains("above it"))
    );
    assert_eq!(agent.update_model("default", swapped.clone(), None).unwrap(), 2);
    assert_eq!(agent.update_model("default", swapped, Some(10)).unwrap(), 10);
    let results = act(&group, &[0.0, 1.0], None, &RECORD).unwrap();
    assert_eq!((results.actions[0].values::<i64>()[0], results.policy_versions[0]), (0, 10));
    observe(&group, &outcome(&[0.0], &[1], &[0]), &nothing).unwrap();
    assert_eq!(flushed(&agent)[0].policy_versions(), [1, 10]);
}

#[test]
fn actors_come_go_and_are_renamed() {
    let agent = agent(vec![identity().slot("default", None)], 2, 10);
    let group = all(&agent);
    let ids = agent.actor_ids().unwrap();
    let nothing = FinalObservations::default();
    act(&group, &[1.0; 4], None, &RECORD).unwrap();
    observe(&group, &outcome(&[1.0; 2], &[0; 2], &[0; 2]), &nothing).unwrap();
    let new = Uuid::new_v4();
    agent.rename_actor(ids[0], new).unwrap();
    assert!(matches!(agent.rename_actor(ids[0], new), Err(Error::ActorNotFound { .. })));
    assert!(matches!(agent.rename_actor(ids[1], new), Err(Error::Config(_))));
    // The handle still means the same actors; the open episode keeps its id, the next one has the new one.
    for _ in 0..2 {
        act(&group, &[2.0; 4], None, &RECORD).unwrap();
        observe(&group, &outcome(&[1.0; 2], &[1, 0], &[0; 2]), &nothing).unwrap();
    }
    agent.remove_actor(ids[1]).unwrap();
    assert!(matches!(act(&group, &[1.0; 4], None, &RECORD), Err(Error::ActorNotFound { id, .. }) if id == ids[1]));
    let found: Vec<_> =
        flushed(&agent).iter().map(|episode| (episode.actor_id, episode.len, episode.complete)).collect();
    assert_eq!(found, [(ids[0], 2, true), (new, 1, true), (ids[1], 3, false)]);
    assert_eq!(agent.actor_ids().unwrap(), [new]);
    let more = agent.add_actors(3, None).unwrap();
    assert_eq!(agent.actor_ids().unwrap().len(), 4);
    assert!(more.iter().all(|id| agent.group(&[*id]).is_ok()));
}

#[test]
fn routers_are_scaled_but_never_to_none() {
    let agent = agent(vec![identity().slot("default", None)], 1, 0);
    assert_eq!(agent.scale_routers(2).unwrap(), 3);
    assert!(matches!(agent.scale_routers(-3), Err(Error::Config(_))));
    assert_eq!(agent.scale_routers(-2).unwrap(), 1);
}

#[test]
fn shutdown_answers_who_waits_also_where_nothing_is_recorded() {
    let agent = Agent::new(AgentConfig {
        actor_count: 2,
        batching: Batching { max_wait: Duration::from_hours(1), ..Batching::default() },
        memory: MemoryLimit { trajectories: 0, bytes: 0 },
        ..AgentConfig::new(vec![identity().slot("default", Some(HeadKind::Argmax))])
    })
    .unwrap();
    agent.start().unwrap();
    let ids = agent.actor_ids().unwrap();
    let (first, second) = (agent.group(&ids[..1]).unwrap(), agent.group(&ids[1..]).unwrap());
    act(&first, &[1.0, 0.0], None, &RECORD).unwrap();
    // The first is expected to come back.
    let ticket = second.request(&Request::new(&[as_bytes(&[1.0_f32, 0.0])])).unwrap();
    agent.shutdown(&mut || Ok(())).unwrap();
    assert!(agent.stats().unwrap().routers.is_empty());
    assert!(matches!(ticket.wait(), Err(Error::State(reason)) if reason.contains("shut down")));
}

#[test]
fn an_episode_that_two_handles_acted_in_is_one_where_shutdown_ends_it() {
    let agent = agent(vec![identity().slot("default", None)], 2, 10);
    let ids = agent.actor_ids().unwrap();
    let (both, one) = (all(&agent), agent.group(&ids[1..]).unwrap());
    for _ in 0..3 {
        act(&both, &[0.0; 4], None, &RECORD).unwrap();
    }
    // The open step of the other actor stays behind, and is sent before this one.
    act(&one, &[0.0; 2], None, &RECORD).unwrap();
    agent.shutdown(&mut || Ok(())).unwrap();
    let found: HashMap<_, _> =
        agent.trajectories().iter().map(|episode| (episode.actor_id, (episode.len, episode.complete))).collect();
    assert_eq!(found, [(ids[0], (3, false)), (ids[1], (4, false))].into());
    assert_eq!(agent.trajectories().len(), 2);
}

#[test]
fn concurrent_callers_and_updates_never_mix_versions() {
    // Version v of the model answers with the action v % 2.
    let model = |version: u64| {
        let weights = if version.is_multiple_of(2) { vec![1.0, 0.0, 0.0, 0.0] } else { vec![0.0, 1.0, 0.0, 0.0] };
        Linear::new(2, "logits", weights)
    };
    let agent = agent(vec![model(1).slot("default", Some(HeadKind::Argmax))], 64, usize::MAX);
    let stop = AtomicBool::new(false);
    let all_ids = agent.actor_ids().unwrap();
    std::thread::scope(|scope| {
        for ids in all_ids.chunks(16) {
            let (agent, stop) = (&agent, &stop);
            scope.spawn(move || {
                let group = agent.group(ids).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    let results = act(&group, &[1.0; 32], None, &RECORD).unwrap();
                    let actions = results.actions[0].values::<i64>();
                    assert!(
                        actions
                            .iter()
                            .zip(&results.policy_versions)
                            .all(|(action, version)| *action as u64 == version % 2)
                    );
                    let rewards = [1.0; 16];
                    let ended = [u8::from(results.policy_versions[0].is_multiple_of(3)); 16];
                    observe(&group, &outcome(&rewards, &ended, &[0; 16]), &FinalObservations::default()).unwrap();
                }
            });
        }
        for version in 2..60 {
            assert_eq!(agent.update_model("default", model(version).load(), None).unwrap(), version);
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        stop.store(true, Ordering::Relaxed);
    });
    agent.shutdown(&mut || Ok(())).unwrap();
    let (mut steps, calls) = (0, agent.stats().unwrap().policies[0].rows);
    for episode in agent.trajectories() {
        steps += episode.len as u64;
        let actions = episode.actions[0].typed_data::<i64>();
        assert!(actions.iter().zip(episode.policy_versions()).all(|(action, version)| *action as u64 == version % 2));
    }
    assert_eq!(steps, calls);
}

/// What a random player does next.
#[derive(Debug, Clone)]
enum Move {
    /// These actors act, and are told what they earned; bits say whose episode ends how.
    Step {
        actors: Vec<usize>,
        ends: Vec<u8>,
        told: bool,
    },
    /// These actors are told what they earned, whatever group acted for them; none of their episodes ends.
    Tell(Vec<usize>),
    Flush,
    Remove(usize),
    Add,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let some = prop::sample::subsequence((0..6_usize).collect::<Vec<_>>(), 1..=6);
    let step = (prop::sample::subsequence((0..6_usize).collect::<Vec<_>>(), 1..=6), any::<bool>(), any::<u64>())
        .prop_map(|(mut actors, told, random)| {
            if random % 3 == 0 {
                actors.reverse();
            }
            let ends = (0..actors.len()).map(|index| ((random >> (4 * index + 2)) & 7) as u8).collect();
            Move::Step { actors, ends, told: told || random % 5 != 0 }
        });
    let any_move = prop_oneof![12 => step, 3 => some.prop_map(Move::Tell), 1 => Just(Move::Flush), 1 => (0..6_usize).prop_map(Move::Remove), 1 => Just(Move::Add)];
    prop::collection::vec(any_move, 1..120)
}

/// An episode as the player knows it.
#[derive(Debug, Clone, Default, PartialEq)]
struct Played {
    observations: Vec<f32>,
    rewards: Vec<Option<f64>>,
    end: (bool, bool, bool),
    last: Option<f32>,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever groups act in whatever order, the recorded episodes are exactly those that were played.
    #[test]
    fn any_interleaving_is_recorded_as_it_was_played(moves in moves()) {
        let agent = agent(vec![Linear::new(1, "logits", vec![1.0, 0.0]).slot("default", None)], 6, 1_000_000);
        let mut ids = agent.actor_ids().unwrap();
        let mut open: HashMap<Uuid, Played> = HashMap::new();
        let mut finished: HashMap<Uuid, Vec<Played>> = HashMap::new();
        let mut clock = 0.0;
        for next in moves {
            match next {
                Move::Flush => agent.flush(&mut || Ok(())).unwrap(),
                Move::Tell(actors) => {
                    let chosen: Vec<Uuid> = actors.iter().filter_map(|index| ids.get(*index)).copied().collect();
                    clock += 1.0;
                    let rewards = vec![f64::from(clock); chosen.len()];
                    let no = vec![0; chosen.len()];
                    agent.observe(&chosen, &outcome(&rewards, &no, &no), &FinalObservations::default()).unwrap();
                    for id in chosen {
                        // Actors without an open step are passed over.
                        if let Some(reward @ None) = open.get_mut(&id).and_then(|played| played.rewards.last_mut()) {
                            *reward = Some(f64::from(clock));
                        }
                    }
                }
                Move::Add => ids.extend(agent.add_actors(1, None).unwrap()),
                Move::Remove(index) if ids.len() > 1 && index < ids.len() => {
                    let id = ids.remove(index);
                    agent.remove_actor(id).unwrap();
                    if let Some(played) = open.remove(&id) {
                        finished.entry(id).or_default().push(played);
                    }
                }
                Move::Remove(_) => {}
                Move::Step { actors, ends, told } => {
                    let chosen: Vec<Uuid> = actors.iter().filter_map(|index| ids.get(*index)).copied().collect();
                    if chosen.is_empty() {
                        continue;
                    }
                    let group = agent.group(&chosen).unwrap();
                    let observations: Vec<f32> = chosen.iter().map(|_| { clock += 1.0; clock }).collect();
                    act(&group, &observations, None, &RECORD).unwrap();
                    for (id, observation) in chosen.iter().zip(&observations) {
                        let played = open.entry(*id).or_default();
                        played.observations.push(*observation);
                        played.rewards.push(None);
                    }
                    if !told {
                        continue;
                    }
                    let rewards: Vec<f64> = observations.iter().map(|value| f64::from(*value) * 0.5).collect();
                    let bit = |index: usize, bit: u8| u8::from(ends[index] & bit != 0 && ends[index] & 4 != 0);
                    let terminated: Vec<u8> = (0..chosen.len()).map(|index| bit(index, 1)).collect();
                    let truncated: Vec<u8> = (0..chosen.len()).map(|index| bit(index, 2)).collect();
                    let mut finals = FinalObservations { columns: column(1), ..FinalObservations::default() };
                    for (index, id) in chosen.iter().enumerate() {
                        let played = open.get_mut(id).unwrap();
                        *played.rewards.last_mut().unwrap() = Some(rewards[index]);
                        if terminated[index] + truncated[index] == 0 {
                            continue;
                        }
                        // The final observation is known where both ends come together, or the clock is even.
                        if terminated[index] + truncated[index] == 2 || observations[index] % 2.0 == 0.0 {
                            clock += 1.0;
                            finals.rows.push(index as u32);
                            finals.bytes.extend_from_slice(&clock.to_ne_bytes());
                            played.last = Some(clock);
                        }
                        played.end = (terminated[index] != 0, truncated[index] != 0, true);
                        finished.entry(*id).or_default().extend(open.remove(id));
                    }
                    observe(&group, &outcome(&rewards, &terminated, &truncated), &finals).unwrap();
                }
            }
        }
        agent.shutdown(&mut || Ok(())).unwrap();
        for (id, played) in open {
            finished.entry(id).or_default().push(played);
        }
        let mut recorded: HashMap<Uuid, Vec<(u64, Played)>> = HashMap::new();
        for episode in agent.trajectories() {
            let mut observations = floats(&episode.observations[0]).to_vec();
            let last = episode.has_final_observation.then(|| observations.pop().unwrap());
            let known = |row: usize| episode.reward_known.as_ref().is_none_or(|known| known[row] != 0);
            let rewards = episode.rewards.typed_data::<f64>().iter().enumerate();
            recorded.entry(episode.actor_id).or_default().push((episode.number, Played {
                observations,
                rewards: rewards.map(|(row, reward)| known(row).then_some(*reward)).collect(),
                end: (episode.terminated, episode.truncated, episode.complete),
                last,
            }));
        }
        let recorded: HashMap<Uuid, Vec<Played>> = recorded
            .into_iter()
            .map(|(id, mut episodes)| {
                episodes.sort_by_key(|(number, _)| *number);
                (id, episodes.into_iter().map(|(_, played)| played).collect())
            })
            .collect();
        prop_assert_eq!(recorded, finished);
    }
}
