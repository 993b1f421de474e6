//! Forward passes on made-up inputs: how many rows a model takes, and the shapes of what it gives.

use std::path::Path;

use super::{
    backend::{Model, Session},
    contract::{Batch, InputContract, with_axis},
    convention::InputRole,
    head::floats,
};
use crate::{
    error::{Error, Result},
    spec::{DType, Dim},
    tensor::Tensor,
};

/// An output's shape as forward passes show it.
pub(super) struct OutputShape {
    pub(super) batch_axis: Option<usize>,
    pub(super) row_shape: Vec<usize>,
    /// The numbers in it, where there is no batch axis and they are float32.
    pub(super) constant: Option<Vec<f32>>,
    /// Whether it may be probabilities: float numbers from 0 on, and along the last axis they add up to 1.
    pub(super) adds_up_to_one: bool,
}

impl OutputShape {
    /// The shape of `rows` rows.
    pub(super) fn of_rows(&self, rows: usize) -> Vec<usize> {
        with_axis(&self.row_shape, self.batch_axis, rows)
    }

    fn of(output: &Tensor, batch_axis: Option<usize>) -> Self {
        let mut row_shape = output.shape().to_vec();
        if let Some(axis) = batch_axis {
            row_shape.remove(axis);
        }
        let constant = (batch_axis.is_none() && output.dtype() == DType::Float32).then(|| output.values().to_vec());
        let mut converted = Vec::new();
        let choices = row_shape.last().copied().unwrap_or(0);
        let adds_up_to_one = output.dtype().is_float() && choices > 0 && {
            let mut rows = floats(output, &mut converted).chunks_exact(choices);
            rows.all(|row| row.iter().all(|share| *share >= 0.0) && (row.iter().sum::<f32>() - 1.0).abs() < 1e-2)
        };
        Self { batch_axis, row_shape, constant, adds_up_to_one }
    }
}

/// Forward passes on made-up inputs.
pub(super) struct Probe<'a> {
    pub(super) path: &'a Path,
    pub(super) model: &'a dyn Model,
    pub(super) session: &'a mut dyn Session,
    pub(super) inputs: &'a [InputContract],
}

impl Probe<'_> {
    /// Runs `rows` rows, with states of zeros.
    fn run(&mut self, rows: usize) -> Result<Vec<Tensor>> {
        let inputs: Vec<_> = self.inputs.iter().map(|input| probe_input(input, rows)).collect();
        self.run_on(&inputs)
    }

    /// Runs on these inputs; gives every output.
    pub(super) fn run_on(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let views: Vec<_> = inputs.iter().map(Tensor::view).collect();
        let wanted: Vec<_> = (0..self.model.outputs().len()).collect();
        let mut outputs: Vec<_> = wanted.iter().map(|_| Tensor::zeros(DType::Float32, &[0])).collect();
        self.session.forward(&views, &wanted, &mut outputs)?;
        Ok(outputs)
    }

    /// Finds out whether a batch may be larger than 1, and the shape of every output.
    pub(super) fn batch(&mut self) -> Result<(Batch, Vec<OutputShape>)> {
        if let Some(Batch::One { reason }) = &self.model.facts().batch {
            return self.single(reason.clone());
        }
        let fixed = self.inputs.iter().find_map(|input| match input.spec.shape[input.batch_axis] {
            // Of a state that is declared with the shape of one row, a batch may be welcome all the same.
            Dim::Fixed(1) if input.role == InputRole::State => None,
            Dim::Fixed(size) => Some((input.spec.name.clone(), size)),
            Dim::Dynamic(_) => None,
        });
        match fixed {
            Some((name, size)) if size != 1 => {
                return Err(Error::model_load(
                    self.path,
                    format!(
                        "input `{name}` is declared for batches of exactly {size} rows; export the model with a dynamic \
                         batch axis, or with a batch of 1; where {size} is no number of rows but a width, export it with a batch \
                         axis before that: [1, {size}, …]"
                    ),
                ));
            }
            Some((name, _)) => return self.single(format!("input `{name}` is declared with a batch of 1")),
            None => {}
        }
        match (self.run(2), self.run(3)) {
            (Ok(two), Ok(three)) => {
                let known = self.model.facts().batch.clone();
                let seen = || Batch::Dynamic { reason: "batches of made-up rows gave what the rows give alone".into() };
                Ok((known.unwrap_or_else(seen), compare_shapes(&two, &three)))
            }
            (Err(error), _) | (_, Err(error)) => {
                let is_one = |input: &&InputContract| input.spec.shape[input.batch_axis] == Dim::Fixed(1);
                self.single(match self.inputs.iter().find(is_one) {
                    Some(input) => format!("input `{}` is declared with a batch of 1", input.spec.name),
                    None => format!("the batch axis is declared as dynamic, but a batch of 2 or 3 fails: {error}"),
                })
            }
        }
    }

    fn single(&mut self, reason: String) -> Result<(Batch, Vec<OutputShape>)> {
        let outputs = self.run(1).map_err(|error| {
            Error::model_load(self.path, format!("a forward pass on made-up inputs fails: {error}"))
        })?;
        let shapes = outputs
            .iter()
            .map(|output| OutputShape::of(output, (output.shape().first() == Some(&1)).then_some(0)))
            .collect();
        Ok((Batch::One { reason }, shapes))
    }
}

/// A made-up input: floats that differ from each other, states of zeros, masks that allow everything.
pub(crate) fn probe_input(input: &InputContract, rows: usize) -> Tensor {
    let mut tensor = Tensor::zeros(input.spec.dtype, &input.shape(rows));
    match (input.role, input.spec.dtype) {
        (InputRole::ActionMask | InputRole::EpisodeMask, dtype) => fill_ones(&mut tensor, dtype),
        (InputRole::Observation, DType::Float32) => {
            for (index, value) in tensor.values_mut::<f32>().iter_mut().enumerate() {
                *value = ((index * 7919) % 2001) as f32 / 1000.0 - 1.0;
            }
        }
        _ => {}
    }
    tensor
}

/// Fills a tensor with the number one of its type.
pub(crate) fn fill_ones(tensor: &mut Tensor, dtype: DType) {
    match dtype {
        DType::Bool | DType::UInt8 | DType::Int8 => tensor.bytes_mut().fill(1),
        DType::UInt16 | DType::Int16 => tensor.values_mut::<u16>().fill(1),
        DType::UInt32 | DType::Int32 => tensor.values_mut::<u32>().fill(1),
        DType::UInt64 | DType::Int64 => tensor.values_mut::<u64>().fill(1),
        DType::Float16 => tensor.values_mut::<u16>().fill(0x3C00),
        DType::Float32 => tensor.values_mut::<f32>().fill(1.0),
        DType::Float64 => tensor.values_mut::<f64>().fill(1.0),
    }
}

/// The axis that is 2 in the pass with two rows and 3 in the one with three is the batch axis.
fn compare_shapes(two: &[Tensor], three: &[Tensor]) -> Vec<OutputShape> {
    two.iter()
        .zip(three)
        .map(|(two, three)| {
            OutputShape::of(two, two.shape().iter().zip(three.shape()).position(|sizes| sizes == (&2, &3)))
        })
        .collect()
}
