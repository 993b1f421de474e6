//! Attention cost, and what is earned for it.

use pyo3::{prelude::*, types::PyInt};
use relevo_core::spec::shape_text;
use relevo_kernels::bandwidth::{
    Efficiency, Priorities, attention_bandwidth_cost as compute_cost, bandwidth_aware_priorities as compute_priorities,
    bandwidth_efficiency as compute_efficiency, effective_bandwidth_cost as compute_effective_cost,
};

use super::{
    arrays::{Floats, Output, Precision, by_precision, integers},
    refused, run,
};
use crate::{array::Contiguous, error::contract};

type Argument<'a, 'py> = &'a Bound<'py, PyAny>;

/// Attention cost of so many tokens, `scale · t(t+1)/2` (EchoRL); of one length, or of an array of them.
#[pyfunction]
#[pyo3(signature = (seq_len, scale=1.0))]
pub(crate) fn attention_bandwidth_cost<'py>(
    py: Python<'py>,
    seq_len: Argument<'_, 'py>,
    scale: f64,
) -> PyResult<Bound<'py, PyAny>> {
    let seq_len = Lengths::new("seq_len", seq_len)?;
    costs(py, &seq_len.shape, seq_len.numbers.iter().map(|seq_len| compute_cost(*seq_len, scale)))
}

/// Attention cost that is left when a prefix is reused (EchoRL); of one pair of lengths, or of arrays of them.
#[pyfunction]
#[pyo3(signature = (seq_len, reuse_len, scale=1.0))]
pub(crate) fn effective_bandwidth_cost<'py>(
    py: Python<'py>,
    seq_len: Argument<'_, 'py>,
    reuse_len: Argument<'_, 'py>,
    scale: f64,
) -> PyResult<Bound<'py, PyAny>> {
    let (seq_len, reuse_len) = (Lengths::new("seq_len", seq_len)?, Lengths::new("reuse_len", reuse_len)?);
    if seq_len.shape != reuse_len.shape {
        let (shape, came) = (shape_text(&seq_len.shape), shape_text(&reuse_len.shape));
        return Err(contract(&format!("reuse_len must have the shape of seq_len, {shape}, but {came} came")));
    }
    let pairs = seq_len.numbers.iter().zip(&reuse_len.numbers);
    costs(py, &seq_len.shape, pairs.map(|(seq_len, reuse_len)| compute_effective_cost(*seq_len, *reuse_len, scale)))
}

/// One number of tokens, or an array of them.
struct Lengths {
    numbers: Vec<u64>,
    shape: Vec<usize>,
}

impl Lengths {
    fn new(name: &'static str, object: Argument<'_, '_>) -> PyResult<Self> {
        if let Ok(number) = object.extract::<u64>() {
            return Ok(Self { numbers: vec![number], shape: Vec::new() });
        }
        if object.is_instance_of::<PyInt>() {
            return Err(contract(&format!("{name} must not be negative, nor 2^64 or more, but {object} came")));
        }
        let array = Contiguous::new(object)?;
        let number = |number: i64| {
            u64::try_from(number).map_err(|_| contract(&format!("{name} must not be negative, but {number} came")))
        };
        let numbers = integers(name, &array)?.into_iter().map(number).collect::<PyResult<_>>()?;
        Ok(Self { numbers, shape: array.shape().to_vec() })
    }
}

/// A float where the shape is that of a single number, else an array of them.
fn costs<'py>(
    py: Python<'py>,
    shape: &[usize],
    costs: impl Iterator<Item = relevo_kernels::Result<f64>>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut output = Output::<f64>::new(py, None, shape)?;
    for (output, cost) in output.slice()?.iter_mut().zip(costs) {
        *output = cost.map_err(|error| refused(&error))?;
    }
    scalar_or_array(output.into_array(), shape)
}

/// The float of an array of no dimensions; other arrays as they are.
fn scalar_or_array<'py>(array: Bound<'py, PyAny>, shape: &[usize]) -> PyResult<Bound<'py, PyAny>> {
    if shape.is_empty() { array.call_method0("item") } else { Ok(array) }
}

