//! What `Agent.update_model` takes: a path, bytes, a loaded model, or a module of a training loop.

use std::{borrow::Cow, collections::BTreeMap};

use pyo3::{
    prelude::*,
    types::{PyBytes, PyString},
};
use relevo_core::{
    Result,
    policy::{LoadedModel, Normalizer, PolicySlot},
};

use crate::{contract::Contract, detach::detach, error::to_python, model::ModelModule, policy_settings::Normalization};

/// Statistics of observations, by the names of the inputs; none to keep those that are there.
pub(crate) type Normalizers = Option<BTreeMap<String, Normalizer>>;

/// A module as a TorchScript file: its bytes, its name, the shapes of its inputs' rows, and the roles of states.
type Traced<'py> = (Bound<'py, PyBytes>, String, BTreeMap<String, Vec<usize>>, BTreeMap<String, String>);

/// What `normalization=` gives, for a policy that `slot` serves.
pub(crate) fn normalizers(
    py: Python<'_>,
    given: Option<&Bound<'_, PyAny>>,
    slot: &PolicySlot,
) -> PyResult<Normalizers> {
    let Some(given) = given.filter(|given| !given.is_none()) else { return Ok(None) };
    let contract = Contract::new(py, &slot.current().loaded)?;
    let by_name = py.import("relevo.settings")?.call_method1("statistics", (contract, given))?;
    let by_name: BTreeMap<String, Normalization> = by_name.extract()?;
    let each = by_name.into_iter().map(|(name, own)| Ok((name, Normalizer::try_from(own)?)));
    each.collect::<Result<_>>().map(Some).map_err(|error| to_python(&error))
}

/// Loads a model for the policy `slot`, as the one that serves it was loaded. `normalizes` says that the policy will normalise
/// observations itself, or that nothing shall, so that what is traced is to do without.
pub(crate) fn load(
    py: Python<'_>,
    model: &Bound<'_, PyAny>,
    slot: &PolicySlot,
    normalizes: bool,
) -> PyResult<LoadedModel> {
    if let Ok(model) = model.cast::<ModelModule>() {
        return Ok(model.get().0.clone());
    }
    let current = slot.current();
    let serving = &current.loaded;
    let (threads, device) = (serving.options.threads, slot.device().to_string());
    let roles = Some(serving.roles.clone());
    if let Ok(data) = model.extract::<Cow<'_, [u8]>>() {
        return Ok(ModelModule::load_from_bytes(py, &data, "bytes".into(), threads, device, roles, None)?.0);
    }
    if model.is_instance_of::<PyString>() || model.hasattr("__fspath__")? {
        return Ok(ModelModule::load_from_path(py, model.extract()?, threads, Some(device), roles, None)?.0);
    }
    let arguments = (model, Contract::new(py, serving)?, &**slot.device(), normalizes);
    let traced = py.import("relevo.export.handover")?.call_method1("torchscript", arguments)?;
    let (data, name, shapes, roles): Traced<'_> = traced.extract()?;
    let new = ModelModule::load_from_bytes(py, data.as_bytes(), name, threads, device, Some(roles), Some(shapes))?;
    detach(py, || new.0.named_after(serving))
}
