//! Advantages and returns.

use pyo3::prelude::*;
use relevo_kernels::advantage::{
    DiscountedReturns, Gae, NStep, NStepOutputs, Vtrace, VtraceOutputs, discounted_returns as compute_returns,
    gae as compute_gae, gae_into_new, n_step as compute_n_step, vtrace as compute_vtrace,
};

use super::{
    arrays::{Flags, Floats, Output, Precision, by_precision, outputs, streams},
    named_tuple, run,
};
use crate::{error::config, once::Once};

type Argument<'a, 'py> = &'a Bound<'py, PyAny>;

/// Generalised advantage estimation (arXiv 1506.02438): `Advantages(advantages, returns)`.
#[pyfunction]
#[pyo3(signature = (rewards, values, next_values, terminated, truncated, *, gamma, lam, out=None))]
#[expect(clippy::too_many_arguments, reason = "the kernel's own")]
pub(crate) fn gae<'py>(
    py: Python<'py>,
    rewards: Argument<'_, 'py>,
    values: Argument<'_, 'py>,
    next_values: Argument<'_, 'py>,
    terminated: Argument<'_, 'py>,
    truncated: Argument<'_, 'py>,
    gamma: f64,
    lam: f64,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let floats =
        [Floats::new("rewards", rewards)?, Floats::new("values", values)?, Floats::new("next_values", next_values)?];
    let flags = [Flags::new("terminated", terminated)?, Flags::new("truncated", truncated)?];
    check_shapes(&floats, &flags)?;
    by_precision!([floats[0], floats[1], floats[2]], gae_of(py, &floats, &flags, [gamma, lam], out))
}

fn gae_of<'py, F: Precision>(
    py: Python<'py>,
    floats: &[Floats<'py>; 3],
    flags: &[Flags<'py>; 2],
    [gamma, lam]: [f64; 2],
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: Once = Once::new();
    let shape = floats[0].shape();
    let [rewards, values, next_values] = [floats[0].of::<F>()?, floats[1].of::<F>()?, floats[2].of::<F>()?];
    let given = Gae {
        streams: streams("rewards", shape)?,
        rewards: rewards.slice()?,
        values: values.slice()?,
        next_values: next_values.slice()?,
        terminated: flags[0].slice(),
        truncated: flags[1].slice(),
        gamma: F::from_f64(gamma),
        lam: F::from_f64(lam),
    };
    let [to_advantages, to_returns] = outputs(out, "advantages and returns")?;
    let mut advantages = Output::<F>::new(py, to_advantages.as_ref(), shape)?;
    let mut returns = Output::<F>::new(py, to_returns.as_ref(), shape)?;
    for output in [&advantages, &returns] {
        output.apart_from(&[given.rewards, given.values, given.next_values])?;
        output.apart_from(&[given.terminated, given.truncated])?;
    }
    let (to_advantages, to_returns) = (advantages.slice()?, returns.slice()?);
    let compute = if out.is_some() { compute_gae } else { gae_into_new };
    run(py, size(floats), || compute(&given, to_advantages, to_returns))?;
    named_tuple(py, &CLASS, "Advantages", (advantages.into_array(), returns.into_array()))
}

/// Discounted returns (Sutton & Barto, chapter 3), bootstrapped where a step is truncated or the last.
#[pyfunction]
#[pyo3(signature = (rewards, terminated, truncated, next_values=None, *, gamma, out=None))]
pub(crate) fn discounted_returns<'py>(
    py: Python<'py>,
    rewards: Argument<'_, 'py>,
    terminated: Argument<'_, 'py>,
    truncated: Argument<'_, 'py>,
    next_values: Option<&Bound<'py, PyAny>>,
    gamma: f64,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut floats = vec![Floats::new("rewards", rewards)?];
    if let Some(next_values) = next_values {
        floats.push(Floats::new("next_values", next_values)?);
    }
    let flags = [Flags::new("terminated", terminated)?, Flags::new("truncated", truncated)?];
    check_shapes(&floats, &flags)?;
    let single = floats.iter().all(Floats::is_single);
    let compute = if single { returns_of::<f32> } else { returns_of::<f64> };
    compute(py, &floats, &flags, gamma, out)
}

