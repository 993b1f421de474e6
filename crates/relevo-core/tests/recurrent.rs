//! Actors of recurrent policies: whoever shares a pass, each gets what it would get alone.

#![expect(clippy::unwrap_used, clippy::float_cmp, reason = "tests fail by panicking; the model's numbers are exact")]

mod common;

use std::{sync::Arc, time::Duration};

use common::{
    act, answer, batching_agent,
    made::{FAILS_ON, Layout, NAN_ON, Remembered, remembering},
    observe, outcome, request,
};
use proptest::prelude::*;
use relevo_core::{
    Error,
    policy::PolicySlot,
    runtime::{ActOptions, ActorGroup, Agent, Batching, FinalObservations, Recording},
    spec::DType,
    tensor::Tensor,
};
use uuid::Uuid;

const RECORD: ActOptions<'_> = ActOptions { deterministic: None, record: Recording::All };
const PEEK: ActOptions<'_> = ActOptions { deterministic: None, record: Recording::Nothing };

fn slot(name: &str, layout: Layout, sign: f32) -> Arc<PolicySlot> {
    remembering(layout, sign).slot(name).unwrap()
}

fn agent(layout: Layout, actors: usize) -> Agent {
    let batching = Batching { max_batch: 4, max_wait: Duration::from_micros(20) };
    batching_agent(
        vec![slot("default", layout, 1.0), slot("flipped", Layout::BatchFirst, -1.0)],
        actors,
        1_000,
        batching,
    )
}

fn handle(agent: &Agent, which: &[usize]) -> Arc<ActorGroup> {
    let ids = agent.actor_ids().unwrap();
    agent.group(&which.iter().map(|at| ids[*at]).collect::<Vec<_>>()).unwrap()
}

fn actions(group: &Arc<ActorGroup>, observations: &[f32], options: &ActOptions<'_>) -> Result<Vec<f32>, Error> {
    act(group, observations, None, options).map(|results| results.actions[0].values::<f32>().to_vec())
}

/// What a fresh actor answers to these observations, one after the other.
fn alone(observations: &[f32]) -> Vec<f32> {
    let mut memory = Remembered::default();
    observations.iter().map(|observation| memory.step(*observation, 1.0)).collect()
}

/// What a random player does next.
#[derive(Debug, Clone)]
enum Move {
    /// Each of these actors calls for itself; some cancel: the first number says which. Then those whose bit is in the second
    /// are told what they earned; the third says whose episode ends.
    Singles(Vec<usize>, [u8; 3]),
    /// These actors call together, recorded or not. The numbers are as before; a call with a bit of the first fails.
    Together(Vec<usize>, bool, [u8; 3]),
    /// One of these observations breaks the model, or its memory.
    Break(Vec<usize>, bool, bool),
    Reset(Vec<usize>),
    ResetWhileWaiting(usize),
    Add,
    Remove(usize),
    Rename(usize),
    Assign(usize, bool),
    Update(usize),
    Scale(bool),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let some = || prop::sample::subsequence((0..6_usize).collect::<Vec<_>>(), 1..=6).prop_shuffle();
    let one = || 0..6_usize;
    let any_move = prop_oneof![
        10 => (some(), any::<[u8; 3]>()).prop_map(|(actors, bits)| Move::Singles(actors, bits)),
        10 => (some(), any::<bool>(), any::<[u8; 3]>()).prop_map(|(actors, record, bits)| Move::Together(actors, record, bits)),
        2 => (some(), any::<bool>(), any::<bool>()).prop_map(|(actors, singly, nan)| Move::Break(actors, singly, nan)),
        2 => some().prop_map(Move::Reset),
        1 => one().prop_map(Move::ResetWhileWaiting),
        1 => Just(Move::Add),
        1 => one().prop_map(Move::Remove),
        1 => one().prop_map(Move::Rename),
        2 => (one(), any::<bool>()).prop_map(|(actor, other)| Move::Assign(actor, other)),
        1 => (0..3_usize).prop_map(Move::Update),
        1 => any::<bool>().prop_map(Move::Scale),
    ];
    prop::collection::vec(any_move, 1..60)
}

/// An actor as the player knows it.
#[derive(Debug, Default)]
struct Player {
    id: Uuid,
    flipped: bool,
    memory: Remembered,
}

