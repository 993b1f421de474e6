//! Single calls, from threads and from futures, with a linear model whose every number can be worked out by hand.

#![expect(
    clippy::float_cmp,
    clippy::panic,
    clippy::unwrap_used,
    reason = "test code; numbers are passed on, not computed"
)]

mod common;

use std::{
    collections::HashMap,
    pin::pin,
    sync::{
        Arc, Barrier,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Wake, Waker},
    thread::scope,
    time::{Duration, Instant},
};

use common::{
    Linear, Sessions, act, action, agent, answer, batching_agent, floats, flushed, observe, outcome, request,
};
use relevo_core::{
    Error,
    policy::{HeadKind, PolicyOptions, PolicySlot},
    runtime::{
        ActOptions, ActionResults, ActorGroup, Agent, Batching, Caller, FinalObservations, Recording, Request,
        RouterReport, Ticket,
    },
};
use uuid::Uuid;

const RECORD: ActOptions<'_> = ActOptions { deterministic: None, record: Recording::All };

/// Nobody waits for the clock in a test that ends.
const FOR_EVER: Batching = Batching { max_batch: 256, max_wait: Duration::MAX };

/// One input, two logits: the action is 0 where the input is above zero, and 1 below.
fn sign() -> Linear {
    Linear::new(1, "logits", vec![1.0, -1.0])
}

/// Single-call handles on all actors.
fn singles(agent: &Agent) -> Vec<Arc<ActorGroup>> {
    agent.actor_ids().unwrap().iter().map(|id| agent.group(&[*id]).unwrap()).collect()
}

/// An observation and the action that it is answered with.
fn puzzle(number: usize) -> (f32, i64) {
    let sign = if number.is_multiple_of(3) { -1.0 } else { 1.0 };
    (sign * (number + 1) as f32, i64::from(sign < 0.0))
}

fn end(group: &Arc<ActorGroup>, reward: f64, ended: bool) {
    observe(group, &outcome(&[reward], &[u8::from(ended)], &[0]), &FinalObservations::default()).unwrap();
}

fn end_all(groups: &[Arc<ActorGroup>]) {
    for group in groups {
        end(group, 0.0, true);
    }
}

fn all_give_zero(tickets: Vec<Ticket>) {
    for ticket in tickets {
        assert_eq!(action(answer(ticket)), 0);
    }
}

fn router(agent: &Agent) -> RouterReport {
    agent.stats().unwrap().routers.swap_remove(0)
}

/// Observations of all recorded steps, actor by actor.
fn recorded(agent: &Agent) -> HashMap<Uuid, Vec<f32>> {
    let mut found: HashMap<Uuid, Vec<f32>> = HashMap::new();
    for episode in flushed(agent) {
        found.entry(episode.actor_id).or_default().extend(floats(&episode.observations[0]));
    }
    found
}

#[test]
fn threads_share_batches_and_each_gets_its_own_answer() {
    let (threads, calls) = (64, 50);
    let patient = Batching { max_batch: 256, max_wait: Duration::from_millis(50) };
    let agent = batching_agent(vec![sign().slot("default", Some(HeadKind::Argmax))], threads, usize::MAX, patient);
    // Where a machine is busy, a thread might make all its calls before the next one has begun.
    let all_have_called = Barrier::new(threads);
    scope(|scope| {
        for (thread, group) in singles(&agent).into_iter().enumerate() {
            let all_have_called = &all_have_called;
            scope.spawn(move || {
                for call in 0..calls {
                    if call == 1 {
                        all_have_called.wait();
                    }
                    let (observation, expected) = puzzle(thread * calls + call);
                    assert_eq!(action(act(&group, &[observation], None, &RECORD)), expected);
                    end(&group, 1.0, call + 1 == calls);
                }
            });
        }
    });
    let report = router(&agent);
    assert_eq!((report.counts.rows, report.counts.failed, report.queue), ((threads * calls) as u64, 0, 0));
    assert!(report.counts.batches < report.counts.rows, "{} batches", report.counts.batches);
    let recorded = recorded(&agent);
    for (thread, id) in agent.actor_ids().unwrap().iter().enumerate() {
        assert_eq!(recorded[id], (0..calls).map(|call| puzzle(thread * calls + call).0).collect::<Vec<_>>());
    }
}

