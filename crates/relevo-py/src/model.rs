//! `relevo.ModelModule`: a loaded model file.

use std::{collections::BTreeMap, path::PathBuf};

use pyo3::{prelude::*, types::PyDict};
use relevo_core::{
    policy::{LoadOptions, LoadedModel, default_device, model_file},
    tensor::Tensor,
};

use crate::{
    array::{self, Contiguous},
    backends::{backends_for_bytes, backends_for_path},
    contract::Contract,
    detach::{detach, detach_and_log},
    error::{self, to_python},
};

#[pyclass(frozen, from_py_object, module = "relevo")]
#[derive(Clone)]
pub(crate) struct ModelModule(pub(crate) LoadedModel);

#[pymethods]
impl ModelModule {
    #[staticmethod]
    #[pyo3(
        signature = (path, *, threads=1, device=None, roles=None, shapes=None),
        text_signature = "(path, *, threads=1, device=None, roles=None, shapes=None)"
    )]
    pub(crate) fn load_from_path(
        py: Python<'_>,
        path: PathBuf,
        threads: usize,
        device: Option<String>,
        roles: Option<BTreeMap<String, String>>,
        shapes: Option<BTreeMap<String, Vec<usize>>>,
    ) -> PyResult<Self> {
        let shapes = shapes.unwrap_or_default();
        let roles = roles.unwrap_or_default();
        let file = model_file(&path).map_err(|error| to_python(&error))?;
        let backends = backends_for_path(py, &file)?;
        detach_and_log(py, || {
            let device = device.map_or_else(|| default_device(&path), Ok)?;
            LoadedModel::load(
                &path,
                &backends,
                &LoadOptions { threads, device, shapes, ..LoadOptions::default() },
                &roles,
            )
        })
        .map(Self)
    }

    #[staticmethod]
    #[pyo3(
        signature = (data, *, name="bytes".to_owned(), threads=1, device="cpu".to_owned(), roles=None, shapes=None),
        text_signature = "(data, *, name='bytes', threads=1, device='cpu', roles=None, shapes=None)"
    )]
    pub(crate) fn load_from_bytes(
        py: Python<'_>,
        data: &[u8],
        name: String,
        threads: usize,
        device: String,
        roles: Option<BTreeMap<String, String>>,
        shapes: Option<BTreeMap<String, Vec<usize>>>,
    ) -> PyResult<Self> {
        let backends = backends_for_bytes(py, &name, data)?;
        let options = LoadOptions { threads, device, shapes: shapes.unwrap_or_default(), ..LoadOptions::default() };
        let roles = roles.unwrap_or_default();
        detach_and_log(py, || LoadedModel::load_bytes(&name, data, &backends, &options, &roles)).map(Self)
    }

    #[getter]
    fn path(&self) -> PathBuf {
        self.0.path.clone()
    }

    #[getter]
    fn format(&self) -> &'static str {
        self.0.model.format()
    }

    #[getter]
    fn sha256(&self) -> String {
        self.0.model.facts().sha256.clone()
    }

    #[getter]
    fn contract(&self, py: Python<'_>) -> PyResult<Contract> {
        Contract::new(py, &self.0)
    }

    fn forward<'py>(&self, py: Python<'py>, inputs: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyDict>> {
        let specs = self.0.model.inputs();
        let known = || specs.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>().join(", ");
        for key in inputs.keys() {
            let key: String = key.extract()?;
            if !specs.iter().any(|spec| spec.name == key) {
                return Err(error::contract(&format!("the model has no input `{key}`; its inputs are {}", known())));
            }
        }
        // Copied first: the forward pass runs with the interpreter lock released, when others may write to the arrays.
        let tensors = specs
            .iter()
            .map(|spec| {
                let given = inputs.get_item(&spec.name)?.ok_or_else(|| {
                    error::contract(&format!("the input `{}` is missing; the model takes {}", spec.name, known()))
                })?;
                let array = Contiguous::new(&given)?;
                let Some(dtype) = array.dtype() else {
                    return Err(error::contract(&format!("the input `{}` must be an array of numbers", spec.name)));
                };
                let mut tensor = Tensor::zeros(dtype, array.shape());
                tensor.bytes_mut().copy_from_slice(array.bytes());
                Ok(tensor)
            })
            .collect::<PyResult<Vec<_>>>()?;
        let outputs = detach(py, || self.0.forward(&tensors.iter().map(Tensor::view).collect::<Vec<_>>()))?;
        let result = PyDict::new(py);
        for (spec, tensor) in self.0.model.outputs().iter().zip(outputs) {
            let owner = Bound::new(py, OwnedTensor(tensor))?;
            let tensor = &owner.get().0;
            result
                .set_item(&spec.name, array::view(owner.as_any(), tensor.bytes(), tensor.dtype(), tensor.shape())?)?;
        }
        Ok(result)
    }

    fn __repr__(&self) -> String {
        format!("ModelModule({}, {})", self.0.path.display(), self.0.model.format())
    }
}

/// A tensor that is the base of a NumPy array.
#[pyclass(frozen)]
struct OwnedTensor(Tensor);
