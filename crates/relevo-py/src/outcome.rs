//! The arguments of `observe`: rewards, ends of episodes and final observations, in the forms in which they come.

use std::sync::Arc;

use pyo3::{
    prelude::*,
    types::{PyBool, PyFloat},
};
use relevo_core::{
    runtime::{FinalObservations, Outcome, Rewards, Values},
    spec::DType,
    trajectory::StepSchema,
};

use crate::{array::Contiguous, error, final_observations};

/// The arguments of `observe`, checked.
pub(crate) struct OutcomeArguments<'py> {
    reward: Reward<'py>,
    terminated: Truth<'py>,
    truncated: Truth<'py>,
    pub(crate) finals: FinalObservations,
}

/// The same in memory of our own, for calls that run with the interpreter lock released.
pub(crate) struct OwnedOutcome {
    reward: Option<Vec<f64>>,
    terminated: Vec<u8>,
    truncated: Vec<u8>,
    pub(crate) finals: FinalObservations,
}

impl<'py> OutcomeArguments<'py> {
    /// Checks the arguments for `rows` actors; `observed` tells what their observations look like and are called.
    pub(crate) fn new(
        reward: &Bound<'py, PyAny>,
        terminated: Option<&Bound<'py, PyAny>>,
        truncated: Option<&Bound<'py, PyAny>>,
        final_obs: Option<&Bound<'py, PyAny>>,
        rows: usize,
        observed: impl FnOnce() -> PyResult<(Arc<StepSchema>, Vec<String>)>,
    ) -> PyResult<Self> {
        let reward = Reward::new(reward, rows)?;
        let terminated = Truth::new("terminated", terminated, rows)?;
        let truncated = Truth::new("truncated", truncated, rows)?;
        let finals = match final_obs {
            None => FinalObservations::default(),
            Some(given) => {
                let ended = ended_rows(&terminated, &truncated, rows);
                {
                    let (schema, names) = observed()?;
                    final_observations::collect(given, &ended, rows, &schema, &names)?
                }
            }
        };
        Ok(Self { reward, terminated, truncated, finals })
    }

    pub(crate) fn outcome(&self) -> Outcome<'_> {
        Outcome {
            rewards: self.reward.rewards(),
            terminated: self.terminated.values(),
            truncated: self.truncated.values(),
        }
    }

    pub(crate) fn into_owned(self, rows: usize) -> OwnedOutcome {
        let truth = |truth: &Truth<'_>| (0..rows).map(|row| u8::from(truth.get(row))).collect();
        OwnedOutcome {
            reward: (0..rows).map(|row| self.reward.rewards().get(row)).collect(),
            terminated: truth(&self.terminated),
            truncated: truth(&self.truncated),
            finals: self.finals,
        }
    }
}

impl OwnedOutcome {
    pub(crate) fn outcome(&self) -> Outcome<'_> {
        Outcome {
            rewards: self.reward.as_deref().map_or(Rewards::Unknown, |reward| Rewards::Float64(Values::Each(reward))),
            terminated: Values::Each(&self.terminated),
            truncated: Values::Each(&self.truncated),
        }
    }
}

/// The rows in which an episode ended.
fn ended_rows(terminated: &Truth<'_>, truncated: &Truth<'_>, rows: usize) -> Vec<usize> {
    match (terminated, truncated) {
        (Truth::Each(terminated), Truth::Each(truncated)) => {
            let pairs = terminated.bytes().iter().zip(truncated.bytes());
            pairs.enumerate().filter(|(_, (left, right))| **left | **right != 0).map(|(row, _)| row).collect()
        }
        _ => (0..rows).filter(|row| terminated.get(*row) || truncated.get(*row)).collect(),
    }
}

/// Rewards in the forms in which they come.
enum Reward<'py> {
    Unknown,
    Same(f64),
    Float64(Contiguous<'py>),
    Float32(Contiguous<'py>),
}

impl<'py> Reward<'py> {
    fn new(reward: &Bound<'py, PyAny>, rows: usize) -> PyResult<Self> {
        if reward.is_none() {
            return Ok(Self::Unknown);
        }
        if let Ok(reward) = reward.cast::<PyFloat>() {
            return Ok(Self::Same(reward.value()));
        }
        let array = Contiguous::new(reward)?;
        let array = match array.dtype() {
            Some(DType::Float64 | DType::Float32) => array,
            Some(_) => array.converted("float64")?,
            None => {
                return Err(error::contract("reward must be a number, or an array of numbers with one for each actor"));
            }
        };
        match (array.shape(), array.dtype()) {
            ([], Some(DType::Float64)) => Ok(Self::Same(bytemuck::pod_read_unaligned(array.bytes()))),
            ([], _) => Ok(Self::Same(f64::from(bytemuck::pod_read_unaligned::<f32>(array.bytes())))),
            ([found], Some(DType::Float64)) if *found == rows => Ok(Self::Float64(array)),
            ([found], _) if *found == rows => Ok(Self::Float32(array)),
            (shape, _) => Err(error::contract(&format!(
                "reward must be a number, or an array of shape ({rows},) with one for each actor, but an array of shape {} \
                 came",
                relevo_core::spec::shape_text(shape)
            ))),
        }
    }

    fn rewards(&self) -> Rewards<'_> {
        match self {
            Self::Unknown => Rewards::Unknown,
            Self::Same(reward) => Rewards::Float64(Values::Same(*reward)),
            Self::Float64(array) => Rewards::Float64(Values::Each(bytemuck::cast_slice(array.bytes()))),
            Self::Float32(array) => Rewards::Float32(bytemuck::cast_slice(array.bytes())),
        }
    }
}

/// One truth value for all actors, or one for each.
enum Truth<'py> {
    Same(bool),
    Each(Contiguous<'py>),
}

impl<'py> Truth<'py> {
    fn new(name: &str, given: Option<&Bound<'py, PyAny>>, rows: usize) -> PyResult<Self> {
        let Some(given) = given else { return Ok(Self::Same(false)) };
        if let Ok(given) = given.cast::<PyBool>() {
            return Ok(Self::Same(given.is_true()));
        }
        let array = Contiguous::new(given)?;
        if let ([], Some(DType::Bool)) = (array.shape(), array.dtype()) {
            return Ok(Self::Same(array.bytes()[0] != 0));
        }
        array.expect(name, DType::Bool, rows, &[])?;
        Ok(Self::Each(array))
    }

    fn get(&self, row: usize) -> bool {
        match self {
            Self::Same(value) => *value,
            Self::Each(array) => array.bytes()[row] != 0,
        }
    }

    fn values(&self) -> Values<'_, u8> {
        match self {
            Self::Same(value) => Values::Same(u8::from(*value)),
            Self::Each(array) => Values::Each(array.bytes()),
        }
    }
}
