//! Sampling from a replay buffer.

use std::hash::{BuildHasher, RandomState};

use pyo3::prelude::*;
use relevo_core::spec::shape_text;
use relevo_kernels::sampling::{
    Proportional, Softmax, SplitMix64, draw, proportional_probabilities, proportional_weights, softmax_probabilities,
    softmax_weights,
};

use super::{
    arrays::{Floats, Output, Precision, by_precision, integers},
    named_tuple, run,
};
use crate::{
    array::Contiguous,
    error::{config, contract},
    once::Once,
};

type Argument<'a, 'py> = &'a Bound<'py, PyAny>;

/// Softmax sampling (EchoRL): `PrioritySample(indices, probabilities, weights)`.
#[pyfunction]
#[pyo3(signature = (scores, *, temperature, beta, indices=None, batch_size=None, seed=None))]
pub(crate) fn priority_sample<'py>(
    py: Python<'py>,
    scores: Argument<'_, 'py>,
    temperature: f64,
    beta: f64,
    indices: Option<&Bound<'py, PyAny>>,
    batch_size: Option<usize>,
    seed: Option<u64>,
) -> PyResult<Bound<'py, PyAny>> {
    let scores = Floats::new("scores", scores)?;
    one_dimension("scores", scores.shape())?;
    let drawn = match (indices, batch_size) {
        (Some(indices), None) => Drawn::Given(positions(indices)?),
        (None, Some(count)) => Drawn::New { count, seed: seed.unwrap_or_else(|| RandomState::new().hash_one(0)) },
        _ => return Err(config("give either indices, for the items that were drawn, or batch_size, to draw so many")),
    };
    by_precision!([scores], sample_of(py, &scores, temperature, beta, drawn))
}

/// The items of a batch.
enum Drawn {
    Given(Vec<usize>),
    New { count: usize, seed: u64 },
}

fn sample_of<'py, F: Precision>(
    py: Python<'py>,
    scores: &Floats<'py>,
    temperature: f64,
    beta: f64,
    drawn: Drawn,
) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: Once = Once::new();
    let numbers = scores.of::<F>()?;
    let given = Softmax { scores: numbers.slice()?, temperature: F::from_f64(temperature) };
    let count = match &drawn {
        Drawn::Given(indices) => indices.len(),
        Drawn::New { count, .. } => *count,
    };
    let mut probabilities = Output::<F>::new(py, None, scores.shape())?;
    let mut weights = Output::<F>::new(py, None, &[count])?;
    let mut indices = Output::<i64>::new(py, None, &[count])?;
    let (to_probabilities, to_weights, to_indices) = (probabilities.slice()?, weights.slice()?, indices.slice()?);
    run(py, scores.size(), || {
        softmax_probabilities(&given, to_probabilities)?;
        let items = match drawn {
            Drawn::Given(indices) => indices,
            Drawn::New { count, seed } => {
                let mut items = vec![0; count];
                draw(to_probabilities, &mut SplitMix64::new(seed), &mut items)?;
                items
            }
        };
        softmax_weights(&given, F::from_f64(beta), &items, to_weights)?;
        for (index, item) in to_indices.iter_mut().zip(items) {
            *index = item as i64;
        }
        Ok(())
    })?;
    let fields = (indices.into_array(), probabilities.into_array(), weights.into_array());
    named_tuple(py, &CLASS, "PrioritySample", fields)
}

/// Proportional prioritized replay (arXiv 1511.05952): `ProportionalSample(probabilities, weights, weights_global_max)`.
#[pyfunction]
#[pyo3(signature = (priorities, *, alpha, beta, indices))]
pub(crate) fn prioritized_proportional<'py>(
    py: Python<'py>,
    priorities: Argument<'_, 'py>,
    alpha: f64,
    beta: f64,
    indices: Argument<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let priorities = Floats::new("priorities", priorities)?;
    one_dimension("priorities", priorities.shape())?;
    let indices = positions(indices)?;
    by_precision!([priorities], proportional_of(py, &priorities, alpha, beta, &indices))
}

fn proportional_of<'py, F: Precision>(
    py: Python<'py>,
    priorities: &Floats<'py>,
    alpha: f64,
    beta: f64,
    indices: &[usize],
) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: Once = Once::new();
    let numbers = priorities.of::<F>()?;
    let given = Proportional { priorities: numbers.slice()?, alpha: F::from_f64(alpha) };
    let mut probabilities = Output::<F>::new(py, None, priorities.shape())?;
    let mut weights = Output::<F>::new(py, None, &[indices.len()])?;
    let mut weights_global_max = Output::<F>::new(py, None, &[indices.len()])?;
    let (to_probabilities, to_weights) = (probabilities.slice()?, weights.slice()?);
    let to_global = weights_global_max.slice()?;
    run(py, priorities.size(), || {
        proportional_probabilities(&given, to_probabilities)?;
        proportional_weights(&given, F::from_f64(beta), indices, to_weights, to_global)
    })?;
    let fields = (probabilities.into_array(), weights.into_array(), weights_global_max.into_array());
    named_tuple(py, &CLASS, "ProportionalSample", fields)
}

/// Indices of items, none of which is negative.
fn positions(indices: Argument<'_, '_>) -> PyResult<Vec<usize>> {
    let array = Contiguous::new(indices)?;
    one_dimension("indices", array.shape())?;
    let position = |index: i64| {
        usize::try_from(index).map_err(|_| contract(&format!("indices must not be negative, but {index} came")))
    };
    integers("indices", &array)?.into_iter().map(position).collect()
}

fn one_dimension(name: &str, shape: &[usize]) -> PyResult<()> {
    if shape.len() == 1 {
        return Ok(());
    }
    Err(contract(&format!("{name} must be [N], but {} came", shape_text(shape))))
}
