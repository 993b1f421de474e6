//! A small native model for tests and benchmarks: one linear layer, so that every number can be worked out by hand.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::allow_attributes,
    clippy::float_cmp,
    clippy::panic,
    clippy::unwrap_used,
    reason = "test code, of which each user uses a part"
)]

pub mod made;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{Thread, current, park_timeout},
    time::{Duration, Instant},
};

use relevo_core::{
    Error, Result,
    policy::{Contract, HeadKind, LoadOptions, LoadedModel, Model, ModelFacts, PolicyOptions, PolicySlot, Session},
    runtime::{
        ActionResults, ActorGroup, Agent, AgentConfig, Batching, FinalObservations, Outcome, Request, Rewards, Ticket,
        Values,
    },
    spec::{DType, Dim, TensorSpec},
    tensor::{Tensor, TensorView},
    trajectory::{ColumnSpec, Episode, MemoryLimit},
};

/// `output = observation · weights`, with `weights` of shape (inputs, outputs).
#[derive(Debug, Clone)]
pub struct Linear {
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
    facts: ModelFacts,
    weights: Vec<f32>,
    /// An observation that begins with this number makes the forward pass fail.
    pub fails_on: Option<f32>,
    /// One that makes it panic.
    pub panics_on: Option<f32>,
    /// What becomes of new sessions: they are made, they fail, or making them panics.
    pub sessions: Sessions,
    /// Forward passes so far.
    pub passes: Arc<AtomicUsize>,
}

/// What becomes of new sessions, and how many were asked for.
#[derive(Debug, Clone, Default)]
pub struct Sessions {
    fate: Arc<AtomicUsize>,
    asked: Arc<AtomicUsize>,
}

impl Sessions {
    pub const WORK: usize = 0;
    pub const FAIL: usize = 1;
    pub const PANIC: usize = 2;
    /// A panic that cannot even be caught without another one.
    pub const KILL: usize = 3;

    pub fn will(&self, fate: usize) {
        self.fate.store(fate, Ordering::SeqCst);
    }

    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn next(&self) -> Result<()> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        match self.fate.load(Ordering::SeqCst) {
            Self::WORK => Ok(()),
            Self::FAIL => Err(Error::Inference("no session was to be had".into())),
            Self::PANIC => panic!("a session panicked"),
            _ => std::panic::panic_any(Bomb),
        }
    }
}

struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "what was caught went off");
    }
}

impl Linear {
    pub fn new(inputs: usize, output: &str, weights: Vec<f32>) -> Self {
        let spec = |name: &str, width: usize| TensorSpec {
            name: name.into(),
            dtype: DType::Float32,
            shape: vec![Dim::Dynamic("batch".into()), Dim::Fixed(width)],
        };
        Self {
            inputs: vec![spec("obs", inputs)],
            outputs: vec![spec(output, weights.len() / inputs)],
            facts: ModelFacts::default(),
            weights,
            fails_on: None,
            panics_on: None,
            sessions: Sessions::default(),
            passes: Arc::default(),
        }
    }

    pub fn load(self) -> LoadedModel {
        let path = PathBuf::from("linear");
        let mut session = self.session().unwrap();
        let contract = Contract::infer(Path::new("linear"), &self, &mut *session, &BTreeMap::new(), "cpu").unwrap();
        LoadedModel {
            path,
            options: LoadOptions::default(),
            roles: BTreeMap::new(),
            model: Arc::new(self),
            contract: Arc::new(contract),
            pool: Arc::default(),
        }
    }

    pub fn slot(self, name: &str, head: Option<HeadKind>) -> Arc<PolicySlot> {
        Arc::new(PolicySlot::new(name, self.load(), PolicyOptions { head, ..PolicyOptions::default() }).unwrap())
    }
}

impl Model for Linear {
    fn format(&self) -> &'static str {
        "linear"
    }

    fn inputs(&self) -> &[TensorSpec] {
        &self.inputs
    }

    fn outputs(&self) -> &[TensorSpec] {
        &self.outputs
    }

    fn facts(&self) -> &ModelFacts {
        &self.facts
    }

    fn session(&self) -> Result<Box<dyn Session>> {
        self.sessions.next()?;
        Ok(Box::new(LinearSession(self.clone())))
    }
}

struct LinearSession(Linear);