#[test]
fn futures_of_one_thread_share_a_batch() {
    let patient = Batching { max_batch: 256, max_wait: Duration::from_millis(500) };
    let agent = batching_agent(vec![sign().slot("default", Some(HeadKind::Argmax))], 8, 100, patient);
    let groups = singles(&agent);
    for round in 0..50 {
        let tickets: Vec<_> =
            groups.iter().enumerate().map(|(at, group)| request(group, puzzle(8 * round + at).0).unwrap()).collect();
        // Answered in another order than asked.
        for (at, ticket) in tickets.into_iter().enumerate().rev() {
            assert_eq!(action(answer(ticket)), puzzle(8 * round + at).1);
            end(&groups[at], 0.0, round == 49);
        }
    }
    // The first calls find nobody to wait for; from then on the crowd is one batch.
    let report = router(&agent);
    assert!((50..60).contains(&report.counts.batches), "{} batches", report.counts.batches);
    assert!(recorded(&agent).values().all(|steps| steps.len() == 50));
}

/// Has all actors call once and then all in one batch, `send` being a call of the one at that place: from here on, each waits
/// for the calls of all the others. The first one is called for before the others come, or the router might take it on its own
/// while they do, and they would wait for it.
fn fall_into_step(actors: usize, send: impl Fn(usize) -> Ticket) {
    answer(send(0)).unwrap();
    let others: Vec<_> = (1..actors).map(&send).collect();
    answer(send(0)).unwrap();
    for ticket in others {
        answer(ticket).unwrap();
    }
}

/// Two actors whose last calls shared a batch: each waits for the other's next one.
fn in_step(batching: Batching) -> (Agent, [Arc<ActorGroup>; 2]) {
    let agent = batching_agent(vec![sign().slot("default", Some(HeadKind::Argmax))], 2, 100, batching);
    let pair: [_; 2] = singles(&agent).try_into().unwrap();
    assert_eq!(action(answer(request(&pair[0], 1.0).unwrap())), 0);
    let second = request(&pair[1], -1.0).unwrap();
    assert_eq!(action(answer(request(&pair[0], 2.0).unwrap())), 0);
    assert_eq!(action(answer(second)), 1);
    (agent, pair)
}

#[test]
fn a_ticket_that_is_dropped_before_its_batch_ran_leaves_no_trace() {
    let (agent, [left, right]) = in_step(FOR_EVER);
    let mut cancelled = request(&left, 3.0).unwrap();
    assert!(matches!(cancelled.finish(), Err(Error::State(_))));
    let again = request(&left, 4.0).unwrap_err();
    assert!(again.to_string().contains("still waits"));
    assert_eq!(again.actor(), Some(left.actors[0].id()));
    drop(cancelled);
    let waiting = request(&left, 5.0).unwrap();
    assert_eq!(action(answer(request(&right, -6.0).unwrap())), 1);
    assert_eq!(action(answer(waiting)), 0);
    drop(request(&left, 7.0).unwrap());
    // Nobody waits for the one that cancelled.
    assert_eq!(action(answer(request(&right, 8.0).unwrap())), 0);
    assert_eq!(action(act(&right, &[-9.0], None, &RECORD)), 1);
    end_all(&[left, right]);
    let (recorded, ids) = (recorded(&agent), agent.actor_ids().unwrap());
    assert_eq!(recorded[&ids[0]], [1.0, 2.0, 5.0]);
    assert_eq!(recorded[&ids[1]], [-1.0, -6.0, 8.0, -9.0]);
}

#[test]
fn a_ticket_that_is_dropped_after_its_batch_ran_leaves_no_trace() {
    let (agent, [left, right]) = in_step(FOR_EVER);
    let cancelled = request(&left, 3.0).unwrap();
    assert_eq!(action(answer(request(&right, 4.0).unwrap())), 0);
    drop(cancelled);
    assert_eq!(action(answer(request(&right, -5.0).unwrap())), 1);
    let waiting = request(&left, 6.0).unwrap();
    assert_eq!(action(act(&right, &[7.0], None, &RECORD)), 0);
    assert_eq!(action(answer(waiting)), 0);
    end_all(&[left, right]);
    let (recorded, ids) = (recorded(&agent), agent.actor_ids().unwrap());
    assert_eq!(recorded[&ids[0]], [1.0, 2.0, 6.0]);
    assert_eq!(recorded[&ids[1]], [-1.0, 4.0, -5.0, 7.0]);
}

