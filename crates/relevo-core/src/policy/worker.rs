//! A session with the buffers that it needs: what one caller at a time runs forward passes with.

use std::{fmt, sync::Arc};

use smallvec::SmallVec;

use super::{
    backend::Session,
    contract::{Batch, InputContract, OutputContract},
    convention::InputRole,
    head::HeadScratch,
    loaded::LoadedModel,
    memory::{MemorySpec, NextValue},
    normalizer::Normalizer,
    probe::fill_ones,
};
use crate::{
    error::{Error, Result},
    fork::Birthplace,
    spec::DType,
    tensor::{DeviceMemory, Tensor, TensorView},
};

/// A larger batch is run in parts: what lies between a model's layers then stays small enough for the processor's caches,
/// and for memory.
const PART_ROWS: usize = 8192;

/// A session with its input and output buffers. Outputs keep their allocation, so a worker that has seen the largest
/// batch allocates nothing more.
pub struct Worker {
    /// Always there; taken out only at the end.
    session: Option<Box<dyn Session>>,
    birthplace: Birthplace,
    inputs: Vec<InputContract>,
    input_shapes: Vec<Vec<usize>>,
    /// Inputs that are not as the caller gives them: masks as the model's type, states of zeros, normalised observations.
    /// One for each input, empty for observations that are taken as they are.
    made_inputs: Vec<Tensor>,
    normalizers: Vec<Option<Normalizer>>,
    memory: Arc<MemorySpec>,
    /// Where the next value of each state is.
    next_values: Vec<Place>,
    /// Next values that no output gives.
    constants: Vec<Tensor>,
    wanted: Vec<usize>,
    wanted_contracts: Vec<OutputContract>,
    outputs: Vec<Tensor>,
    /// Rows that one forward pass takes at most.
    part: usize,
    /// Outputs of a part, where a batch is more than one.
    part_outputs: Vec<Tensor>,
    /// Buffers of the head.
    pub scratch: HeadScratch,
}

/// Where the next value of a state is.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// Among the outputs, at this position of those wanted.
    Output(usize),
    /// Among the constants.
    Constant(usize),
}

impl Worker {
    /// A worker with a session of its own that computes the outputs `wanted`, and the next values of the states of `memory`.
    pub fn new(loaded: &LoadedModel, wanted: &[usize], memory: Arc<MemorySpec>) -> Result<Self> {
        let contract = &loaded.contract;
        let mut wanted = wanted.to_vec();
        let empty = || Tensor::zeros(DType::Float32, &[0]);
        let mut constants = Vec::new();
        let next_values = memory.states.iter().map(|state| match state.next {
            NextValue::Output(output) => {
                Place::Output(wanted.iter().position(|known| *known == output).unwrap_or_else(|| {
                    wanted.push(output);
                    wanted.len() - 1
                }))
            }
            NextValue::Always(_) => {
                constants.push(empty());
                Place::Constant(constants.len() - 1)
            }
        });
        let next_values = next_values.collect();
        Ok(Self {
            session: Some(loaded.model.session()?),
            birthplace: Birthplace::here(),
            inputs: contract.inputs.clone(),
            input_shapes: contract.inputs.iter().map(|input| input.shape(0)).collect(),
            made_inputs: contract.inputs.iter().map(|_| empty()).collect(),
            normalizers: Vec::new(),
            memory,
            next_values,
            constants,
            wanted_contracts: wanted.iter().map(|index| contract.outputs[*index].clone()).collect(),
            outputs: wanted.iter().map(|_| empty()).collect(),
            part: match contract.batch {
                Batch::One { .. } => 1,
                Batch::Dynamic { .. } if contract.rows_come_first() => PART_ROWS,
                Batch::Dynamic { .. } => usize::MAX,
            },
            part_outputs: wanted.iter().map(|_| empty()).collect(),
            scratch: HeadScratch::default(),
            wanted,
        })
    }

    /// Normalises the observations of [`Worker::forward`]: one for each input, in the model's order.
    #[must_use]
    pub fn normalizing(mut self, normalizers: Vec<Option<Normalizer>>) -> Self {
        self.normalizers = normalizers;
        self
    }

    /// The outputs of the last forward pass: those that the worker was made for, in their order, and then those states that are
    /// not among them.
    pub fn outputs(&self) -> &[Tensor] {
        &self.outputs
    }

    /// The outputs and the head's buffers, borrowed side by side.
    pub fn outputs_and_scratch(&mut self) -> (&[Tensor], &mut HeadScratch) {
        (&self.outputs, &mut self.scratch)
    }

