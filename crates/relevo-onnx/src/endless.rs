//! Loops that do not end: a file may hold one, and a forward pass in it would keep the caller for good.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use relevo_core::spec::TensorSpec;

use crate::{agreement, fixed_batch::run, session::OnnxSession};

/// What one row may take, where the graph has a loop.
const LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pass {
    Runs,
    Ended,
    IsLate,
}

/// Fails where a forward pass on one made-up row takes longer than [`LIMIT`], and ends it.
pub(crate) fn check(session: &mut OnnxSession, inputs: &[TensorSpec]) -> Result<(), String> {
    let row = agreement::rows(inputs, 0).swap_remove(0);
    let options = session.options();
    let end = Instant::now() + LIMIT;
    let state = Arc::new((Mutex::new(Pass::Runs), Condvar::new()));
    let seen = Arc::clone(&state);
    let wait = move || {
        let (pass, changed) = &*seen;
        let mut pass = pass.lock();
        while *pass == Pass::Runs {
            if changed.wait_until(&mut pass, end).timed_out() && *pass == Pass::Runs {
                *pass = Pass::IsLate;
                // It fails for want of memory alone.
                let _ = options.terminate();
            }
        }
    };
    let waiting = thread::Builder::new().name("relevo-endless".into()).spawn(wait);
    let waiting =
        waiting.map_err(|error| format!("no thread can be had to watch a loop in it ({error}); end others"))?;
    // What the model says to made-up inputs is for its contract to look at.
    let _ = run(session, &row);
    let is_late = {
        let mut pass = state.0.lock();
        let is_late = *pass == Pass::IsLate;
        *pass = Pass::Ended;
        is_late
    };
    state.1.notify_one();
    let _ = waiting.join();
    if is_late {
        return Err(format!(
            "a loop in it has not ended after {} s for one made-up row; export the model with a loop that ends",
            LIMIT.as_secs()
        ));
    }
    Ok(())
}