#[test]
fn whoever_should_run_a_batch_and_leaves_runs_it_for_the_others() {
    let (_agent, [left, right]) = in_step(FOR_EVER);
    let waiting = request(&left, -3.0).unwrap();
    let bytes = 4.0_f32.to_ne_bytes();
    let observations: [&[u8]; 1] = [&bytes];
    let request = Request::new(&observations);
    drop(right.try_begin().unwrap().unwrap().submit(&request, Caller::Blocks).unwrap());
    assert_eq!(action(answer(waiting)), 1);
}

#[test]
fn the_longest_wait_and_none_at_all_are_served() {
    for max_wait in [Duration::MAX, Duration::ZERO] {
        let (agent, [left, right]) = in_step(Batching { max_batch: 256, max_wait });
        for _ in 0..20 {
            let waiting = request(&left, 1.0).unwrap();
            assert_eq!(action(act(&right, &[-1.0], None, &RECORD)), 1);
            assert_eq!(action(answer(waiting)), 0);
        }
        assert_eq!(router(&agent).counts.restarts, 0);
    }
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker panicked");
    }
}

/// A waker that panics takes neither the thread that runs the batch with it, nor the answers of others.
#[test]
fn a_waker_that_panics_harms_nobody_else() {
    for router_runs in [true, false] {
        let agent = batching_agent(vec![sign().slot("default", Some(HeadKind::Argmax))], 4, 100, FOR_EVER);
        let groups = singles(&agent);
        fall_into_step(4, |at| request(&groups[at], 1.0).unwrap());

        let mut panicking = request(&groups[0], -2.0).unwrap();
        let waker = Waker::from(Arc::new(Panics));
        assert!(pin!(&mut panicking).poll(&mut Context::from_waker(&waker)).is_pending());
        let polled = request(&groups[1], 3.0).unwrap();
        scope(|scope| {
            let blocked = scope.spawn(|| act(&groups[2], &[-4.0], None, &RECORD));
            let polled = scope.spawn(|| answer(polled));
            while router(&agent).queue < 3 {
                std::thread::yield_now();
            }
            // Time for both to fall asleep.
            std::thread::sleep(Duration::from_millis(20));
            let last = if router_runs {
                answer(request(&groups[3], 5.0).unwrap())
            } else {
                act(&groups[3], &[5.0], None, &RECORD)
            };
            assert_eq!(action(last), 0);
            assert_eq!(action(blocked.join().unwrap()), 1);
            assert_eq!(action(polled.join().unwrap()), 0);
        });
        assert_eq!(action(panicking.finish()), 1);
        let waiting: Vec<_> = groups[1..].iter().map(|group| request(group, 1.0).unwrap()).collect();
        assert_eq!(action(act(&groups[0], &[-1.0], None, &RECORD)), 1);
        all_give_zero(waiting);
        assert_eq!((router(&agent).counts.restarts, router(&agent).counts.failed), (0, 0));
    }
}

#[test]
fn a_model_that_panics_on_a_row_fails_that_row_alone() {
    let mut model = sign();
    model.panics_on = Some(13.0);
    let sessions = model.sessions.clone();
    let agent = agent(vec![model.slot("default", Some(HeadKind::Argmax))], 8, 100);
    let groups = singles(&agent);
    for round in 0..10 {
        let made = sessions.asked();
        let panics = |at: usize| at == round % 8;
        let number = |at: usize| if panics(at) { 13.0 } else { puzzle(at).0 };
        let tickets: Vec<_> =
            groups.iter().enumerate().map(|(at, group)| request(group, number(at)).unwrap()).collect();
        for (at, ticket) in tickets.into_iter().enumerate() {
            match answer(ticket) {
                Err(Error::OfActor { id, error }) if panics(at) => {
                    let text = error.to_string();
                    assert!(text.contains("told to panic") && text.contains("nothing was recorded"), "{text}");
                    assert!(text.contains(&id.to_string()));
                    assert_eq!(id, agent.actor_ids().unwrap()[at]);
                }
                other => {
                    assert_eq!(action(other), puzzle(at).1);
                    end(&groups[at], 0.0, true);
                }
            }
        }
        // The worker that panicked serves no batch more.
        assert_eq!(action(act(&groups[0], &[1.0], None, &RECORD)), 0);
        end(&groups[0], 0.0, true);
        assert!(sessions.asked() > made);
    }
    let report = router(&agent);
    assert_eq!((report.counts.failed, report.counts.restarts), (10, 0));
    assert!(recorded(&agent).values().flatten().all(|observation| *observation != 13.0));
}