    /// The next values of the states, as the last forward pass gave them.
    pub fn next_states(&self) -> impl Iterator<Item = &Tensor> {
        self.next_values.iter().map(|place| match *place {
            Place::Output(at) => &self.outputs[at],
            Place::Constant(at) => &self.constants[at],
        })
    }

    /// Exchanges the next values of the states for the tensors in `states`, which a later pass writes to.
    pub fn exchange_states(&mut self, states: &mut [Tensor]) {
        for (place, state) in self.next_values.iter().zip(states) {
            let next = match *place {
                Place::Output(at) => &mut self.outputs[at],
                Place::Constant(at) => &mut self.constants[at],
            };
            std::mem::swap(next, state);
        }
    }

    /// Makes the next values that no output gives.
    fn make_constants(&mut self, rows: usize) {
        for (state, place) in self.memory.states.iter().zip(&self.next_values) {
            if let (NextValue::Always(one), Place::Constant(at)) = (state.next, *place) {
                let tensor = &mut self.constants[at];
                tensor.reset(state.dtype, &state.shape(rows));
                if one {
                    fill_ones(tensor, state.dtype);
                } else {
                    tensor.bytes_mut().fill(0);
                }
            }
        }
    }

    /// Gives the outputs away; the next forward pass makes new ones.
    pub fn take_outputs(&mut self) -> Vec<Tensor> {
        self.outputs.iter_mut().map(|output| std::mem::replace(output, Tensor::zeros(DType::Float32, &[0]))).collect()
    }

    /// A forward pass on `rows` observations. `observations` holds the bytes of every observation input, row after row;
    /// `mask` one byte for each row and action, and `states` the states of all rows, as the model takes them. Without states
    /// the model begins an episode; a missing mask allows everything, and a state that is no memory is fed with zeros.
    pub fn forward(
        &mut self,
        rows: usize,
        observations: &[&[u8]],
        mask: Option<&[u8]>,
        states: &[&[u8]],
    ) -> Result<()> {
        self.forward_placed(rows, observations, &[], mask, states)
    }

