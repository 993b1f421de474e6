//! Latent plans.

use parking_lot::Mutex;
use pyo3::prelude::*;
use relevo_core::spec::shape_text;
use relevo_kernels::plan::{EmaPlanTracker as Tracker, Surprise, plan_surprise as compute_surprise};

use super::{
    arrays::{Floats, Output, Precision, by_precision},
    refused, run,
};
use crate::error::{config, contract};

type Argument<'a, 'py> = &'a Bound<'py, PyAny>;

/// Replay score of each plan, `‖plan − mean_plan‖² + alpha · |reward|` (EchoRL).
#[pyfunction]
#[pyo3(signature = (plans, mean_plan, rewards, alpha, *, out=None))]
pub(crate) fn plan_surprise<'py>(
    py: Python<'py>,
    plans: Argument<'_, 'py>,
    mean_plan: Argument<'_, 'py>,
    rewards: Argument<'_, 'py>,
    alpha: f64,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let floats = [Floats::new("plans", plans)?, Floats::new("mean_plan", mean_plan)?, Floats::new("rewards", rewards)?];
    let (&[dim], &[count]) = (floats[1].shape(), floats[2].shape()) else {
        let (mean, rewards) = (shape_text(floats[1].shape()), shape_text(floats[2].shape()));
        return Err(contract(&format!("mean_plan must be [d] and rewards [N], but {mean} and {rewards} came")));
    };
    if floats[0].shape() != [count, dim] && (count > 0 || floats[0].size() > 0) {
        let (wanted, came) = (shape_text(&[count, dim]), shape_text(floats[0].shape()));
        return Err(contract(&format!("plans must be [N, d], here {wanted}, but {came} came")));
    }
    by_precision!([floats[0], floats[1], floats[2]], surprise_of(py, &floats, alpha, out))
}

fn surprise_of<'py, F: Precision>(
    py: Python<'py>,
    floats: &[Floats<'py>; 3],
    alpha: f64,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let [plans, mean_plan, rewards] = [floats[0].of::<F>()?, floats[1].of::<F>()?, floats[2].of::<F>()?];
    let given = Surprise {
        plans: plans.slice()?,
        mean_plan: mean_plan.slice()?,
        rewards: rewards.slice()?,
        alpha: F::from_f64(alpha),
    };
    let mut scores = Output::<F>::new(py, out, floats[2].shape())?;
    scores.apart_from(&[given.plans, given.mean_plan, given.rewards])?;
    let written = scores.slice()?;
    run(py, floats.iter().map(Floats::size).sum(), || compute_surprise(&given, written))?;
    Ok(scores.into_array())
}

/// Running mean of plans (EchoRL).
#[pyclass(frozen, module = "relevo.kernels", name = "EMAPlanTracker")]
pub(crate) struct EmaPlanTracker(Mutex<Tracker<f64>>);

#[pymethods]
impl EmaPlanTracker {
    #[new]
    fn new(dim: i64, decay: f64) -> PyResult<Self> {
        let dim = usize::try_from(dim).map_err(|_| config(&format!("dim must be 1 or more, but {dim} came")))?;
        Ok(Self(Mutex::new(Tracker::new(dim, decay).map_err(|error| refused(&error))?)))
    }

    /// Takes in one plan `[dim]`, or a batch `[n, dim]`, which is its rows in order.
    fn update(&self, plans: Argument<'_, '_>) -> PyResult<()> {
        let plans = Floats::new("plans", plans)?;
        let numbers = plans.of::<f64>()?;
        let mut tracker = self.0.lock();
        let shape = plans.shape();
        let fits = (1..=2).contains(&shape.len()) && shape.last() == Some(&tracker.dim());
        // An empty list is a batch of none.
        if !fits && shape != [0] {
            let dim = tracker.dim();
            return Err(contract(&format!(
                "a plan must be [{dim}], or a batch [n, {dim}], but {} came",
                shape_text(shape)
            )));
        }
        tracker.update(numbers.slice()?).map_err(|error| refused(&error))
    }

    /// The mean, float64 `[dim]`, or None before the first plan.
    #[getter]
    fn mean<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let tracker = self.0.lock();
        let Some(mean) = tracker.mean() else { return Ok(None) };
        let mut array = Output::<f64>::new(py, None, &[mean.len()])?;
        array.slice()?.copy_from_slice(mean);
        Ok(Some(array.into_array()))
    }

    /// How many plans were taken in.
    #[getter]
    fn count(&self) -> u64 {
        self.0.lock().count()
    }

    /// How many numbers a plan has.
    #[getter]
    fn dim(&self) -> usize {
        self.0.lock().dim()
    }

    /// How much of the mean stays with each plan.
    #[getter]
    fn decay(&self) -> f64 {
        self.0.lock().decay()
    }
}