/// Whether a call failed for its actor, by an inference error with these words.
fn told(result: Result<Arc<ActionResults>, Error>, words: &str) -> bool {
    let Err(Error::OfActor { error, .. }) = result else { return false };
    matches!(*error, Error::Inference(text) if text.contains(words))
}

#[test]
fn rows_whose_numbers_cannot_be_used_cost_the_others_no_pass_of_their_own() {
    let model = || Linear::new(2, "logits", vec![1.0, 0.0, 0.0, 1.0]);
    let (counted, asked) = (model(), [None, Some(true), Some(false)]);
    let passes = counted.passes.clone();
    let agent = batching_agent(vec![counted.slot("default", Some(HeadKind::Categorical))], 6, 100, FOR_EVER);
    let alone = Batching { max_batch: 1, max_wait: Duration::ZERO };
    let twin = batching_agent(vec![model().slot("default", Some(HeadKind::Categorical))], 6, 100, alone);
    let (groups, twins) = (singles(&agent), singles(&twin));
    for groups in [&groups, &twins] {
        let observation: [&[u8]; 1] = [bytemuck::cast_slice(&[0.0_f32, 0.0])];
        fall_into_step(6, |at| groups[at].request(&Request::new(&observation)).unwrap());
    }
    let before = (passes.load(Ordering::SeqCst), router(&agent).counts.batches);
    for round in 0..20 {
        let spoilt = |at: usize| at == round % 6 || at == round / 2 % 6;
        let observation = |at: usize| [0.1 * at as f32, if spoilt(at) { f32::INFINITY } else { 0.05 * round as f32 }];
        let send = |group: &Arc<ActorGroup>, at: usize| {
            let observation = observation(at);
            let observations: [&[u8]; 1] = [bytemuck::cast_slice(&observation)];
            // Of one kind in every second round.
            let deterministic = if round % 2 == 0 { None } else { asked[at % 3] };
            group.request(&Request { deterministic, ..Request::new(&observations) }).unwrap()
        };
        let tickets: Vec<_> = groups.iter().enumerate().map(|(at, group)| send(group, at)).collect();
        for (at, ticket) in tickets.into_iter().enumerate() {
            let result = answer(ticket);
            if spoilt(at) {
                let error = result.unwrap_err();
                assert_eq!(error.actor(), Some(groups[at].actors[0].id()));
                assert!(error.to_string().contains("nothing was recorded"), "{error}");
                continue;
            }
            // What is drawn depends on nobody else, nor on what has failed.
            let (left, right) = (result.unwrap(), answer(send(&twins[at], at)).unwrap());
            assert_eq!(left.actions[0].values::<i64>(), right.actions[0].values::<i64>());
            assert_eq!(left.log_probs, right.log_probs);
        }
    }
    let report = router(&agent);
    assert_eq!((passes.load(Ordering::SeqCst) - before.0, report.counts.batches - before.1), (20, 20));
    assert_eq!(report.counts.failed, (0..20).map(|round| if round % 6 == round / 2 % 6 { 1 } else { 2 }).sum::<u64>());
}

#[test]
fn nobody_waits_for_an_actor_that_is_assigned_to_another_policy() {
    let in_step = || {
        let slots = ["default", "other"].map(|name| sign().slot(name, Some(HeadKind::Argmax)));
        let agent = batching_agent(slots.to_vec(), 2, 100, FOR_EVER);
        let [left, right] = singles(&agent).try_into().unwrap();
        assert_eq!(action(answer(request(&left, 1.0).unwrap())), 0);
        let second = request(&right, -1.0).unwrap();
        assert_eq!(action(answer(request(&left, 2.0).unwrap())), 0);
        assert_eq!(action(answer(second)), 1);
        (agent, left, right)
    };
    // While it is out.
    let (agent, left, right) = in_step();
    agent.assign(&[left.actors[0].id()], "other").unwrap();
    assert_eq!(action(answer(request(&right, 3.0).unwrap())), 0);
    assert_eq!(action(answer(request(&left, 3.0).unwrap())), 0);
    // While others wait for it.
    let (agent, left, right) = in_step();
    let waiting = request(&right, 3.0).unwrap();
    agent.assign(&[left.actors[0].id()], "other").unwrap();
    assert_eq!(action(answer(waiting)), 0);
    // While it waits itself: from its answer on.
    let (agent, left, right) = in_step();
    let waiting = request(&left, -3.0).unwrap();
    agent.assign(&[left.actors[0].id()], "other").unwrap();
    assert_eq!(action(answer(request(&right, 3.0).unwrap())), 0);
    assert_eq!(action(answer(waiting)), 1);
    assert_eq!(action(answer(request(&right, 3.0).unwrap())), 0);
}