fn returns_of<'py, F: Precision>(
    py: Python<'py>,
    floats: &[Floats<'py>],
    flags: &[Flags<'py>; 2],
    gamma: f64,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let shape = floats[0].shape();
    let rewards = floats[0].of::<F>()?;
    let next_values = floats.get(1).map(Floats::of::<F>).transpose()?;
    let given = DiscountedReturns {
        streams: streams("rewards", shape)?,
        rewards: rewards.slice()?,
        next_values: next_values.as_ref().map(|next_values| next_values.slice()).transpose()?,
        terminated: flags[0].slice(),
        truncated: flags[1].slice(),
        gamma: F::from_f64(gamma),
    };
    let mut returns = Output::<F>::new(py, out, shape)?;
    returns.apart_from(&[given.rewards, given.next_values.unwrap_or_default()])?;
    returns.apart_from(&[given.terminated, given.truncated])?;
    let to_returns = returns.slice()?;
    run(py, size(floats), || compute_returns(&given, to_returns))?;
    Ok(returns.into_array())
}

/// n-step returns that never cross an episode's end: `NStepReturns(returns, discounts, bootstrap_index, steps)`.
#[pyfunction]
#[pyo3(signature = (rewards, terminated, truncated, *, gamma, n, out=None))]
pub(crate) fn n_step<'py>(
    py: Python<'py>,
    rewards: Argument<'_, 'py>,
    terminated: Argument<'_, 'py>,
    truncated: Argument<'_, 'py>,
    gamma: f64,
    n: i64,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let floats = [Floats::new("rewards", rewards)?];
    let flags = [Flags::new("terminated", terminated)?, Flags::new("truncated", truncated)?];
    check_shapes(&floats, &flags)?;
    let n = usize::try_from(n).map_err(|_| config(&format!("n must be 1 or more, but {n} came")))?;
    by_precision!([floats[0]], n_step_of(py, &floats, &flags, gamma, n, out))
}

fn n_step_of<'py, F: Precision>(
    py: Python<'py>,
    floats: &[Floats<'py>; 1],
    flags: &[Flags<'py>; 2],
    gamma: f64,
    n: usize,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: Once = Once::new();
    let shape = floats[0].shape();
    let rewards = floats[0].of::<F>()?;
    let given = NStep {
        streams: streams("rewards", shape)?,
        rewards: rewards.slice()?,
        terminated: flags[0].slice(),
        truncated: flags[1].slice(),
        gamma: F::from_f64(gamma),
        n,
    };
    let out = outputs::<4>(out, "returns, discounts, bootstrap_index and steps")?;
    let mut returns = Output::<F>::new(py, out[0].as_ref(), shape)?;
    let mut discounts = Output::<F>::new(py, out[1].as_ref(), shape)?;
    let mut bootstrap_index = Output::<i64>::new(py, out[2].as_ref(), shape)?;
    let mut steps = Output::<i64>::new(py, out[3].as_ref(), shape)?;
    for output in [&returns, &discounts] {
        output.apart_from(&[given.rewards])?;
        output.apart_from(&[given.terminated, given.truncated])?;
    }
    for output in [&bootstrap_index, &steps] {
        output.apart_from(&[given.rewards])?;
        output.apart_from(&[given.terminated, given.truncated])?;
    }
    let written = NStepOutputs {
        returns: returns.slice()?,
        discounts: discounts.slice()?,
        bootstrap_index: bootstrap_index.slice()?,
        steps: steps.slice()?,
    };
    // A step is worked on once for each of those taken together.
    run(py, size(floats).saturating_mul(n), || compute_n_step(&given, written))?;
    let fields = (returns.into_array(), discounts.into_array(), bootstrap_index.into_array(), steps.into_array());
    named_tuple(py, &CLASS, "NStepReturns", fields)
}

/// V-trace (arXiv 1802.01561): `VTrace(vs, pg_advantages)`.
#[pyfunction]
#[pyo3(signature = (
    behaviour_log_probs, target_log_probs, rewards, values, next_values, terminated, truncated, *, gamma, rho_bar=1.0,
    c_bar=1.0, lam=1.0, out=None
))]
#[expect(clippy::too_many_arguments, reason = "the kernel's own")]
pub(crate) fn vtrace<'py>(
    py: Python<'py>,
    behaviour_log_probs: Argument<'_, 'py>,
    target_log_probs: Argument<'_, 'py>,
    rewards: Argument<'_, 'py>,
    values: Argument<'_, 'py>,
    next_values: Argument<'_, 'py>,
    terminated: Argument<'_, 'py>,
    truncated: Argument<'_, 'py>,
    gamma: f64,
    rho_bar: f64,
    c_bar: f64,
    lam: f64,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let floats = [
        Floats::new("rewards", rewards)?,
        Floats::new("values", values)?,
        Floats::new("next_values", next_values)?,
        Floats::new("behaviour_log_probs", behaviour_log_probs)?,
        Floats::new("target_log_probs", target_log_probs)?,
    ];
    let flags = [Flags::new("terminated", terminated)?, Flags::new("truncated", truncated)?];
    check_shapes(&floats, &flags)?;
    let settings = [gamma, rho_bar, c_bar, lam];
    by_precision!(
        [floats[0], floats[1], floats[2], floats[3], floats[4]],
        vtrace_of(py, &floats, &flags, settings, out)
    )
}

