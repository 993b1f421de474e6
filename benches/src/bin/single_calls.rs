//! Single calls from Rust threads or tasks, one actor each.
//!
//! Usage: `single_calls MODEL threads|tasks CALLERS ROUTERS`. For every line that it reads, all callers make single calls for so
//! many milliseconds, and it prints the number of calls, the microseconds that they took together, and how long each call took
//! in nanoseconds.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a benchmark that cannot go on should stop"
)]

use std::{
    collections::BTreeMap,
    io::BufRead,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use relevo_core::{
    policy::{HeadKind, LoadOptions, LoadedModel, PolicySlot},
    runtime::{ActOptions, ActorGroup, Agent, AgentConfig, Batching, OnError, Recording, Request},
    trajectory::MemoryLimit,
};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, kind, callers, routers] = &arguments[..] else {
        panic!("usage: single_calls MODEL KIND CALLERS ROUTERS")
    };
    let loaded = LoadedModel::load(
        Path::new(model),
        &[Arc::new(relevo_onnx::OnnxBackend::default())],
        &LoadOptions::default(),
        &BTreeMap::new(),
    )
    .unwrap();
    let slot = PolicySlot::new("default", loaded, Some(HeadKind::Argmax), false).unwrap();
    let agent = Agent::new(AgentConfig {
        policies: vec![Arc::new(slot)],
        actor_count: callers.parse().unwrap(),
        routers: routers.parse().unwrap(),
        batching: Batching::default(),
        on_error: OnError::Raise,
        record: None,
        memory: MemoryLimit { trajectories: 1_000, bytes: 256 << 20 },
        seed: 7,
        keep_outputs: false,
        description: serde_json::Value::Null,
    })
    .unwrap();
    agent.start().unwrap();
    let groups: Vec<_> = agent.actor_ids().unwrap().iter().map(|id| agent.group(&[*id]).unwrap()).collect();
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(std::env::var("WORKERS").map_or(1, |workers| workers.parse().unwrap()))
        .build()
        .unwrap();
    for line in std::io::stdin().lock().lines() {
        let time = Duration::from_millis(line.unwrap().parse().unwrap());
        let stop = Arc::new(AtomicBool::new(false));
        let begin = Instant::now();
        let spent: Vec<u64> = match kind.as_str() {
            "threads" => {
                let threads: Vec<_> = groups
                    .iter()
                    .enumerate()
                    .map(|(index, group)| {
                        let (group, stop) = (group.clone(), stop.clone());
                        std::thread::Builder::new().spawn(move || thread(&group, index, &stop)).unwrap()
                    })
                    .collect();
                std::thread::sleep(time);
                stop.store(true, Ordering::Relaxed);
                threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
            }
            _ => {
                let tasks: Vec<_> = groups
                    .iter()
                    .enumerate()
                    .map(|(index, group)| tokio.spawn(task(group.clone(), index, stop.clone())))
                    .collect();
                std::thread::sleep(time);
                stop.store(true, Ordering::Relaxed);
                tasks.into_iter().flat_map(|task| tokio.block_on(task).unwrap()).collect()
            }
        };
        let mut sorted = spent.clone();
        sorted.sort_unstable();
        println!(
            "{:.0} calls/s  p50 {:.1} us  p99 {:.1} us  {:?}",
            spent.len() as f64 / begin.elapsed().as_secs_f64(),
            sorted[sorted.len() / 2] as f64 / 1e3,
            sorted[sorted.len() * 99 / 100] as f64 / 1e3,
            agent.stats().unwrap().routers.iter().map(|router| (router.batches, router.rows)).collect::<Vec<_>>()
        );
    }
}

fn observation(index: usize) -> Vec<f32> {
    (0..8).map(|column| ((index * 8 + column) as f32).cos()).collect()
}

fn thread(group: &Arc<ActorGroup>, index: usize, stop: &AtomicBool) -> Vec<u64> {
    let observation = observation(index);
    let options = ActOptions { deterministic: None, record: Recording::All };
    let mut spent = Vec::with_capacity(1 << 16);
    while !stop.load(Ordering::Relaxed) {
        let begin = Instant::now();
        group.act(&[bytemuck::cast_slice(&observation)], None, &options).unwrap();
        spent.push(begin.elapsed().as_nanos() as u64);
    }
    spent
}

async fn task(group: Arc<ActorGroup>, index: usize, stop: Arc<AtomicBool>) -> Vec<u64> {
    let observation = observation(index);
    let mut spent = Vec::with_capacity(1 << 16);
    while !stop.load(Ordering::Relaxed) {
        let begin = Instant::now();
        let bytes: &[u8] = bytemuck::cast_slice(&observation);
        let request = Request { observations: &[bytes], mask: None, deterministic: None, record: true };
        let ticket = group.request(&request).unwrap();
        ticket.await.unwrap();
        spent.push(begin.elapsed().as_nanos() as u64);
    }
    spent
}
