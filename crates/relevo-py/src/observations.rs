//! Observations in the forms in which they come: one array, a dict by name, a tuple in the model's order.

use numpy::PyUntypedArray;
use pyo3::{
    prelude::*,
    types::{PyDict, PyTuple},
};
use relevo_core::{
    runtime::{ActCall, Recording},
    spec::DType,
    tensor::DeviceId,
    trajectory::{ExtraSpec, StepSchema},
};
use smallvec::SmallVec;

use crate::{
    array::{Came, Contiguous, fits, misfit},
    device_tensor::DeviceTensor,
    error::{self, to_python},
    tensor_device::TensorDevice,
};

/// What `act` was given to observe, in the order of the policy's observation columns.
pub(crate) enum Observations<'py> {
    One(Observation<'py>),
    Several(Vec<Observation<'py>>),
}

/// One of them.
pub(crate) enum Observation<'py> {
    Host(Contiguous<'py>),
    Device(Box<DeviceTensor<'py>>),
}

/// What a call needs of tensors on a device before it can begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// Copies on the host.
    Copies,
    /// That they are whole, and without NaN.
    Soundness,
}

impl<'py> Observation<'py> {
    fn new(object: &Bound<'py, PyAny>, device: &impl Fn() -> DeviceId) -> PyResult<Self> {
        if !object.is_instance_of::<PyUntypedArray>()
            && let Some(tensor) = DeviceTensor::of(object, device())?
        {
            return Ok(Self::Device(Box::new(tensor)));
        }
        Contiguous::new(object).map(Self::Host)
    }

    /// The array on the host, where there is one.
    fn host(&self) -> Option<&Contiguous<'py>> {
        match self {
            Self::Host(array) => Some(array),
            Self::Device(tensor) => tensor.host(),
        }
    }

    fn bytes(&self) -> &[u8] {
        self.host().map_or(&[], Contiguous::bytes)
    }

    fn expect(&self, what: &str, dtype: DType, rows: usize, row_shape: &[usize]) -> PyResult<()> {
        match self {
            Self::Host(array) => array.expect(what, dtype, rows, row_shape),
            Self::Device(tensor) if tensor.dtype() == dtype && fits(tensor.shape(), rows, row_shape) => Ok(()),
            Self::Device(tensor) => {
                let came = Came { dtype: Some(tensor.dtype()), name: tensor.dtype().name(), shape: tensor.shape() };
                Err(misfit(what, dtype, rows, row_shape, &came))
            }
        }
    }
}

impl<'py> Observations<'py> {
    /// Takes `obs` apart; `names` tells the names of the policy's observations, `extras` which entries are texts beside them, and
    /// `device` where a call might read them beside the host. This may run Python code.
    pub(crate) fn new(
        obs: &Bound<'py, PyAny>,
        extras: &[ExtraSpec],
        names: impl FnOnce() -> Vec<String>,
        device: impl Fn() -> DeviceId,
    ) -> PyResult<Self> {
        if let Ok(dict) = obs.cast::<PyDict>() {
            let names = names();
            let arrays =
                names.iter().map(|name| Observation::new(&entry(dict, name, names.len() == 1, extras)?, &device));
            return arrays.collect::<PyResult<_>>().map(Self::Several);
        }
        if let Ok(tuple) = obs.cast::<PyTuple>() {
            let arrays = tuple.iter().map(|value| Observation::new(&value, &device));
            return arrays.collect::<PyResult<_>>().map(Self::Several);
        }
        Observation::new(obs, &device).map(Self::One)
    }

    /// Refuses them unless they are what the policy observes.
    pub(crate) fn check(&self, schema: &StepSchema, rows: usize) -> PyResult<()> {
        let columns = &schema.observations;
        let given = self.arrays();
        if given.len() != columns.len() {
            let names = columns.iter().map(|column| column.key.as_str()).collect::<Vec<_>>().join(", ");
            let wanted = match columns.len() {
                1 => "one array".to_owned(),
                count => format!("{count} arrays, given as a dict of {names}"),
            };
            let advice = if columns.len() == 1 { "; of what envs.reset() gives, pass the first part" } else { "" };
            return Err(error::contract(&format!("the policy observes {wanted}, but {} came{advice}", given.len())));
        }
        for (array, column) in given.iter().zip(columns) {
            let what = if column.key.is_empty() { "obs" } else { &column.key };
            array.expect(what, column.dtype, rows, &column.shape)?;
        }
        Ok(())
    }