fn vtrace_of<'py, F: Precision>(
    py: Python<'py>,
    floats: &[Floats<'py>; 5],
    flags: &[Flags<'py>; 2],
    settings: [f64; 4],
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: Once = Once::new();
    let shape = floats[0].shape();
    let [rewards, values, next_values] = [floats[0].of::<F>()?, floats[1].of::<F>()?, floats[2].of::<F>()?];
    let [behaviour, target] = [floats[3].of::<F>()?, floats[4].of::<F>()?];
    let [gamma, rho_bar, c_bar, lam] = settings.map(F::from_f64);
    let given = Vtrace {
        streams: streams("rewards", shape)?,
        behaviour_log_probs: behaviour.slice()?,
        target_log_probs: target.slice()?,
        rewards: rewards.slice()?,
        values: values.slice()?,
        next_values: next_values.slice()?,
        terminated: flags[0].slice(),
        truncated: flags[1].slice(),
        gamma,
        rho_bar,
        c_bar,
        lam,
    };
    let [to_vs, to_pg_advantages] = outputs(out, "vs and pg_advantages")?;
    let mut vs = Output::<F>::new(py, to_vs.as_ref(), shape)?;
    let mut pg_advantages = Output::<F>::new(py, to_pg_advantages.as_ref(), shape)?;
    for output in [&vs, &pg_advantages] {
        output.apart_from(&[given.behaviour_log_probs, given.target_log_probs])?;
        output.apart_from(&[given.rewards, given.values, given.next_values])?;
        output.apart_from(&[given.terminated, given.truncated])?;
    }
    let written = VtraceOutputs { vs: vs.slice()?, pg_advantages: pg_advantages.slice()? };
    run(py, size(floats), || compute_vtrace(&given, written))?;
    named_tuple(py, &CLASS, "VTrace", (vs.into_array(), pg_advantages.into_array()))
}

/// Refuses arrays that do not all have the shape of the first, the rewards.
fn check_shapes(floats: &[Floats<'_>], flags: &[Flags<'_>]) -> PyResult<()> {
    let Some((first, others)) = floats.split_first() else { return Ok(()) };
    for other in others {
        other.expect_shape("rewards", first.shape())?;
    }
    flags.iter().try_for_each(|flags| flags.expect_shape("rewards", first.shape()))
}

fn size(floats: &[Floats<'_>]) -> usize {
    floats.iter().map(Floats::size).sum()
}
