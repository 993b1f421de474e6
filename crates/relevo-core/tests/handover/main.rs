//! The hand-over of single calls, whose source this compiles once more, on primitives that let shuttle decide which thread goes
//! on at each step. It reports threads that sleep for ever as deadlocks, and prints the schedule of every failure, to be passed
//! to `shuttle::replay`. It knows no weaker memory than sequentially consistent.

#![expect(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "test code")]

mod batcher;
mod clock;
mod crowd;
#[path = "../../src/runtime/handover.rs"]
mod handover;
mod sync;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use clock::NEVER_COMES;
use crowd::Crowd;
use handover::{Caller, Handover, Latch, Look, NEVER, Turn};
use shuttle::{
    Config, FailurePersistence, Runner,
    scheduler::{PctScheduler, RandomScheduler, Scheduler},
};
use sync::Fault;

/// Everyone calls again until it leaves, and passes the baton on: nobody ever needs the clock.
const ORDERLY: Crowd = Crowd {
    blocking: 3,
    giving_up: 0,
    polling: 0,
    turning: 0,
    calls: 3,
    most_rows: 8,
    patience: NEVER_COMES,
    waking_patience: NEVER_COMES,
    vanish: false,
    lose_batons: false,
    closes: false,
};

/// The same with callers of all kinds, in batches that fill up.
const MIXED: Crowd = Crowd { blocking: 2, polling: 1, turning: 2, most_rows: 2, ..ORDERLY };

/// Actors that vanish, and batches that lose patience with them and with others.
const IMPATIENT: Crowd = Crowd { patience: 12, vanish: true, ..MIXED };

/// The smallest crowd of that kind, of which most schedules can be tried.
const PAIR: Crowd = Crowd { blocking: 2, polling: 0, turning: 0, calls: 1, ..IMPATIENT };

/// Batons that are lost.
const CARELESS: Crowd = Crowd { blocking: 4, waking_patience: 8, lose_batons: true, ..ORDERLY };

/// The same, in batches that the router runs: it wakes one thread, and no more.
const RELAYED: Crowd = Crowd { blocking: 3, polling: 1, patience: 12, ..CARELESS };

/// Threads that give up waiting.
const INTERRUPTED: Crowd = Crowd { giving_up: 3, most_rows: 2, ..ORDERLY };

/// Everything at once, and closed in the midst.
const CLOSED: Crowd = Crowd { waking_patience: 8, giving_up: 2, lose_batons: true, closes: true, ..IMPATIENT };

fn run(crowd: Crowd, scheduler: impl Scheduler + 'static, persistence: FailurePersistence) {
    let mut config = Config::new();
    config.failure_persistence = persistence;
    config.stack_size = 1 << 17;
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(move || crowd.play());
}

fn hold_up(crowd: Crowd, schedules: usize) {
    run(crowd, RandomScheduler::new(schedules), FailurePersistence::Print);
    for depth in [2, 4] {
        run(crowd, PctScheduler::new(depth, schedules / 2), FailurePersistence::Print);
    }
}

/// Whether some schedule shows that something is broken, and what it shows.
fn found(fault: Fault, crowd: Crowd) -> String {
    found_by(RandomScheduler::new_from_seed(1, 20_000), fault, crowd)
}

fn found_by(scheduler: impl Scheduler + 'static, fault: Fault, crowd: Crowd) -> String {
    sync::suffer(fault);
    let panic =
        catch_unwind(AssertUnwindSafe(|| run(crowd, scheduler, FailurePersistence::None))).expect_err("nothing");
    panic.downcast_ref::<String>().cloned().expect("a message")
}

#[test]
fn an_orderly_crowd_never_needs_the_clock() {
    hold_up(ORDERLY, 12_000);
}

#[test]
fn callers_of_all_kinds_share_batches() {
    hold_up(MIXED, 12_000);
}

#[test]
fn nobody_waits_for_those_that_vanish() {
    hold_up(IMPATIENT, 12_000);
    hold_up(PAIR, 12_000);
}

#[test]
fn batons_that_are_lost_are_made_up_for() {
    hold_up(CARELESS, 12_000);
}

#[test]
fn batons_that_are_lost_are_made_up_for_where_the_router_runs_batches() {
    hold_up(RELAYED, 12_000);
}

#[test]
fn threads_that_give_up_harm_nobody() {
    hold_up(INTERRUPTED, 12_000);
}

#[test]
fn whoever_waits_at_the_end_has_an_answer() {
    hold_up(CLOSED, 12_000);
}

#[test]
fn batches_of_one_run_one_after_the_other() {
    hold_up(Crowd { most_rows: 1, ..MIXED }, 12_000);
}