/// Priority of each request, `rewards / (bandwidth_weight · b_eff + queue_times + eps)` (EchoRL).
#[pyfunction]
#[pyo3(signature = (rewards, b_eff, queue_times, bandwidth_weight=1.0, eps=1e-6, *, out=None))]
pub(crate) fn bandwidth_aware_priorities<'py>(
    py: Python<'py>,
    rewards: Argument<'_, 'py>,
    b_eff: Argument<'_, 'py>,
    queue_times: Argument<'_, 'py>,
    bandwidth_weight: f64,
    eps: f64,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let floats =
        [Floats::new("rewards", rewards)?, Floats::new("b_eff", b_eff)?, Floats::new("queue_times", queue_times)?];
    floats[1].expect_shape("rewards", floats[0].shape())?;
    floats[2].expect_shape("rewards", floats[0].shape())?;
    by_precision!([floats[0], floats[1], floats[2]], priorities_of(py, &floats, [bandwidth_weight, eps], out))
}

fn priorities_of<'py, F: Precision>(
    py: Python<'py>,
    floats: &[Floats<'py>; 3],
    [bandwidth_weight, eps]: [f64; 2],
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let shape = floats[0].shape();
    let [rewards, b_eff, queue_times] = [floats[0].of::<F>()?, floats[1].of::<F>()?, floats[2].of::<F>()?];
    let given = Priorities {
        rewards: rewards.slice()?,
        b_eff: b_eff.slice()?,
        queue_times: queue_times.slice()?,
        bandwidth_weight: F::from_f64(bandwidth_weight),
        eps: F::from_f64(eps),
    };
    let mut priorities = Output::<F>::new(py, out, shape)?;
    priorities.apart_from(&[given.rewards, given.b_eff, given.queue_times])?;
    let written = priorities.slice()?;
    run(py, floats.iter().map(Floats::size).sum(), || compute_priorities(&given, written))?;
    if out.is_some() { Ok(priorities.into_array()) } else { scalar_or_array(priorities.into_array(), shape) }
}

/// Reward for each unit of bandwidth, that of rollouts and the learner's together (EchoRL).
#[pyfunction]
pub(crate) fn bandwidth_efficiency<'py>(
    py: Python<'py>,
    episode_rewards: Argument<'_, 'py>,
    episode_b_eff: Argument<'_, 'py>,
    weights: Argument<'_, 'py>,
    pg_losses: Argument<'_, 'py>,
) -> PyResult<f64> {
    let floats = [
        Floats::new("episode_rewards", episode_rewards)?,
        Floats::new("episode_b_eff", episode_b_eff)?,
        Floats::new("weights", weights)?,
        Floats::new("pg_losses", pg_losses)?,
    ];
    floats[1].expect_shape("episode_rewards", floats[0].shape())?;
    floats[2].expect_shape("pg_losses", floats[3].shape())?;
    // An empty batch says nothing of the precision.
    let used = floats.iter().filter(|floats| floats.size() > 0);
    let single = used.clone().count() > 0 && used.clone().all(Floats::is_single);
    let compute = if single { efficiency_of::<f32> } else { efficiency_of::<f64> };
    compute(py, &floats)
}

fn efficiency_of<F: Precision>(py: Python<'_>, floats: &[Floats<'_>; 4]) -> PyResult<f64> {
    let [rewards, b_eff] = [floats[0].of::<F>()?, floats[1].of::<F>()?];
    let [weights, losses] = [floats[2].of::<F>()?, floats[3].of::<F>()?];
    let given = Efficiency {
        episode_rewards: rewards.slice()?,
        episode_b_eff: b_eff.slice()?,
        weights: weights.slice()?,
        pg_losses: losses.slice()?,
    };
    run(py, floats.iter().map(Floats::size).sum(), || compute_efficiency(&given)).map(F::to_f64)
}
