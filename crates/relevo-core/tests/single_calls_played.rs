//! Random interleavings of single and vectorised calls with everything that may change meanwhile: what is recorded is what was
//! played.

mod common;

use std::{collections::HashMap, time::Duration};

use common::{Linear, act, action, answer, batching_agent, floats, observe, outcome, request};
use proptest::prelude::*;
use relevo_core::{
    policy::HeadKind,
    runtime::{ActOptions, Batching, FinalObservations, Recording},
};
use uuid::Uuid;

const RECORD: ActOptions<'_> = ActOptions { deterministic: None, record: Recording::All };

/// What a random player does next.
#[derive(Debug, Clone)]
enum Move {
    /// Each of these actors calls for itself, all at once; they are answered in reverse. Some cancel: the first number says
    /// which. Then those whose bit is in the second number are told what they earned; the third says whose episode ends.
    Singles(Vec<usize>, [u8; 3]),
    /// These actors call together. The numbers are as before.
    Together(Vec<usize>, [u8; 3]),
    /// These are told what they earned, whatever they did; no episode ends.
    Tell(Vec<usize>),
    Flush,
    Add,
    Remove(usize),
    Rename(usize),
    Assign(usize, bool),
    Scale(bool),
    Record(bool),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let some = || prop::sample::subsequence((0..6_usize).collect::<Vec<_>>(), 1..=6).prop_shuffle();
    let one = || 0..6_usize;
    let any_move = prop_oneof![
        10 => (some(), any::<[u8; 3]>()).prop_map(|(actors, bits)| Move::Singles(actors, bits)),
        5 => (some(), any::<[u8; 3]>()).prop_map(|(actors, bits)| Move::Together(actors, bits)),
        3 => some().prop_map(Move::Tell),
        1 => Just(Move::Flush),
        1 => Just(Move::Add),
        1 => one().prop_map(Move::Remove),
        1 => one().prop_map(Move::Rename),
        1 => (one(), any::<bool>()).prop_map(|(actor, other)| Move::Assign(actor, other)),
        1 => any::<bool>().prop_map(Move::Scale),
        2 => any::<bool>().prop_map(Move::Record),
    ];
    prop::collection::vec(any_move, 1..80)
}

/// An episode as the player knows it.
#[derive(Debug, Clone, Default, PartialEq)]
struct Played {
    observations: Vec<f32>,
    rewards: Vec<Option<f64>>,
    ended: bool,
}

/// An actor as the player knows it.
#[derive(Debug, Default)]
struct Player {
    id: Uuid,
    /// Its policy answers the other way round.
    flipped: bool,
    /// The episode that is being recorded, and the id that it began with.
    open: Option<(Uuid, Played)>,
    /// Whether the last step was recorded, if it may still be observed.
    last: Option<bool>,
    /// Whether its episode is not recorded, because recording was off when it acted.
    muted: bool,
    /// Whether it is at home in a handle of its own: a call from elsewhere ends the open step, even if it is cancelled.
    alone: bool,
}

impl Player {
    fn acted(&mut self, observation: f32, recording: bool) {
        self.muted |= !recording;
        self.last = Some(!self.muted);
        if !self.muted {
            let (_, open) = self.open.get_or_insert_with(|| (self.id, Played::default()));
            open.observations.push(observation);
            open.rewards.push(None);
        }
    }

