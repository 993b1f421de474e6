//! Our side of `benches/peers/relayrl_single_calls.py`: callers with an actor each that act and observe, as threads or as tasks.
//!
//! Usage: `single-calls single-calls MODEL ROWS threads|tasks CALLS ROUTERS`, as RelayRL's program takes it. For each line that
//! it reads, every caller makes CALLS calls, and it prints how many nanoseconds all took together, and each.

#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop")]

use std::{
    collections::BTreeMap,
    error::Error,
    io::{BufRead, Write},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use relevo_core::{
    policy::{HeadKind, LoadOptions, LoadedModel, PolicyOptions, PolicySlot},
    runtime::{
        ActOptions, ActionResults, ActorGroup, Agent, AgentConfig, Batching, FinalObservations, OnError, Outcome,
        Recording, Request, Rewards, Values,
    },
    trajectory::MemoryLimit,
};
use relevo_onnx::OnnxBackend;

#[path = "../../peers/relayrl/src/callers.rs"]
#[expect(clippy::expect_used, unreachable_pub, reason = "shared with a program outside the workspace")]
mod callers;

use callers::Row;

const WIDTH: usize = 8;
const EPISODE_STEPS: usize = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(2).collect();
    let [model, rows, kind, calls, routers] = &arguments[..] else {
        return Err("usage: single-calls single-calls MODEL ROWS threads|tasks CALLS ROUTERS".into());
    };
    let (calls, rows) = (calls.parse()?, callers::read(Path::new(rows), WIDTH)?);
    let agent = agent(Path::new(model), rows.len(), routers.parse()?)?;
    let groups: Vec<_> = agent.actor_ids()?.iter().map(|id| agent.group(&[*id])).collect::<Result<_, _>>()?;
    let runtime = tokio::runtime::Runtime::new()?;
    for line in std::io::stdin().lock().lines() {
        line?;
        let caller = |index: usize| (groups[index].clone(), rows[index].clone());
        let turn = if kind == "threads" {
            callers::threads(runtime.handle(), groups.len(), |index| {
                let (group, rows) = caller(index);
                async move { blocking(&group, &rows, calls) }
            })
        } else {
            runtime.block_on(callers::tasks(groups.len(), |index| {
                let (group, rows) = caller(index);
                waiting(group, rows, calls)
            }))
        };
        let mut output = std::io::stdout();
        writeln!(output, "{}", turn.line().join(" "))?;
        output.flush()?;
    }
    Ok(())
}

fn agent(model: &Path, actor_count: usize, routers: usize) -> Result<Agent, relevo_core::Error> {
    let loaded = LoadedModel::load(model, &[Arc::new(OnnxBackend::new())], &LoadOptions::default(), &BTreeMap::new())?;
    let agent = Agent::new(AgentConfig {
        policies: vec![Arc::new(PolicySlot::new("default", loaded, PolicyOptions::with_head(HeadKind::Argmax))?)],
        actor_count,
        routers,
        batching: Batching::default(),
        on_error: OnError::Raise,
        memory: MemoryLimit { trajectories: 1_000, bytes: 256 << 20 },
        seed: Some(7),
        ..AgentConfig::new(Vec::new())
    })?;
    agent.start()?;
    Ok(agent)
}

fn blocking(group: &Arc<ActorGroup>, rows: &[Row], calls: usize) -> Vec<Duration> {
    let options = ActOptions { deterministic: None, record: Recording::All };
    (0..calls)
        .map(|call| {
            let (observation, action) = &rows[call % rows.len()];
            let begin = Instant::now();
            let results = group.act(&[bytemuck::cast_slice(observation)], None, &options).unwrap();
            observe(group, call);
            let spent = begin.elapsed();
            check(&results, *action);
            spent
        })
        .collect()
}

async fn waiting(group: Arc<ActorGroup>, rows: Arc<[Row]>, calls: usize) -> Vec<Duration> {
    let mut spent = Vec::with_capacity(calls);
    for call in 0..calls {
        let (observation, action) = &rows[call % rows.len()];
        let begin = Instant::now();
        let ticket = group.request(&Request::new(&[bytemuck::cast_slice(observation)])).unwrap();
        let results = ticket.await.unwrap();
        observe(&group, call);
        spent.push(begin.elapsed());
        check(&results, *action);
    }
    spent
}

fn observe(group: &ActorGroup, call: usize) {
    let outcome = Outcome {
        rewards: Rewards::Float64(Values::Same(1.0)),
        terminated: Values::Same(u8::from((call + 1).is_multiple_of(EPISODE_STEPS))),
        truncated: Values::Same(0),
    };
    if !group.try_observe(&outcome, &FinalObservations::default()).unwrap() {
        group.observe(&outcome, &FinalObservations::default()).unwrap();
    }
}

fn check(results: &ActionResults, action: usize) {
    assert_eq!(results.actions[0].values::<i64>(), [action as i64], "the action must be NumPy's argmax");
}