/// Lets one thread do things in order.
fn alone(steps: fn()) {
    shuttle::check_random(steps, 1);
}

fn push(handover: &Handover<u8>, epoch: u64, now: u64, caller: Caller, batch: u8) -> Turn {
    handover.push(epoch, now, caller, || batch, |_| ()).unwrap().2
}

#[test]
fn full_batches_go_first_and_count_as_waiting() {
    alone(|| {
        let handover = Handover::new(2, 100);
        assert_eq!(push(&handover, NEVER, 0, Caller::Blocks, 1), Turn::Run);
        // While it runs, others come.
        assert_eq!(push(&handover, NEVER, 1, Caller::Polls, 2), Turn::WaitUntil(101));
        assert_eq!(push(&handover, NEVER, 2, Caller::Polls, 0), Turn::Wait);
        assert_eq!(push(&handover, NEVER, 3, Caller::Blocks, 3), Turn::WaitUntil(103));
        assert_eq!(handover.queue(), 3);
        let (_, due) = handover.finish(1, || 4);
        assert!(due);
        assert_eq!(handover.look(1_000), Look::Run(2));
        assert_eq!(handover.queue(), 1);
        handover.finish(2, || 5);
        assert_eq!(handover.look(6), Look::At(103));
        assert_eq!(handover.look(103), Look::Run(3));
        assert_eq!(handover.queue(), 0);
    });
}

#[test]
fn an_event_loop_in_a_hurry_gives_nobody_up() {
    alone(|| {
        let handover = Handover::new(8, 100);
        assert_eq!(push(&handover, NEVER, 0, Caller::Blocks, 1), Turn::Run);
        let (epoch, _) = handover.finish(1, || 1);
        assert_eq!(push(&handover, NEVER, 2, Caller::Turns, 2), Turn::WaitUntil(102));
        assert_eq!(handover.hurry(|batch| *batch == 2, false), Turn::CallRouter);
        assert_eq!(handover.look(3), Look::Run(2));
        handover.finish(0, || 4);
        // The first one is still out: others wait for it, until it comes.
        assert_eq!(push(&handover, NEVER, 5, Caller::Blocks, 3), Turn::WaitUntil(105));
        assert_eq!(push(&handover, epoch, 6, Caller::Blocks, 0), Turn::Run);
    });
}

#[test]
fn a_latch_tells_since_when_the_next_thread_waits() {
    alone(|| {
        let latch = Arc::new(Latch::default());
        let threads = [latch.clone(), latch.clone()].map(|latch| shuttle::thread::spawn(move || latch.wait()));
        // Both have gone to sleep once nothing else can go on.
        (0..100).for_each(|_| shuttle::thread::yield_now());
        assert_eq!(latch.sleeps_since(), None);
        assert!(latch.open(5));
        assert_eq!(latch.sleeps_since(), Some(5));
        latch.wake(1, 7);
        assert_eq!(latch.sleeps_since(), Some(7));
        latch.wake(1, 9);
        assert_eq!(latch.sleeps_since(), None);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn a_thread_that_is_not_woken_is_found() {
    assert!(found(Fault::LostUnpark, ORDERLY).contains("deadlock"));
}

#[test]
fn an_alarm_that_is_not_set_is_found() {
    assert!(found(Fault::LostStore, IMPATIENT).contains("deadlock"));
}

#[test]
fn a_latch_that_opens_unseen_is_found() {
    assert!(found(Fault::StaleLoad, MIXED).contains("deadlock"));
}

#[test]
fn a_latch_that_opens_late_is_found() {
    assert!(found(Fault::LateStore, MIXED).contains("deadlock"));
}

#[test]
fn batches_that_became_due_unnoticed_are_found() {
    assert!(found(Fault::FinishIsSilent, MIXED).contains("deadlock"));
}

#[test]
fn a_batch_that_is_out_of_patience_as_another_one_ends_is_found() {
    let scheduler = PctScheduler::new_from_seed(1, 3, 100_000);
    assert!(found_by(scheduler, Fault::FinishIsLate, PAIR).contains("deadlock"));
}

#[test]
fn a_crowd_that_is_never_told_who_left_is_found() {
    assert!(found(Fault::LeaveIsSilent, ORDERLY).contains("deadlock"));
}

#[test]
fn a_thread_that_is_gone_and_is_woken_for_another_one_is_found() {
    assert!(found(Fault::LostThread, INTERRUPTED).contains("deadlock"));
}

#[test]
fn a_router_that_forgets_sleepers_is_found() {
    assert!(found(Fault::RouterIgnoresSleepers, CARELESS).contains("deadlock"));
}

#[test]
fn a_closer_that_forgets_batches_is_found() {
    assert!(found(Fault::CloserForgets, CLOSED).contains("deadlock"));
}