    /// Gives the episode that is over with this, if any.
    fn told(&mut self, reward: f64, ended: bool) -> Option<(Uuid, Played)> {
        let recorded = self.last.take()?;
        self.muted &= !ended;
        if !recorded {
            // The environment moved on without a record.
            return self.open.take();
        }
        let (_, open) = self.open.as_mut()?;
        *open.rewards.last_mut()? = Some(reward);
        open.ended = ended;
        self.open.take_if(|_| ended)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whoever calls how, and whatever changes between: the answers are those of the actor's policy, and the recorded episodes
    /// are exactly those that were played.
    #[test]
    fn any_interleaving_is_answered_and_recorded_as_it_was_played(moves in moves()) {
        let model = |weights: [f32; 2]| Linear::new(1, "logits", weights.to_vec());
        let policies = vec![
            model([1.0, -1.0]).slot("default", Some(HeadKind::Argmax)),
            model([-1.0, 1.0]).slot("flipped", Some(HeadKind::Argmax)),
        ];
        let batching = Batching { max_batch: 4, max_wait: Duration::from_micros(20) };
        let agent = batching_agent(policies, 6, 1_000_000, batching);
        let new = |ids: Vec<Uuid>| ids.into_iter().map(|id| Player { id, ..Player::default() });
        let mut players: Vec<Player> = new(agent.actor_ids().unwrap()).collect();
        let mut played: HashMap<Uuid, Vec<Played>> = HashMap::new();
        let (mut recording, mut clock) = (true, 0.0_f32);
        let expected = |player: &Player, observation: f32| i64::from((observation < 0.0) != player.flipped);
        for next in moves {
            let (singly, actors, [cancels, tells, ends]) = match next {
                Move::Singles(actors, bits) => (true, actors, bits),
                Move::Together(actors, bits) => (false, actors, bits),
                other => {
                    match other {
                        Move::Tell(actors) => {
                            let chosen: Vec<usize> = actors.into_iter().filter(|at| *at < players.len()).collect();
                            let ids: Vec<Uuid> = chosen.iter().map(|at| players[*at].id).collect();
                            let (rewards, no) = (vec![f64::from(clock); ids.len()], vec![0; ids.len()]);
                            agent.observe(&ids, &outcome(&rewards, &no, &no), &FinalObservations::default()).unwrap();
                            for at in chosen {
                                if let Some((id, over)) = players[at].told(f64::from(clock), false) {
                                    played.entry(id).or_default().push(over);
                                }
                            }
                        }
                        Move::Flush => agent.flush(&mut || Ok(())).unwrap(),
                        Move::Add => players.extend(new(agent.add_actors(1, None).unwrap())),
                        Move::Remove(at) if at < players.len() && players.len() > 1 => {
                            let player = players.remove(at);
                            agent.remove_actor(player.id).unwrap();
                            if let Some((id, over)) = player.open {
                                played.entry(id).or_default().push(over);
                            }
                        }
                        Move::Rename(at) if at < players.len() => {
                            let id = Uuid::new_v4();
                            agent.rename_actor(players[at].id, id).unwrap();
                            (players[at].id, players[at].alone) = (id, false);
                        }
                        Move::Assign(at, flipped) if at < players.len() => {
                            agent.assign(&[players[at].id], if flipped { "flipped" } else { "default" }).unwrap();
                            (players[at].flipped, players[at].alone) = (flipped, false);
                        }
                        Move::Scale(up) if up && agent.routers() < 4 => drop(agent.scale_routers(1).unwrap()),
                        Move::Scale(_) if agent.routers() > 1 => drop(agent.scale_routers(-1).unwrap()),
                        Move::Record(on) => {
                            agent.set_recording(on).unwrap();
                            recording = on;
                        }
                        _ => {}
                    }
                    continue;
                }
            };
            let chosen: Vec<usize> = actors.into_iter().filter(|at| *at < players.len()).collect();
            if chosen.is_empty() {
                continue;
            }
            let observations: Vec<f32> = chosen.iter().map(|at| {
                clock += 1.0;
                if (at + clock as usize).is_multiple_of(2) { clock } else { -clock }
            }).collect();
            let mut acted = Vec::new();
            if singly {
                let groups: Vec<_> = chosen.iter().map(|at| agent.group(&[players[*at].id]).unwrap()).collect();
                for at in &chosen {
                    if !std::mem::replace(&mut players[*at].alone, true) {
                        players[*at].last = None;
                    }
                }
                let tickets = groups.iter().zip(&observations).map(|(group, observation)| request(group, *observation).unwrap());
                for (row, ticket) in tickets.enumerate().collect::<Vec<_>>().into_iter().rev() {
                    if cancels & (1 << row) != 0 && cancels & 128 != 0 {
                        drop(ticket);
                        continue;
                    }
                    prop_assert_eq!(action(answer(ticket)), expected(&players[chosen[row]], observations[row]));
                    acted.push(row);
                }
            } else {
                let ids: Vec<Uuid> = chosen.iter().map(|at| players[*at].id).collect();
                let results = act(&agent.group(&ids).unwrap(), &observations, None, &RECORD).unwrap();
                for (row, at) in chosen.iter().enumerate() {
                    players[*at].alone = chosen.len() == 1;
                    prop_assert_eq!(results.actions[0].values::<i64>()[row], expected(&players[*at], observations[row]));
                    acted.push(row);
                }
            }
            for row in acted {
                let (player, reward, ended) = (&mut players[chosen[row]], f64::from(observations[row]) * 0.5, ends & (1 << row) != 0);
                player.acted(observations[row], recording);
                if tells & (1 << row) != 0 {
                    let told = outcome(std::slice::from_ref(&reward), if ended { &[1] } else { &[0] }, &[0]);
                    if singly {
                        observe(&agent.group(&[player.id]).unwrap(), &told, &FinalObservations::default()).unwrap();
                    } else {
                        agent.observe(&[player.id], &told, &FinalObservations::default()).unwrap();
                    }
                    if let Some((id, over)) = player.told(reward, ended) {
                        played.entry(id).or_default().push(over);
                    }
                }
            }
        }
        agent.shutdown(&mut || Ok(())).unwrap();
        for (id, over) in players.into_iter().filter_map(|player| player.open) {
            played.entry(id).or_default().push(over);
        }
        let mut recorded: HashMap<Uuid, Vec<(u64, Played)>> = HashMap::new();
        for episode in agent.trajectories() {
            let known = |row: usize| episode.reward_known.as_ref().is_none_or(|known| known[row] != 0);
            let rewards = episode.rewards.typed_data::<f64>().iter().enumerate();
            recorded.entry(episode.actor_id).or_default().push((episode.number, Played {
                observations: floats(&episode.observations[0]).to_vec(),
                rewards: rewards.map(|(row, reward)| known(row).then_some(*reward)).collect(),
                ended: episode.terminated,
            }));
        }
        let in_order = |mut episodes: Vec<(u64, Played)>| {
            episodes.sort_by_key(|(number, _)| *number);
            episodes.into_iter().map(|(_, played)| played).collect::<Vec<_>>()
        };
        let recorded: HashMap<_, _> = recorded.into_iter().map(|(id, episodes)| (id, in_order(episodes))).collect();
        prop_assert_eq!(recorded, played);
    }
}
