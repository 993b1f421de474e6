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

use std::panic::{AssertUnwindSafe, catch_unwind};

use clock::NEVER_COMES;
use crowd::Crowd;
use shuttle::{
    Config, FailurePersistence, Runner,
    scheduler::{PctScheduler, RandomScheduler, Scheduler},
};
use sync::Fault;

/// Everyone calls again until it leaves, and passes the baton on: nobody ever needs the clock.
const ORDERLY: Crowd = Crowd {
    blocking: 3,
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

/// Batons that are lost.
const CARELESS: Crowd = Crowd { blocking: 4, waking_patience: 8, lose_batons: true, ..ORDERLY };

/// Everything at once, and closed in the midst.
const CLOSED: Crowd = Crowd { waking_patience: 8, lose_batons: true, closes: true, ..IMPATIENT };

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
    sync::suffer(fault);
    let scheduler = RandomScheduler::new_from_seed(1, 2_000);
    let panic =
        catch_unwind(AssertUnwindSafe(|| run(crowd, scheduler, FailurePersistence::None))).expect_err("nothing");
    panic.downcast_ref::<String>().cloned().expect("a message")
}

#[test]
fn an_orderly_crowd_never_needs_the_clock() {
    hold_up(ORDERLY, 6_000);
}

#[test]
fn callers_of_all_kinds_share_batches() {
    hold_up(MIXED, 6_000);
}

#[test]
fn nobody_waits_for_those_that_vanish() {
    hold_up(IMPATIENT, 6_000);
}

#[test]
fn batons_that_are_lost_are_made_up_for() {
    hold_up(CARELESS, 6_000);
}

#[test]
fn whoever_waits_at_the_end_has_an_answer() {
    hold_up(CLOSED, 6_000);
}

#[test]
fn batches_of_one_run_one_after_the_other() {
    hold_up(Crowd { most_rows: 1, ..MIXED }, 6_000);
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
fn a_crowd_that_is_never_told_who_left_is_found() {
    assert!(found(Fault::LeaveIsSilent, ORDERLY).contains("deadlock"));
}

#[test]
fn a_router_that_forgets_sleepers_is_found() {
    assert!(found(Fault::RouterIgnoresSleepers, CARELESS).contains("deadlock"));
}

#[test]
fn a_closer_that_forgets_batches_is_found() {
    assert!(found(Fault::CloserForgets, CLOSED).contains("deadlock"));
}
