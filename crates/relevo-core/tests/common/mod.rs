//! A small native model for tests and benchmarks: one linear layer, so that every number can be worked out by hand.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::allow_attributes,
    clippy::float_cmp,
    clippy::unwrap_used,
    reason = "test code, of which each user uses a part"
)]

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use relevo_core::{
    Error, Result,
    policy::{Contract, HeadKind, LoadOptions, LoadedModel, Model, ModelFacts, PolicySlot, Session},
    runtime::{Agent, AgentConfig},
    spec::{DType, Dim, TensorSpec},
    tensor::{Tensor, TensorView},
    trajectory::MemoryLimit,
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
        }
    }

    pub fn load(self) -> LoadedModel {
        let path = PathBuf::from("linear");
        let mut session = self.session().unwrap();
        let contract = Contract::infer(Path::new("linear"), &self, &mut *session, &BTreeMap::new()).unwrap();
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
        Arc::new(PolicySlot::new(name, self.load(), head, false).unwrap())
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
        Ok(Box::new(LinearSession(self.clone())))
    }
}

struct LinearSession(Linear);

impl Session for LinearSession {
    fn forward(&mut self, inputs: &[TensorView<'_>], wanted: &[usize], outputs: &mut [Tensor]) -> Result<()> {
        let Linear { weights, fails_on, .. } = &self.0;
        let rows = inputs[0].shape[0];
        let (width, columns) = (inputs[0].shape[1], weights.len() / inputs[0].shape[1]);
        let observations: &[f32] = bytemuck::cast_slice(inputs[0].bytes);
        if fails_on.is_some_and(|number| observations.chunks(width).any(|row| row[0] == number)) {
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
    let agent = Agent::new(AgentConfig {
        actor_count: actors,
        memory: MemoryLimit { trajectories, bytes: usize::MAX },
        seed: 7,
        ..AgentConfig::new(policies)
    })
    .unwrap();
    agent.start().unwrap();
    agent
}

/// One call of `act`, as a caller without Python makes it.
pub fn act(
    group: &Arc<relevo_core::runtime::ActorGroup>,
    observations: &[f32],
    mask: Option<&[u8]>,
    options: &relevo_core::runtime::ActOptions<'_>,
) -> Result<Arc<relevo_core::runtime::ActionResults>> {
    group.act(&[bytemuck::cast_slice(observations)], mask, options)
}
