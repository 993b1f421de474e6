//! `relevo.ActionBatch`: what a call of `act` gives.

use std::sync::Arc;

use pyo3::{prelude::*, types::PyDict};
use relevo_core::{runtime::ActionResults, spec::DType};

use crate::{array, error};

#[pyclass(frozen, module = "relevo")]
pub(crate) struct ActionBatch(Arc<ActionResults>);

impl ActionBatch {
    pub(crate) fn new(results: Arc<ActionResults>) -> Self {
        Self(results)
    }
}

#[pymethods]
impl ActionBatch {
    #[getter]
    fn action<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let ActionResults { actions, action_keys, .. } = &*slf.get().0;
        let arrays = action_keys.iter().zip(actions).map(|(key, column)| {
            Ok((key.as_str(), array::view(slf.as_any(), column.bytes(), column.dtype(), column.shape())?))
        });
        array::one_or_dict(slf.py(), arrays)
    }

    #[getter]
    fn log_prob<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        optional_floats(slf, slf.get().0.log_probs.as_deref())
    }

    #[getter]
    fn value<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        optional_floats(slf, slf.get().0.values.as_deref())
    }

    #[getter]
    fn policy_version<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let versions = &slf.get().0.policy_versions;
        array::view(slf.as_any(), bytemuck::cast_slice(versions), DType::UInt64, &[versions.len()])
    }

    #[getter]
    fn outputs<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(outputs) = &slf.get().0.outputs else { return Ok(None) };
        let dict = PyDict::new(slf.py());
        for (name, tensor) in outputs {
            dict.set_item(name, array::view(slf.as_any(), tensor.bytes(), tensor.dtype(), tensor.shape())?)?;
        }
        Ok(Some(dict))
    }

    fn __len__(&self) -> usize {
        self.0.policy_versions.len()
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
        let action = only_action(slf)?;
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
        only_action(slf)?.call_method("__dlpack__", (), options)
    }

    fn __dlpack_device__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        only_action(slf)?.call_method0("__dlpack_device__")
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let versions = &slf.get().0.policy_versions;
        Ok(format!(
            "ActionBatch(action={}, policy_version={})",
            Self::action(slf)?.repr()?,
            versions.first().unwrap_or(&0)
        ))
    }
}

/// The action array of a policy with actions of one kind.
fn only_action<'py>(slf: &Bound<'py, ActionBatch>) -> PyResult<Bound<'py, PyAny>> {
    let action = ActionBatch::action(slf)?;
    match action.cast::<PyDict>() {
        Err(_) => Ok(action),
        Ok(columns) => Err(error::contract(&format!(
            "the policy gives actions of several kinds, which are no one array; take them by key from .action: {}",
            columns.keys()
        ))),
    }
}

fn optional_floats<'py>(slf: &Bound<'py, ActionBatch>, values: Option<&[f32]>) -> PyResult<Option<Bound<'py, PyAny>>> {
    values
        .map(|values| array::view(slf.as_any(), bytemuck::cast_slice(values), DType::Float32, &[values.len()]))
        .transpose()
}
