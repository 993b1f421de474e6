//! What `AgentBuilder` says of a policy, taken from its Python attributes.

use std::collections::BTreeMap;

use pyo3::FromPyObject;
use relevo_core::{
    Result,
    policy::{ActionBounds, Normalizer, PolicyOptions},
};

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

impl PolicySettings {
    /// The settings as the engine takes them, checked.
    pub(crate) fn options(self, keep_outputs: bool) -> Result<PolicyOptions> {
        let bounds = self.bounds.map(|bounds| ActionBounds::new(bounds.how.parse()?, bounds.low, bounds.high));
        let normalizers = self.normalization.into_iter().map(|(name, given)| {
            Normalizer::new(&given.mean, &given.variance, given.epsilon, given.clip)
                .map(|normalizer| (name, normalizer))
        });
        Ok(PolicyOptions {
            head: self.head.map(|head| head.parse()).transpose()?,
            branches: self.branches,
            bounds: bounds.transpose()?,
            normalizers: normalizers.collect::<Result<_>>()?,
            keep_outputs,
        })
    }
}