    /// What the call still needs of those on a device.
    pub(crate) fn missing(&self, call: &ActCall<'_>, record: Recording<'_>) -> Option<Missing> {
        self.arrays().iter().find_map(|observation| {
            let Observation::Device(tensor) = observation else { return None };
            let copies = !call.reads_in_place(tensor.device()) || call.keeps_observations(record);
            let missing = if copies { Missing::Copies } else { Missing::Soundness };
            (!tensor.is_ready(copies)).then_some(missing)
        })
    }

    /// Does what a call needs. This may run Python code.
    pub(crate) fn provide(&mut self, missing: Missing) -> PyResult<()> {
        let arrays = match self {
            Self::One(array) => std::slice::from_mut(array),
            Self::Several(arrays) => arrays,
        };
        for observation in arrays {
            if let Observation::Device(tensor) = observation {
                match missing {
                    Missing::Copies => tensor.copy_to_host()?,
                    Missing::Soundness => tensor.look_through()?,
                }
            }
        }
        Ok(())
    }

    /// Copies them, checked, into the call's row; what the policy reads on its device is not copied unless it is on the host too.
    pub(crate) fn write<'a>(&'a self, call: &mut ActCall<'a>) -> PyResult<()> {
        for (index, observation) in self.arrays().iter().enumerate() {
            let written = match observation {
                Observation::Device(tensor) if call.reads_in_place(tensor.device()) => {
                    call.place_observations(index, tensor.memory(), tensor.host().map(Contiguous::bytes))
                }
                _ => call.write_observations(index, observation.bytes()),
            };
            written.map_err(|error| to_python(&error))?;
        }
        Ok(())
    }

    /// Their bytes, in the order of the policy's observation columns.
    pub(crate) fn bytes(&self) -> SmallVec<[&[u8]; 4]> {
        self.arrays().iter().map(Observation::bytes).collect()
    }

    /// The device of the first that is a tensor on another device than the CPU.
    pub(crate) fn device(&self, py: Python<'_>) -> Option<TensorDevice> {
        let arrays = self.arrays().iter();
        let mut devices = arrays.filter_map(|observation| match observation {
            Observation::Host(array) => array.device(),
            Observation::Device(tensor) => tensor.home(),
        });
        devices.next().map(|device| device.clone_ref(py))
    }

    fn arrays(&self) -> &[Observation<'py>] {
        match self {
            Self::One(array) => std::slice::from_ref(array),
            Self::Several(arrays) => arrays,
        }
    }
}

/// The entry `name` of a dict; entries that nobody asks for are passed over. Where the policy observes one array and the
/// dict holds one, beside the texts among `extras`, that is it, whatever its name.
pub(crate) fn entry<'py>(
    dict: &Bound<'py, PyDict>,
    name: &str,
    only: bool,
    extras: &[ExtraSpec],
) -> PyResult<Bound<'py, PyAny>> {
    if let Some(value) = dict.get_item(name)? {
        return Ok(value);
    }
    let is_text =
        |key: &Bound<'_, PyAny>| extras.iter().any(|extra| extra.observed && key.eq(&extra.name).unwrap_or(false));
    let mut others = dict.iter().filter(|(key, _)| !is_text(key));
    match (others.next(), others.next()) {
        (Some((_, value)), None) if only => Ok(value),
        _ => Err(error::contract(&format!(
            "the observation `{name}`, which the policy observes, is missing; the dict has the keys {}. Rename the \
             environment's observations by a wrapper (gymnasium.wrappers.TransformObservation), or the model's input",
            dict.keys()
        ))),
    }
}
