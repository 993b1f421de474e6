//! What `AgentBuilder` says of a policy, taken from its Python attributes.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use relevo_core::{
    Result,
    policy::{ActionBounds, Normalizer, PolicyOptions},
};

use crate::error::to_python;

/// `PolicySettings` of `relevo/settings.py`.
#[derive(FromPyObject, Default)]
pub(crate) struct PolicySettings {
    pub(crate) head: Option<String>,
    pub(crate) branches: Vec<usize>,
    pub(crate) bounds: Option<Bounds>,
    pub(crate) normalization: BTreeMap<String, Normalization>,
}

/// `Bounds` of `relevo/settings.py`.
#[derive(FromPyObject)]
pub(crate) struct Bounds {
    how: String,
    low: Vec<f32>,
    high: Vec<f32>,
}

/// `Normalization` of `relevo/settings.py`.
#[derive(FromPyObject)]
pub(crate) struct Normalization {
    mean: Vec<f64>,
    variance: Vec<f64>,
    epsilon: f64,
    clip: f64,
}

/// Refuses bounds that no policy could use.
#[pyfunction]
pub(crate) fn check_bounds(bounds: Bounds) -> PyResult<()> {
    ActionBounds::try_from(bounds).map(drop).map_err(|error| to_python(&error))
}

/// Refuses statistics that no policy could use.
#[pyfunction]
pub(crate) fn check_normalization(normalization: Normalization) -> PyResult<()> {
    Normalizer::try_from(normalization).map(drop).map_err(|error| to_python(&error))
}

impl TryFrom<Bounds> for ActionBounds {
    type Error = relevo_core::Error;

    fn try_from(given: Bounds) -> Result<Self> {
        Self::new(given.how.parse()?, given.low, given.high)
    }
}

impl TryFrom<Normalization> for Normalizer {
    type Error = relevo_core::Error;

    fn try_from(given: Normalization) -> Result<Self> {
        Self::new(&given.mean, &given.variance, given.epsilon, given.clip)
    }
}

impl PolicySettings {
    /// The settings as the engine takes them, checked.
    pub(crate) fn options(self, keep_outputs: bool) -> Result<PolicyOptions> {
        let normalizers = self.normalization.into_iter().map(|(name, given)| Ok((name, Normalizer::try_from(given)?)));
        Ok(PolicyOptions {
            head: self.head.map(|head| head.parse()).transpose()?,
            branches: self.branches,
            bounds: self.bounds.map(ActionBounds::try_from).transpose()?,
            normalizers: normalizers.collect::<Result<_>>()?,
            keep_outputs,
        })
    }
}