    /// The same on observations that may lie on the model's device: `placed` says where, input by input, and is empty where none
    /// do. Of one that does, `observations` may hold no bytes.
    pub fn forward_placed(
        &mut self,
        rows: usize,
        observations: &[&[u8]],
        placed: &[Option<DeviceMemory<'_>>],
        mask: Option<&[u8]>,
        states: &[&[u8]],
    ) -> Result<()> {
        self.make_constants(rows);
        let memory = self.memory.clone();
        let state_of = |input: usize| memory.states.iter().position(|state| state.input == input);
        let given_state = |input: usize| state_of(input).and_then(|state| states.get(state).copied());
        let mut given = observations.iter();
        for (index, input) in self.inputs.iter().enumerate() {
            let made = &mut self.made_inputs[index];
            if input.role == InputRole::Observation {
                if let (Some(bytes), Some(Some(normalizer))) = (given.next(), self.normalizers.get(index)) {
                    made.reset(DType::Float32, &[rows, normalizer.width()]);
                    normalizer.apply(bytemuck::cast_slice(bytes), made.values_mut());
                }
                continue;
            }
            if given_state(index).is_some() {
                continue;
            }
            make_input(made, input, rows, mask);
            if let Some(state) = state_of(index).map(|state| &memory.states[state]) {
                (0..rows).for_each(|row| state.write_row(made.bytes_mut(), rows, row, &[]));
            }
        }
        // Taken out for the call, so that views of it and `&mut self` can live side by side.
        let made_inputs = std::mem::take(&mut self.made_inputs);
        let mut given = observations.iter().zip(placed.iter().copied().chain(std::iter::repeat(None)));
        let values: SmallVec<[Values<'_>; 8]> = self
            .inputs
            .iter()
            .zip(&made_inputs)
            .enumerate()
            .map(|(index, (input, made))| match input.role {
                InputRole::Observation => {
                    let (bytes, device) = given.next().map_or((&[][..], None), |(bytes, device)| (*bytes, device));
                    if made.is_empty() { Values { bytes, device } } else { made.bytes().into() }
                }
                _ => given_state(index).unwrap_or_else(|| made.bytes()).into(),
            })
            .collect();
        let result = self.forward_values(rows, &values);
        drop(values);
        self.made_inputs = made_inputs;
        result
    }

    /// A forward pass on every input.
    pub fn forward_all(&mut self, rows: usize, inputs: &[TensorView<'_>]) -> Result<()> {
        let values: SmallVec<[Values<'_>; 8]> =
            inputs.iter().map(|input| Values { bytes: input.bytes, device: input.device }).collect();
        self.forward_values(rows, &values)
    }

    fn forward_values(&mut self, rows: usize, values: &[Values<'_>]) -> Result<()> {
        for (output, contract) in self.outputs.iter_mut().zip(&self.wanted_contracts) {
            shape_output(output, contract, rows);
        }
        if rows <= self.part {
            self.shape_inputs(rows);
            let views = views(&self.inputs, &self.input_shapes, values, 0..rows);
            return session(&mut self.session)?.forward(&views, &self.wanted, &mut self.outputs);
        }
        for first in (0..rows).step_by(self.part) {
            let until = rows.min(first + self.part);
            self.shape_inputs(until - first);
            for (output, contract) in self.part_outputs.iter_mut().zip(&self.wanted_contracts) {
                shape_output(output, contract, until - first);
            }
            let views = views(&self.inputs, &self.input_shapes, values, first..until);
            session(&mut self.session)?.forward(&views, &self.wanted, &mut self.part_outputs)?;
            let outputs = self.outputs.iter_mut().zip(&self.part_outputs).zip(&self.wanted_contracts);
            for ((output, part), contract) in outputs {
                // Constants are the same for every part.
                let (first, rows) = if contract.batch_axis.is_some() { (first, until - first) } else { (0, 1) };
                let size = part.bytes().len() / rows;
                output.bytes_mut()[first * size..(first + rows) * size].copy_from_slice(part.bytes());
            }
        }
        Ok(())
    }

    fn shape_inputs(&mut self, rows: usize) {
        for (shape, input) in self.input_shapes.iter_mut().zip(&self.inputs) {
            shape[input.batch_axis] = rows;
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.birthplace.is_elsewhere() {
            // A session's threads stayed in the parent; joining them here would wait forever.
            std::mem::forget(self.session.take());
        }
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Worker").field("wanted", &self.wanted).finish_non_exhaustive()
    }
}

fn session(session: &mut Option<Box<dyn Session>>) -> Result<&mut Box<dyn Session>> {
    session.as_mut().ok_or_else(|| Error::State("the session is gone".into()))
}

/// An input's rows: in the CPU's memory, where there are such bytes, and on a device.
struct Values<'a> {
    bytes: &'a [u8],
    device: Option<DeviceMemory<'a>>,
}

impl<'a> From<&'a [u8]> for Values<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self { bytes, device: None }
    }
}

/// Views of `rows` of every input.
fn views<'a>(
    inputs: &[InputContract],
    shapes: &'a [Vec<usize>],
    values: &[Values<'a>],
    rows: std::ops::Range<usize>,
) -> SmallVec<[TensorView<'a>; 8]> {
    inputs
        .iter()
        .zip(shapes)
        .zip(values)
        .map(|((input, shape), values)| {
            let part = rows.start * input.row_bytes()..rows.end * input.row_bytes();
            let device = values.device.map(|memory| memory.part(part.clone()));
            // What lies on a device may lie nowhere else.
            let bytes = if device.is_some() && values.bytes.is_empty() { &[] } else { &values.bytes[part] };
            TensorView { dtype: input.spec.dtype, shape, bytes, device }
        })
        .collect()
}

fn shape_output(output: &mut Tensor, contract: &OutputContract, rows: usize) {
    let shape: SmallVec<[usize; 8]> = match contract.batch_axis {
        None => SmallVec::from_slice(&contract.row_shape),
        Some(axis) => {
            let mut shape = SmallVec::from_slice(&contract.row_shape);
            shape.insert(axis, rows);
            shape
        }
    };
    output.reset(contract.spec.dtype, &shape);
}

fn make_input(made: &mut Tensor, input: &InputContract, rows: usize, mask: Option<&[u8]>) {
    made.reset(input.spec.dtype, &input.shape(rows));
    match (input.role, mask) {
        (InputRole::ActionMask, Some(mask)) => match input.spec.dtype {
            DType::Float32 => {
                for (value, allowed) in made.values_mut::<f32>().iter_mut().zip(mask) {
                    *value = f32::from(*allowed != 0);
                }
            }
            // Every other type: the bytes of one, or of zero.
            dtype => {
                fill_ones(made, dtype);
                let size = dtype.size();
                for (value, allowed) in made.bytes_mut().chunks_exact_mut(size).zip(mask) {
                    if *allowed == 0 {
                        value.fill(0);
                    }
                }
            }
        },
        (InputRole::ActionMask, None) => fill_ones(made, input.spec.dtype),
        _ => made.bytes_mut().fill(0),
    }
}