impl Session for LinearSession {
    fn forward(&mut self, inputs: &[TensorView<'_>], wanted: &[usize], outputs: &mut [Tensor]) -> Result<()> {
        let Linear { weights, fails_on, panics_on, passes, .. } = &self.0;
        passes.fetch_add(1, Ordering::SeqCst);
        let rows = inputs[0].shape[0];
        let (width, columns) = (inputs[0].shape[1], weights.len() / inputs[0].shape[1]);
        let observations: &[f32] = bytemuck::cast_slice(inputs[0].bytes);
        let holds = |number: f32| observations.chunks(width).any(|row| row[0] == number);
        assert!(!panics_on.is_some_and(holds), "the model was told to panic");
        if fails_on.is_some_and(holds) {
            return Err(Error::Inference("the model was told to fail".into()));
        }
        for (output, _) in outputs.iter_mut().zip(wanted) {
            output.reset(DType::Float32, &[rows, columns]);
            let values = output.values_mut::<f32>();
            values.fill(0.0);
            for (result, observation) in values.chunks_exact_mut(columns).zip(observations.chunks_exact(width)) {
                for (value, weights) in observation.iter().zip(weights.chunks_exact(columns)) {
                    result.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += value * weight);
                }
            }
        }
        Ok(())
    }
}

/// A running agent with `actors` actors in memory mode.
pub fn agent(policies: Vec<Arc<PolicySlot>>, actors: usize, trajectories: usize) -> Agent {
    batching_agent(policies, actors, trajectories, Batching::default())
}

/// The same, with other rules for batches of single calls.
pub fn batching_agent(policies: Vec<Arc<PolicySlot>>, actors: usize, trajectories: usize, batching: Batching) -> Agent {
    let agent = Agent::new(AgentConfig {
        actor_count: actors,
        batching,
        memory: MemoryLimit { trajectories, bytes: usize::MAX },
        seed: Some(7),
        ..AgentConfig::new(policies)
    })
    .unwrap();
    agent.start().unwrap();
    agent
}

/// One call of `act`, as a caller without Python makes it.
pub fn act(
    group: &Arc<ActorGroup>,
    observations: &[f32],
    mask: Option<&[u8]>,
    options: &relevo_core::runtime::ActOptions<'_>,
) -> Result<Arc<relevo_core::runtime::ActionResults>> {
    group.act(&[bytemuck::cast_slice(observations)], mask, options)
}

pub fn outcome<'a>(rewards: &'a [f64], terminated: &'a [u8], truncated: &'a [u8]) -> Outcome<'a> {
    Outcome {
        rewards: Rewards::Float64(Values::Each(rewards)),
        terminated: Values::Each(terminated),
        truncated: Values::Each(truncated),
    }
}

pub fn observe(group: &Arc<ActorGroup>, outcome: &Outcome<'_>, finals: &FinalObservations) -> Result<(), Error> {
    if group.try_observe(outcome, finals)? { Ok(()) } else { group.observe(outcome, finals) }
}

/// The only observation column of a linear model with `width` inputs.
pub fn column(width: usize) -> Vec<ColumnSpec> {
    vec![ColumnSpec { key: String::new(), dtype: DType::Float32, shape: vec![width] }]
}

pub fn floats(bytes: &[u8]) -> &[f32] {
    bytemuck::cast_slice(bytes)
}

pub fn flushed(agent: &Agent) -> Vec<Arc<Episode>> {
    agent.flush(&mut || Ok(())).unwrap();
    agent.trajectories()
}

/// A single call for one observation of one number.
pub fn request(group: &Arc<ActorGroup>, observation: f32) -> Result<Ticket> {
    let bytes = observation.to_ne_bytes();
    group.request(&Request::new(&[&bytes]))
}

struct Unparks(Thread);

impl Wake for Unparks {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future, though not for ever.
pub fn answer(ticket: Ticket) -> Result<Arc<ActionResults>> {
    let (waker, started) = (Waker::from(Arc::new(Unparks(current()))), Instant::now());
    let mut ticket = pin!(ticket);
    loop {
        match ticket.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => return result,
            Poll::Pending => park_timeout(Duration::from_secs(1)),
        }
        assert!(started.elapsed() < Duration::from_secs(20), "a call was never answered");
    }
}

/// The discrete action of a single call.
pub fn action(result: Result<Arc<ActionResults>>) -> i64 {
    result.unwrap().actions[0].values::<i64>()[0]
}
