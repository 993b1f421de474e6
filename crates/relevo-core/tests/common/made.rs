//! Models made of a closure, and a recurrent one among them.

use std::{path::Path, sync::Arc};

use relevo_core::{
    Error, Result,
    policy::{
        Backend, Contract, HeadKind, LoadOptions, LoadedModel, Model, ModelFacts, ModelSource, PolicyOptions,
        PolicySlot, Session, StateLink,
    },
    spec::{DType, Dim, TensorSpec},
    tensor::{Tensor, TensorView},
};

type Run = dyn Fn(&[TensorView<'_>]) -> Result<Vec<Tensor>> + Send + Sync;

/// A model that does what a closure does.
#[derive(Clone)]
pub struct Made {
    pub inputs: Vec<TensorSpec>,
    pub outputs: Vec<TensorSpec>,
    pub states: Vec<StateLink>,
    pub facts: ModelFacts,
    pub run: Arc<Run>,
}

/// A tensor's declaration; -1 is a size that is not known.
pub fn spec(name: &str, dtype: DType, shape: &[i64]) -> TensorSpec {
    let dim = |size: &i64| usize::try_from(*size).map_or_else(|_| Dim::Dynamic("batch".into()), Dim::Fixed);
    TensorSpec { name: name.into(), dtype, shape: shape.iter().map(dim).collect() }
}

pub fn tensor(shape: &[usize], value: impl Fn(usize) -> f32) -> Tensor {
    let mut tensor = Tensor::zeros(DType::Float32, shape);
    tensor.values_mut::<f32>().iter_mut().enumerate().for_each(|(at, element)| *element = value(at));
    tensor
}

impl Made {
    pub fn new(
        inputs: Vec<TensorSpec>,
        outputs: Vec<TensorSpec>,
        run: impl Fn(&[TensorView<'_>]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
    ) -> Self {
        Self { inputs, outputs, states: Vec::new(), facts: ModelFacts::default(), run: Arc::new(run) }
    }

    pub fn contract(&self, roles: &[(&str, &str)]) -> Result<Contract> {
        self.loaded(roles).map(|loaded| (*loaded.contract).clone())
    }

    pub fn loaded(&self, roles: &[(&str, &str)]) -> Result<LoadedModel> {
        let roles = roles.iter().map(|(name, role)| ((*name).to_owned(), (*role).to_owned())).collect();
        LoadedModel::load_bytes("made", b"made", &[Arc::new(self.clone())], &LoadOptions::default(), &roles)
    }

    pub fn load(self) -> LoadedModel {
        self.loaded(&[]).unwrap()
    }

    pub fn slot(self, name: &str) -> Result<Arc<PolicySlot>> {
        PolicySlot::new(name, self.load(), PolicyOptions::with_head(HeadKind::Raw)).map(Arc::new)
    }
}

impl std::fmt::Debug for Made {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Made")
    }
}

impl Model for Made {
    fn format(&self) -> &'static str {
        "made"
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

    fn states(&self) -> &[StateLink] {
        &self.states
    }

    fn session(&self) -> Result<Box<dyn Session>> {
        Ok(Box::new(MadeSession(self.clone())))
    }
}

impl Backend for Made {
    fn format(&self) -> &'static str {
        "made"
    }

    fn accepts(&self, _path: &Path) -> bool {
        true
    }

    fn recognises(&self, _bytes: &[u8]) -> bool {
        true
    }

    fn load(&self, _source: ModelSource<'_>, _options: &LoadOptions) -> Result<Arc<dyn Model>> {
        Ok(Arc::new(self.clone()))
    }
}

struct MadeSession(Made);

impl Session for MadeSession {
    fn forward(&mut self, inputs: &[TensorView<'_>], wanted: &[usize], outputs: &mut [Tensor]) -> Result<()> {
        for (input, spec) in inputs.iter().zip(&self.0.inputs) {
            let fits = |(size, dim): (&usize, &Dim)| !matches!(dim, Dim::Fixed(fixed) if fixed != size);
            if !input.shape.iter().zip(&spec.shape).all(fits) || input.dtype != spec.dtype {
                return Err(Error::Inference(format!("`{}` came with the shape {:?}", spec.name, input.shape)));
            }
        }
        let all = (self.0.run)(inputs)?;
        for (output, index) in outputs.iter_mut().zip(wanted) {
            output.reset(all[*index].dtype(), all[*index].shape());
            output.bytes_mut().copy_from_slice(all[*index].bytes());
        }
        Ok(())
    }
}

/// How the recurrent test model takes its states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// `[batch, 2, 3]`.
    BatchFirst,
    /// `[2, batch, 3]`, as torch's recurrent layers have it.
    BatchSecond,
    /// `[2, 1, 3]`, one row at a time.
    One,
}

/// What the recurrent test model remembers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Remembered {
    pub traces: [[f32; 3]; 2],
    pub steps: i64,
}

/// An observation that makes the model fail, and one that puts NaN into its state, though not into its action.
pub const FAILS_ON: f32 = -77.0;
pub const NAN_ON: f32 = -78.0;

impl Remembered {
    /// One step; gives the action.
    pub fn step(&mut self, observation: f32, sign: f32) -> f32 {
        let mut sum = 0.0;
        for (layer, traces) in self.traces.iter_mut().enumerate() {
            for (at, trace) in traces.iter_mut().enumerate() {
                *trace = *trace * 0.5 + observation * (layer + 1) as f32 + at as f32;
                sum += *trace;
            }
        }
        self.steps += 1;
        if observation == NAN_ON {
            self.traces[1][2] = f32::NAN;
        }
        (sum + self.steps as f32 * 1000.0) * sign
    }
}

/// What is added to an action where the mask says another thing of the episode than the count of steps.
pub const MASK_LIES: f32 = 4_000_000.0;

/// A model with two states of different types: traces of what it has seen, and a count of steps; and with a mask that tells
/// whether the episode goes on. All its numbers are exact.
pub fn remembering(layout: Layout, sign: f32) -> Made {
    let (rows, traces) = match layout {
        Layout::BatchFirst => (-1, vec![-1, 2, 3]),
        Layout::BatchSecond => (-1, vec![2, -1, 3]),
        Layout::One => (1, vec![2, 1, 3]),
    };
    let inputs = vec![
        spec("obs", DType::Float32, &[rows, 1]),
        spec("h_in", DType::Float32, &traces),
        spec("steps_in", DType::Int64, &[rows]),
        spec("masks", DType::Float32, &[rows, 1]),
    ];
    let outputs = vec![
        spec("action", DType::Float32, &[rows, 1]),
        spec("steps_out", DType::Int64, &[rows]),
        spec("h_out", DType::Float32, &traces),
    ];
    Made::new(inputs, outputs, move |inputs| {
        let observations: &[f32] = bytemuck::cast_slice(inputs[0].bytes);
        let (traces, steps): (&[f32], &[i64]) =
            (bytemuck::cast_slice(inputs[1].bytes), bytemuck::cast_slice(inputs[2].bytes));
        let masks: &[f32] = bytemuck::cast_slice(inputs[3].bytes);
        if observations.contains(&FAILS_ON) {
            return Err(Error::Inference("the model was told to fail".into()));
        }
        let rows = observations.len();
        let place = |row: usize, layer: usize| match layout {
            Layout::BatchFirst => (row * 2 + layer) * 3,
            _ => (layer * rows + row) * 3,
        };
        let mut next = [
            Tensor::zeros(DType::Float32, &[rows, 1]),
            Tensor::zeros(DType::Int64, &[rows]),
            Tensor::zeros(DType::Float32, inputs[1].shape),
        ];
        for row in 0..rows {
            let mut memory = Remembered { steps: steps[row], ..Remembered::default() };
            for layer in 0..2 {
                memory.traces[layer].copy_from_slice(&traces[place(row, layer)..][..3]);
            }
            let lie = if (masks[row] == 0.0) == (steps[row] == 0) { 0.0 } else { MASK_LIES };
            next[0].values_mut::<f32>()[row] = memory.step(observations[row], sign) + lie;
            next[1].values_mut::<i64>()[row] = memory.steps;
            for layer in 0..2 {
                next[2].values_mut::<f32>()[place(row, layer)..][..3].copy_from_slice(&memory.traces[layer]);
            }
        }
        Ok(next.into())
    })
}