impl Player {
    fn step(&mut self, observation: f32) -> f32 {
        self.memory.step(observation, if self.flipped { -1.0 } else { 1.0 })
    }
}

/// Whether it says that the policy failed for this actor.
fn failed_for(error: &Error, actor: Uuid) -> bool {
    matches!(error, Error::OfActor { id, error } if *id == actor && matches!(**error, Error::Inference(_)))
}

const LAYOUTS: [Layout; 3] = [Layout::BatchFirst, Layout::BatchSecond, Layout::One];

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whoever calls how, and whatever changes between: each actor's answers are those of its own memory.
    #[test]
    fn any_interleaving_is_answered_as_each_actor_remembers(first in 0..3_usize, moves in moves()) {
        let agent = agent(LAYOUTS[first], 6);
        let new = |ids: Vec<Uuid>| ids.into_iter().map(|id| Player { id, ..Player::default() });
        let mut players: Vec<Player> = new(agent.actor_ids().unwrap()).collect();
        let mut clock = 0.0_f32;
        for next in moves {
            let there = |actors: Vec<usize>, players: &[Player]| -> Vec<usize> {
                actors.into_iter().filter(|at| *at < players.len()).collect()
            };
            let group = |chosen: &[usize], players: &[Player]| {
                agent.group(&chosen.iter().map(|at| players[*at].id).collect::<Vec<_>>()).unwrap()
            };
            let mut seen = || {
                clock += 1.0;
                clock % 8.0 - 4.0
            };
            match next {
                Move::Singles(actors, [cancels, tells, ends]) => {
                    let chosen = there(actors, &players);
                    let observations: Vec<f32> = chosen.iter().map(|_| seen()).collect();
                    let groups: Vec<_> = chosen.iter().map(|at| group(&[*at], &players)).collect();
                    let calls = groups.iter().zip(&observations);
                    let tickets: Vec<_> = calls.map(|(group, observation)| request(group, *observation).unwrap()).collect();
                    for (row, ticket) in tickets.into_iter().enumerate().rev() {
                        if cancels & (1 << row) != 0 && cancels & 128 != 0 {
                            drop(ticket);
                            continue;
                        }
                        let player = &mut players[chosen[row]];
                        let got = answer(ticket).unwrap().actions[0].values::<f32>()[0];
                        prop_assert_eq!(got, player.step(observations[row]));
                        if tells & (1 << row) != 0 {
                            let ended = u8::from(ends & (1 << row) != 0);
                            observe(&groups[row], &outcome(&[1.0], &[ended], &[0]), &FinalObservations::default()).unwrap();
                            if ended != 0 {
                                player.memory = Remembered::default();
                            }
                        }
                    }
                }
                Move::Together(actors, record, [_, tells, ends]) => {
                    let chosen = there(actors, &players);
                    if chosen.is_empty() {
                        continue;
                    }
                    let observations: Vec<f32> = chosen.iter().map(|_| seen()).collect();
                    let group = group(&chosen, &players);
                    let got = actions(&group, &observations, if record { &RECORD } else { &PEEK }).unwrap();
                    for ((at, observation), got) in chosen.iter().zip(&observations).zip(got) {
                        prop_assert_eq!(got, players[*at].step(*observation));
                    }
                    if tells & 1 != 0 {
                        // Truncated, where the other number is even.
                        let ended: Vec<u8> = (0..chosen.len()).map(|row| u8::from(ends & (1 << row) != 0)).collect();
                        let (rewards, no) = (vec![1.0; chosen.len()], vec![0; chosen.len()]);
                        let told = if tells & 2 != 0 { outcome(&rewards, &ended, &no) } else { outcome(&rewards, &no, &ended) };
                        observe(&group, &told, &FinalObservations::default()).unwrap();
                        for (at, ended) in chosen.iter().zip(ended) {
                            if ended != 0 {
                                players[*at].memory = Remembered::default();
                            }
                        }
                    }
                }
                Move::Break(actors, singly, nan) => {
                    let chosen = there(actors, &players);
                    let mut observations: Vec<f32> = chosen.iter().map(|_| seen()).collect();
                    let (Some(broken), false) = (observations.first_mut(), chosen.is_empty()) else { continue };
                    *broken = if nan { NAN_ON } else { FAILS_ON };
                    if singly {
                        let groups: Vec<_> = chosen.iter().map(|at| group(&[*at], &players)).collect();
                        let calls = groups.iter().zip(&observations);
                        let tickets: Vec<_> = calls.map(|(group, observation)| request(group, *observation).unwrap()).collect();
                        for (row, ticket) in tickets.into_iter().enumerate().rev() {
                            let (player, result) = (&mut players[chosen[row]], answer(ticket));
                            if row == 0 {
                                prop_assert!(result.as_ref().is_err_and(|error| failed_for(error, player.id)), "{result:?}");
                            } else {
                                prop_assert_eq!(result.unwrap().actions[0].values::<f32>()[0], player.step(observations[row]));
                            }
                        }
                    } else {
                        let told = actions(&group(&chosen, &players), &observations, &RECORD).unwrap_err();
                        prop_assert!(failed_for(&told, players[chosen[0]].id), "{told}");
                    }
                }
                Move::Reset(actors) => {
                    // Half of a handle's actors.
                    let chosen = there(actors, &players);
                    if chosen.is_empty() {
                        continue;
                    }
                    let rows: Vec<u8> = (0..chosen.len()).map(|row| (row % 2) as u8).collect();
                    let all = chosen.len() % 2 == 1;
                    group(&chosen, &players).reset_state(if all { None } else { Some(&rows) }).unwrap();
                    for (at, row) in chosen.iter().zip(rows) {
                        if all || row != 0 {
                            players[*at].memory = Remembered::default();
                        }
                    }
                }
                Move::ResetWhileWaiting(at) if at < players.len() => {
                    let (observation, group) = (seen(), group(&[at], &players));
                    let ticket = request(&group, observation).unwrap();
                    group.reset_state(None).unwrap();
                    prop_assert_eq!(answer(ticket).unwrap().actions[0].values::<f32>()[0], players[at].step(observation));
                    players[at].memory = Remembered::default();
                }
                Move::Add => players.extend(new(agent.add_actors(1, None).unwrap())),
                Move::Remove(at) if at < players.len() && players.len() > 1 => {
                    agent.remove_actor(players.remove(at).id).unwrap();
                }
                Move::Rename(at) if at < players.len() => {
                    let id = Uuid::new_v4();
                    agent.rename_actor(players[at].id, id).unwrap();
                    players[at].id = id;
                }
                Move::Assign(at, flipped) if at < players.len() => {
                    let player = &mut players[at];
                    agent.assign(&[player.id], if flipped { "flipped" } else { "default" }).unwrap();
                    if flipped != player.flipped {
                        (player.flipped, player.memory) = (flipped, Remembered::default());
                    }
                }
                Move::Update(layout) => drop(agent.update_model("default", remembering(LAYOUTS[layout], 1.0).load(), None).unwrap()),
                Move::Scale(up) if up && agent.routers() < 4 => drop(agent.scale_routers(1).unwrap()),
                Move::Scale(_) if agent.routers() > 1 => drop(agent.scale_routers(-1).unwrap()),
                _ => {}
            }
        }
    }
}