#[test]
fn nobody_waits_for_an_actor_that_scaling_places_elsewhere() {
    // While they are out: the first and third stay, and wait for each other; the second and fourth go.
    let agent = batching_agent(vec![sign().slot("default", Some(HeadKind::Argmax))], 4, 100, FOR_EVER);
    let groups = singles(&agent);
    fall_into_step(4, |at| request(&groups[at], 1.0).unwrap());
    let before = router(&agent).counts.batches;
    agent.scale_routers(1).unwrap();
    let waiting = request(&groups[0], -1.0).unwrap();
    assert_eq!(action(answer(request(&groups[2], 1.0).unwrap())), 0);
    assert_eq!(action(answer(waiting)), 1);
    assert_eq!(router(&agent).counts.batches, before + 1);

    // While one waits: from its answer on.
    let (agent, [left, right]) = in_step(FOR_EVER);
    let waiting = request(&right, -1.0).unwrap();
    agent.scale_routers(1).unwrap();
    assert_eq!(action(answer(request(&left, 1.0).unwrap())), 0);
    assert_eq!(action(answer(waiting)), 1);
    assert_eq!(action(answer(request(&left, 1.0).unwrap())), 0);
    assert_eq!(action(answer(request(&right, 1.0).unwrap())), 0);
}

#[test]
fn a_model_that_makes_no_session_fails_calls_until_it_does() {
    for fate in [Sessions::FAIL, Sessions::PANIC] {
        let model = sign();
        let sessions = model.sessions.clone();
        let agent = agent(vec![model.slot("default", Some(HeadKind::Argmax))], 8, 100);
        let groups = singles(&agent);
        sessions.will(fate);
        for _ in 0..5 {
            let tickets: Vec<_> = groups[1..].iter().map(|group| request(group, 1.0).unwrap()).collect();
            let blocked = act(&groups[0], &[1.0], None, &RECORD);
            for result in tickets.into_iter().map(answer).chain([blocked]) {
                assert!(told(result, "session"));
            }
        }
        sessions.will(Sessions::WORK);
        let tickets: Vec<_> = groups[1..].iter().map(|group| request(group, 1.0).unwrap()).collect();
        assert_eq!(action(act(&groups[0], &[-1.0], None, &RECORD)), 1);
        all_give_zero(tickets);
        end_all(&groups);
        assert_eq!((router(&agent).counts.failed, router(&agent).counts.restarts), (40, 0));
        assert!(recorded(&agent).values().all(|steps| steps.len() == 1));
    }
}

#[test]
fn a_router_that_dies_is_replaced_and_its_callers_are_told() {
    let model = sign();
    let sessions = model.sessions.clone();
    let agent = agent(vec![model.slot("default", Some(HeadKind::Argmax))], 4, 100);
    let groups = singles(&agent);
    sessions.will(Sessions::KILL);
    for deaths in 1..5 {
        let tickets: Vec<_> = groups.iter().map(|group| request(group, 1.0).unwrap()).collect();
        assert!(tickets.into_iter().map(answer).all(|result| told(result, "ended before its time")));
        let started = Instant::now();
        while router(&agent).counts.restarts < deaths {
            assert!(started.elapsed() < Duration::from_secs(10), "{} routers died", router(&agent).counts.restarts);
            std::thread::yield_now();
        }
    }
    for _ in 0..5 {
        scope(|scope| {
            let tickets: Vec<_> = groups[..2].iter().map(|group| request(group, 1.0).unwrap()).collect();
            // In the same batch, or in one that it runs itself: then the thread dies in the router's place.
            let blocked = groups[2..].iter().map(|group| scope.spawn(|| act(group, &[1.0], None, &RECORD)));
            let blocked: Vec<_> = blocked.collect();
            assert!(tickets.into_iter().map(answer).all(|result| told(result, "ended before its time")));
            assert!(
                blocked
                    .into_iter()
                    .all(|thread| thread.join().map_or(true, |result| told(result, "ended before its time")))
            );
        });
    }
    sessions.will(Sessions::WORK);
    let tickets: Vec<_> = groups[1..].iter().map(|group| request(group, 1.0).unwrap()).collect();
    assert_eq!(action(act(&groups[0], &[-1.0], None, &RECORD)), 1);
    all_give_zero(tickets);
    agent.shutdown(&mut || Ok(())).unwrap();
}

