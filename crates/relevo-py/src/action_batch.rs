//! `relevo.ActionBatch`: what a call of `act` gives.

use std::sync::Arc;

use pyo3::{prelude::*, types::PyDict};
use relevo_core::{runtime::ActionResults, spec::DType};

use crate::{array, error, once::Once, tensor_device::TensorDevice};

#[pyclass(frozen, module = "relevo")]
pub(crate) struct ActionBatch {
    results: Arc<ActionResults>,
    elsewhere: Option<Elsewhere>,
}

/// The device that the observations came from, and what was copied back there already.
struct Elsewhere {
    device: TensorDevice,
    action: Once,
    log_prob: Once,
    value: Once,
}

impl ActionBatch {
    /// What is answered to observations that came from `device`; `None` for the CPU's memory.
    pub(crate) fn new(results: Arc<ActionResults>, device: Option<TensorDevice>) -> Self {
        let (action, log_prob, value) = (Once::new(), Once::new(), Once::new());
        Self { results, elsewhere: device.map(|device| Elsewhere { device, action, log_prob, value }) }
    }
}

impl Elsewhere {
    /// The tensor of an array, which is copied once.
    fn copy<'py>(&self, known: &Once, array: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        known.get(array.py(), || self.device.tensor(array))
    }
}

#[pymethods]
impl ActionBatch {
    #[getter]
    fn action<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let action = host_action(slf)?;
        match &slf.get().elsewhere {
            None => Ok(action),
            Some(elsewhere) => elsewhere.copy(&elsewhere.action, &action),
        }
    }

    #[getter]
    fn log_prob<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        optional_floats(slf, slf.get().results.log_probs.as_deref(), |elsewhere| &elsewhere.log_prob)
    }

    #[getter]
    fn value<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        optional_floats(slf, slf.get().results.values.as_deref(), |elsewhere| &elsewhere.value)
    }

    #[getter]
    fn policy_version<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let versions = &slf.get().results.policy_versions;
        array::view(slf.as_any(), bytemuck::cast_slice(versions), DType::UInt64, &[versions.len()])
    }

    #[getter]
    fn outputs<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(outputs) = &slf.get().results.outputs else { return Ok(None) };
        let dict = PyDict::new(slf.py());
        for (name, tensor) in outputs {
            dict.set_item(name, array::view(slf.as_any(), tensor.bytes(), tensor.dtype(), tensor.shape())?)?;
        }
        Ok(Some(dict))
    }

    fn __len__(&self) -> usize {
        self.results.policy_versions.len()
    }

    fn __getitem__<'py>(slf: &Bound<'py, Self>, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        Self::action(slf)?.get_item(key)
    }

    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let action = only(host_action(slf)?)?;
        if dtype.is_none() && copy != Some(true) {
            return Ok(action);
        }
        let options = PyDict::new(slf.py());
        options.set_item("dtype", dtype)?;
        options.set_item("copy", copy)?;
        array::numpy_function(slf.py(), "array")?.call((action,), Some(&options))
    }

    #[pyo3(signature = (**options))]
    fn __dlpack__<'py>(slf: &Bound<'py, Self>, options: Option<&Bound<'py, PyDict>>) -> PyResult<Bound<'py, PyAny>> {
        only(Self::action(slf)?)?.call_method("__dlpack__", (), options)
    }

    fn __dlpack_device__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        only(Self::action(slf)?)?.call_method0("__dlpack_device__")
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let versions = &slf.get().results.policy_versions;
        Ok(format!(
            "ActionBatch(action={}, policy_version={})",
            Self::action(slf)?.repr()?,
            versions.first().unwrap_or(&0)
        ))
    }
}

/// The action array, or a dict of several, in the CPU's memory.
fn host_action<'py>(slf: &Bound<'py, ActionBatch>) -> PyResult<Bound<'py, PyAny>> {
    let ActionResults { actions, action_keys, .. } = &*slf.get().results;
    let arrays = action_keys.iter().zip(actions).map(|(key, column)| {
        Ok((key.as_str(), array::view(slf.as_any(), column.bytes(), column.dtype(), column.shape())?))
    });
    array::one_or_dict(slf.py(), arrays)
}

/// The action of a policy with actions of one kind.
fn only(action: Bound<'_, PyAny>) -> PyResult<Bound<'_, PyAny>> {
    match action.cast::<PyDict>() {
        Err(_) => Ok(action),
        Ok(columns) => Err(error::contract(&format!(
            "the policy gives actions of several kinds, which are no one array; take them by key from .action: {}",
            columns.keys()
        ))),
    }
}

fn optional_floats<'py>(
    slf: &Bound<'py, ActionBatch>,
    values: Option<&[f32]>,
    known: impl FnOnce(&Elsewhere) -> &Once,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(values) = values else { return Ok(None) };
    let array = array::view(slf.as_any(), bytemuck::cast_slice(values), DType::Float32, &[values.len()])?;
    match &slf.get().elsewhere {
        None => Ok(Some(array)),
        Some(elsewhere) => elsewhere.copy(known(elsewhere), &array).map(Some),
    }
}
