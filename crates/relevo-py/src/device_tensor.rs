//! Observations that lie on the device of the policy: shown by DLPack and read there. They are copied to the host where something
//! else than the model needs them.

#![expect(unsafe_code, reason = "DLPack hands out a C structure")]

use pyo3::{
    exceptions::{PyBufferError, PyException},
    ffi,
    prelude::*,
    types::{PyCapsule, PyDict},
};
use relevo_core::{
    spec::DType,
    tensor::{DeviceId, DeviceMemory, elements},
};

use crate::{array::Contiguous, tensor_device::TensorDevice};

/// CUDA's default stream, as DLPack's protocol calls it.
const DEFAULT_STREAM: i32 = 1;

/// A contiguous tensor on a device.
pub(crate) struct DeviceTensor<'py> {
    object: Bound<'py, PyAny>,
    /// Keeps the memory: it is never consumed, and lets go of it when it is dropped.
    _capsule: Bound<'py, PyCapsule>,
    device: DeviceId,
    dtype: DType,
    shape: Vec<usize>,
    address: *const u8,
    /// Where answers go, if it is a tensor of PyTorch.
    home: Option<TensorDevice>,
    /// What is on the host of it.
    host: Option<Contiguous<'py>>,
    /// Whether it was found to be whole, and without NaN.
    is_sound: bool,
}

impl<'py> DeviceTensor<'py> {
    /// The tensor, if it lies on `device`, which is not the CPU, and DLPack shows it there; other objects go by the host. This may
    /// run Python code.
    pub(crate) fn of(object: &Bound<'py, PyAny>, device: DeviceId) -> PyResult<Option<Self>> {
        if device == DeviceId::CPU || !object.hasattr("__dlpack_device__")? {
            return Ok(None);
        }
        // What keeps it from being exported, such as a gradient, the way by the host tells as ever.
        let exported = || {
            let (kind, index) = object.call_method0("__dlpack_device__")?.extract()?;
            if (DeviceId { kind, index }) == device { Self::exported(object, device) } else { Ok(None) }
        };
        unless_raised(object.py(), exported()).map(Option::flatten)
    }

    fn exported(object: &Bound<'py, PyAny>, device: DeviceId) -> PyResult<Option<Self>> {
        let home = TensorDevice::of(object)?;
        let whole = if home.is_some() { object.call_method0("contiguous")? } else { object.clone() };
        let options = PyDict::new(object.py());
        options.set_item("stream", DEFAULT_STREAM)?;
        let export = || whole.call_method("__dlpack__", (), Some(&options));
        let capsule = match (export(), &home) {
            // torch exports what lies on its current device alone.
            (Err(error), Some(home)) if error.is_instance_of::<PyBufferError>(object.py()) => {
                home.made_current(object.py(), export)?
            }
            (exported, _) => exported?,
        };
        let capsule = capsule.cast_into::<PyCapsule>()?;
        // SAFETY: a capsule is asked, with a name that ends in a null character.
        let pointer = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), c"dltensor".as_ptr()) };
        if pointer.is_null() {
            return Err(PyErr::fetch(object.py()));
        }
        // SAFETY: a capsule of this name that nobody consumed holds a `DLManagedTensor`, which begins with a `DLTensor`.
        let tensor = unsafe { &*pointer.cast::<relevo_abi::Tensor>() };
        let (Some(dtype), Some(shape)) = (DType::from_dlpack(tensor.dtype), contiguous_shape(tensor)) else {
            return Ok(None);
        };
        if tensor.device != device {
            return Ok(None);
        }
        let address = tensor.address();
        Ok(Some(Self {
            object: whole,
            _capsule: capsule,
            device,
            dtype,
            shape,
            address,
            home,
            host: None,
            is_sound: false,
        }))
    }

    /// Makes sure that a pass may read it where it lies: everything that writes to it has ended, and it holds no NaN. Where that
    /// cannot be told there, or is not so, it is copied to the host, where NaN is refused. This may run Python code.
    pub(crate) fn look_through(&mut self) -> PyResult<()> {
        if !self.is_ready(false) {
            self.is_sound = unless_raised(self.object.py(), self.sound())?.unwrap_or(false);
            if !self.is_sound {
                self.copy_to_host()?;
            }
        }
        Ok(())
    }

    fn sound(&self) -> PyResult<bool> {
        let object = &self.object;
        let library = match &self.home {
            Some(_) => object.py().import("torch")?.into_any(),
            None => object.call_method0("__array_namespace__")?,
        };
        if self.dtype.is_float() {
            // The host waits for the answer, and so for all that it is made of.
            let is_nan = library.call_method1("isnan", (object,))?;
            return Ok(!library.call_method1("any", (is_nan,))?.is_truthy()?);
        }
        // Other libraries have no common call that waits.
        if self.home.is_none() {
            return Ok(false);
        }
        let stream = library.getattr("cuda")?.call_method1("current_stream", (object.getattr("device")?,))?;
        stream.call_method0("synchronize")?;
        Ok(true)
    }

    /// Copies it to the host, unless it is there already. This may run Python code.
    pub(crate) fn copy_to_host(&mut self) -> PyResult<()> {
        if self.host.is_none() {
            self.host = Some(Contiguous::new(&self.object)?);
        }
        Ok(())
    }

    /// Whether a call may use it: copied, where that is what it needs.
    pub(crate) fn is_ready(&self, copied: bool) -> bool {
        self.host.is_some() || (self.is_sound && !copied)
    }

    /// What is on the host of it.
    pub(crate) fn host(&self) -> Option<&Contiguous<'py>> {
        self.host.as_ref()
    }

    /// The device that it lies on.
    pub(crate) fn device(&self) -> DeviceId {
        self.device
    }

    /// Where answers to it go, other than to the host.
    pub(crate) fn home(&self) -> Option<&TensorDevice> {
        self.home.as_ref()
    }

    /// Element type.
    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    /// Dimensions.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Its memory, once it is ready.
    pub(crate) fn memory(&self) -> DeviceMemory<'_> {
        let len = elements(&self.shape) * self.dtype.size();
        // SAFETY: the capsule, which lives as long as `self`, keeps the memory of the shape and type that it told, without gaps.
        // All that writes to it has ended, as the host has waited for a result made of it; `act` asks callers to write to it
        // no more before the call has ended.
        unsafe { DeviceMemory::new(self.device, self.address, len) }
    }
}

/// The sizes of a tensor whose elements lie one behind the other, row-major.
fn contiguous_shape(tensor: &relevo_abi::Tensor) -> Option<Vec<usize>> {
    // SAFETY: a tensor of DLPack has as many sizes as dimensions, and as many strides, or none.
    let (sizes, strides) = unsafe { (tensor.sizes(), tensor.steps()) };
    let shape: Vec<usize> = sizes.iter().map(|size| usize::try_from(*size).ok()).collect::<Option<_>>()?;
    let mut expected = 1;
    for (size, stride) in sizes.iter().zip(strides).rev() {
        // Where there is one element, or none, nobody steps.
        if *size > 1 && *stride != expected {
            return None;
        }
        expected *= size.max(&1);
    }
    Some(shape)
}

/// What was made, or nothing where an ordinary exception was raised.
fn unless_raised<T>(py: Python<'_>, made: PyResult<T>) -> PyResult<Option<T>> {
    match made {
        Ok(made) => Ok(Some(made)),
        Err(error) if error.is_instance_of::<PyException>(py) => Ok(None),
        Err(error) => Err(error),
    }
}