#[test]
fn two_agents_of_one_process_know_nothing_of_each_other() {
    let swapped = Linear::new(1, "logits", vec![-1.0, 1.0]);
    let agents = [sign(), swapped].map(|model| agent(vec![model.slot("default", Some(HeadKind::Argmax))], 8, 1_000));
    scope(|scope| {
        for (flips, agent) in agents.iter().enumerate() {
            for (at, group) in singles(agent).into_iter().enumerate() {
                scope.spawn(move || {
                    for call in 0..100 {
                        let (observation, expected) = puzzle(100 * at + call);
                        let flipped = if flips == 1 { 1 - expected } else { expected };
                        assert_eq!(action(act(&group, &[observation], None, &RECORD)), flipped);
                        end(&group, 0.0, call == 99);
                    }
                });
            }
        }
    });
    let [first, second] = agents;
    first.shutdown(&mut || Ok(())).unwrap();
    assert_eq!(action(act(&singles(&second)[0], &[1.0], None, &RECORD)), 1);
    second.shutdown(&mut || Ok(())).unwrap();
    // Not even how much the other one was asked.
    assert_eq!([first, second].map(|agent| agent.stats().unwrap().steps_recorded), [800, 801]);
}

/// With and without a recorder, at once and with callers that would wait for ever.
#[test]
fn a_shutdown_amid_traffic_answers_every_caller() {
    for (trajectories, max_wait) in
        [(usize::MAX, Duration::from_micros(500)), (usize::MAX, Duration::MAX), (0, Duration::MAX)]
    {
        let batching = Batching { max_batch: 64, max_wait };
        let agent = batching_agent(vec![sign().slot("default", Some(HeadKind::Argmax))], 200, trajectories, batching);
        let (begin, answered, refused) = (Barrier::new(201), AtomicU64::new(0), AtomicUsize::new(0));
        scope(|scope| {
            for (at, group) in singles(&agent).into_iter().enumerate() {
                let (begin, answered, refused) = (&begin, &answered, &refused);
                scope.spawn(move || {
                    begin.wait();
                    for call in at.. {
                        let (observation, expected) = puzzle(call);
                        let result = match at % 2 {
                            0 => act(&group, &[observation], None, &RECORD),
                            _ => request(&group, observation).and_then(answer),
                        };
                        match result {
                            Ok(_) => assert_eq!(action(result), expected),
                            Err(Error::State(message)) => {
                                assert!(message.contains("shut down"), "{message}");
                                refused.fetch_add(1, Ordering::Relaxed);
                                return;
                            }
                            Err(other) => panic!("{other}"),
                        }
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            begin.wait();
            std::thread::sleep(Duration::from_millis(50));
            agent.shutdown(&mut || Ok(())).unwrap();
        });
        assert_eq!(refused.into_inner(), 200);
        let stats = agent.stats().unwrap();
        assert!(stats.routers.is_empty(), "{} routers still run", stats.routers.len());
        if trajectories > 0 {
            assert_eq!(stats.steps_recorded, answered.into_inner());
        }
    }
}

#[test]
fn policies_on_different_devices_get_routers_of_their_own() {
    let slot = |name: &str, device: &str| {
        let mut loaded = sign().load();
        loaded.options.device = device.into();
        Arc::new(PolicySlot::new(name, loaded, PolicyOptions::with_head(HeadKind::Argmax)).unwrap())
    };
    let agent = agent(vec![slot("here", "cpu"), slot("there", "other:0")], 5, 10);
    agent.scale_routers(1).unwrap();
    let placed = || {
        let routers = agent.stats().unwrap().routers.into_iter();
        routers.map(|router| (router.device, router.index, router.actors, router.counts.rows)).collect::<Vec<_>>()
    };
    let at = |device: &str, index, actors, rows| (device.to_string(), index, actors, rows);
    assert_eq!(placed(), [at("cpu", 0, 3, 0), at("cpu", 1, 2, 0)]);
    let ids = agent.actor_ids().unwrap();
    agent.assign(&ids[..2], "there").unwrap();
    for group in singles(&agent) {
        assert_eq!(action(act(&group, &[-1.0], None, &RECORD)), 1);
    }
    let expected = [at("cpu", 0, 2, 2), at("cpu", 1, 1, 1), at("other:0", 0, 1, 1), at("other:0", 1, 1, 1)];
    assert_eq!(placed(), expected);
}
