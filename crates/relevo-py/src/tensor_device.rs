//! The device that a tensor of PyTorch lies on, and the way back there for what is answered.

use pyo3::{prelude::*, types::PyDict};

/// A device of PyTorch's other than the CPU.
pub(crate) struct TensorDevice(Py<PyAny>);

impl TensorDevice {
    /// Where a tensor lies; `None` for what is in the CPU's memory, or no tensor of PyTorch.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        // What is one of its tensors was made with it loaded.
        let Some(torch) = torch(object.py())? else { return Ok(None) };
        if !object.is_instance(&torch.getattr("Tensor")?)? {
            return Ok(None);
        }
        let device = object.getattr("device")?;
        if device.getattr("type")?.eq("cpu")? {
            return Ok(None);
        }
        Ok(Some(Self(device.unbind())))
    }

    /// Copies an array, or each array of a dict, into a tensor there.
    pub(crate) fn tensor<'py>(&self, array: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = array.py();
        if let Ok(arrays) = array.cast::<PyDict>() {
            let tensors = PyDict::new(py);
            for (key, array) in arrays {
                tensors.set_item(key, self.tensor(&array)?)?;
            }
            return Ok(tensors.into_any());
        }
        py.import("torch")?.call_method1("from_numpy", (array,))?.call_method1("to", (&self.0,))
    }

    /// Does something while it is torch's current CUDA device.
    pub(crate) fn made_current<T>(&self, py: Python<'_>, work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
        let current = py.import("torch")?.getattr("cuda")?.call_method1("device", (&self.0,))?;
        current.call_method0("__enter__")?;
        let result = work();
        current.call_method1("__exit__", (py.None(), py.None(), py.None()))?;
        result
    }

    pub(crate) fn clone_ref(&self, py: Python<'_>) -> Self {
        Self(self.0.clone_ref(py))
    }
}

/// The module `torch`, where somebody has imported it.
fn torch(py: Python<'_>) -> PyResult<Option<Bound<'_, PyAny>>> {
    let modules = py.import("sys")?.getattr("modules")?.cast_into::<PyDict>()?;
    Ok(modules.get_item("torch")?.filter(|module| !module.is_none()))
}