#[test]
fn each_actor_gets_what_it_would_get_alone() {
    for layout in LAYOUTS {
        let agent = agent(layout, 3);
        let all = handle(&agent, &[0, 1, 2]);
        let rows = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]];
        let expected: Vec<_> = (0..3).map(|actor| alone(&rows.map(|row| row[actor]))).collect();
        for (step, row) in rows.iter().enumerate() {
            let got = actions(&all, row, &RECORD).unwrap();
            assert_eq!(got, expected.iter().map(|actor| actor[step]).collect::<Vec<_>>(), "{layout:?}");
        }
    }
}

#[test]
fn an_end_of_episode_and_nothing_else_empties_the_memory() {
    let agent = agent(Layout::BatchSecond, 2);
    let both = handle(&agent, &[0, 1]);
    let expected = alone(&[1.0, 2.0, 3.0]);
    assert_eq!(actions(&both, &[1.0, 1.0], &RECORD).unwrap(), [expected[0]; 2]);
    // A reward alone leaves it.
    observe(&both, &outcome(&[1.0; 2], &[0, 0], &[0, 0]), &FinalObservations::default()).unwrap();
    // So does a call that is not recorded: but the state goes on.
    assert_eq!(actions(&both, &[2.0, 2.0], &PEEK).unwrap(), [expected[1]; 2]);
    observe(&both, &outcome(&[1.0; 2], &[0, 0], &[0, 1]), &FinalObservations::default()).unwrap();
    assert_eq!(actions(&both, &[3.0, 3.0], &RECORD).unwrap(), [expected[2], alone(&[3.0])[0]]);
}

#[test]
fn a_call_that_fails_for_one_policy_leaves_the_memories_of_all() {
    let agent = agent(Layout::BatchFirst, 2);
    let ids = agent.actor_ids().unwrap();
    agent.assign(&ids[1..], "flipped").unwrap();
    let both = handle(&agent, &[0, 1]);
    let expected = alone(&[1.0, 2.0]);
    assert_eq!(actions(&both, &[1.0, 1.0], &RECORD).unwrap(), [expected[0], -expected[0]]);
    // The first policy's pass works, the second one's does not.
    assert!(actions(&both, &[5.0, FAILS_ON], &RECORD).is_err());
    let told = actions(&both, &[5.0, NAN_ON], &RECORD).unwrap_err().to_string();
    assert!(told.contains(&format!("gave NaN in the state `h_in` for actor {} (row 1)", ids[1])), "{told}");
    assert_eq!(actions(&both, &[2.0, 2.0], &RECORD).unwrap(), [expected[1], -expected[1]]);
}

#[test]
fn an_update_keeps_memories_and_refuses_other_states() {
    let agent = agent(Layout::BatchFirst, 2);
    let both = handle(&agent, &[0, 1]);
    let expected = alone(&[1.0, 2.0, 3.0, 4.0]);
    assert_eq!(actions(&both, &[1.0; 2], &RECORD).unwrap(), [expected[0]; 2]);
    for (step, layout) in [Layout::BatchSecond, Layout::One, Layout::BatchFirst].into_iter().enumerate() {
        agent.update_model("default", remembering(layout, 1.0).load(), None).unwrap();
        let observation = step as f32 + 2.0;
        assert_eq!(actions(&both, &[observation; 2], &RECORD).unwrap(), [expected[step + 1]; 2], "{layout:?}");
    }
    // A model with one state less.
    let mut model = remembering(Layout::BatchFirst, 1.0);
    let whole = model.run.clone();
    model.inputs.truncate(2);
    model.outputs.remove(1);
    model.run = Arc::new(move |inputs| {
        let zeros = |dtype| Tensor::zeros(dtype, &inputs[0].shape[..1]);
        let (steps, masks) = (zeros(DType::Int64), zeros(DType::Float32));
        let mut outputs = whole(&[inputs[0], inputs[1], steps.view(), masks.view()])?;
        outputs.remove(1);
        Ok(outputs)
    });
    let told = agent.update_model("default", model.load(), None).unwrap_err().to_string();
    for part in ["it remembers the states h_in float32 (2, 3), but", "steps_in int64 ()"] {
        assert!(told.contains(part), "{part} is not in: {told}");
    }
    assert_eq!(agent.policy("default").unwrap().current().version, 4);
}

#[test]
fn threads_that_share_batches_do_not_share_memories() {
    for layout in LAYOUTS {
        let agent = Arc::new(agent(layout, 8));
        std::thread::scope(|scope| {
            for actor in 0..8 {
                let agent = agent.clone();
                scope.spawn(move || {
                    let own = handle(&agent, &[actor]);
                    for episode in 0..20 {
                        let observations: Vec<f32> =
                            (0..10).map(|step| (actor + episode + step) as f32 - 12.0).collect();
                        for (step, expected) in alone(&observations).into_iter().enumerate() {
                            assert_eq!(actions(&own, &observations[step..=step], &RECORD).unwrap(), [expected]);
                            let ends = u8::from(step == 9);
                            observe(&own, &outcome(&[1.0], &[ends], &[0]), &FinalObservations::default()).unwrap();
                        }
                    }
                });
            }
            for version in 0..30 {
                agent.update_model("default", remembering(LAYOUTS[version % 3], 1.0).load(), None).unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
    }
}
