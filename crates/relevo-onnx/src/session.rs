//! One forward pass: the hot path.
//!
//! `ort`'s own `run` allocates names, values and maps on each call, so ONNX Runtime's `Run` is called directly. Names are
//! converted once, and the wrapper that ONNX Runtime wants around each buffer is kept for as long as the caller comes with
//! the same buffer. On a small network (2.3 µs) a call takes 0.2 µs more than buffers that were bound once and for all.

#![expect(unsafe_code, reason = "ONNX Runtime's C API is called directly; see above")]

use std::{
    ffi::{CString, c_char},
    fmt::Write as _,
    ptr,
    sync::Arc,
};

use ort::{
    AsPointer,
    memory::{AllocationDevice, AllocatorType, MemoryInfo, MemoryType},
    session::{NoSelectedOutputs, RunOptions},
    sys::OrtValue,
};
use relevo_core::{
    error::{Error, Result},
    policy::Session,
    spec::{Dim, TensorSpec, shape_text},
    tensor::{DeviceId, Tensor, TensorView},
};

use crate::{
    device::Device,
    message::readable,
    model::Signature,
    value::{Binding, Place, Value, result},
};

/// A session of ONNX Runtime with everything that a call needs at hand.
pub(crate) struct OnnxSession {
    /// What the last calls came with, by input.
    input_bindings: Vec<Binding>,
    /// What the last calls came with, by position in `wanted`.
    output_bindings: Vec<Binding>,
    names: Names,
    /// Whether an output is an input handed on, with no node between.
    passed: Vec<bool>,
    /// The arguments of `Run`, kept for their allocations. Nothing in them outlives the call that filled them.
    input_values: Vec<*const OrtValue>,
    output_names: Vec<*const c_char>,
    output_values: Vec<*mut OrtValue>,
    memory: MemoryInfo<'static>,
    /// Another device in whose memory inputs are read.
    device_memory: Option<(DeviceId, MemoryInfo<'static>)>,
    options: Arc<RunOptions<NoSelectedOutputs>>,
    session: ort::session::Session,
    signature: Arc<Signature>,
}

// SAFETY: the raw pointers in `input_values`, `output_names` and `output_values` are used only inside `forward`, which has
// the session to itself; everything else is `Send`.
unsafe impl Send for OnnxSession {}

/// Names of the tensors as C strings.
struct Names {
    /// Pointers into `_inputs`, as `Run` wants them.
    input_pointers: Vec<*const c_char>,
    _inputs: Vec<CString>,
    outputs: Vec<CString>,
}

/// A device in whose memory sessions on `device` read inputs, beside that of the CPU.
pub(crate) fn input_device(device: Device, signature: &Signature) -> DeviceId {
    match device {
        // An input that is an output as well would be handed out where it lies, and is read on the CPU there.
        Device::Cuda(number) if !signature.passed().contains(&true) => DeviceId::cuda(number),
        _ => DeviceId::CPU,
    }
}

impl OnnxSession {
    /// Wraps a session on `device` of the model with this signature.
    pub(crate) fn new(session: ort::session::Session, device: Device, signature: Arc<Signature>) -> Result<Self> {
        let fault = |reason: String| Error::model_load(&signature.path, reason);
        let names = |specs: &[TensorSpec]| {
            let names: std::result::Result<Vec<_>, _> =
                specs.iter().map(|spec| CString::new(spec.name.as_str())).collect();
            names.map_err(|_| fault("a tensor's name holds a null character; export the model again".into()))
        };
        let inputs = names(&signature.inputs)?;
        let memory = |device, number| {
            let made = MemoryInfo::new(device, number, AllocatorType::Device, MemoryType::Default);
            made.map_err(|error| fault(readable(error.message())))
        };
        let device_memory = match input_device(device, &signature) {
            DeviceId::CPU => None,
            other => Some((other, memory(AllocationDevice::CUDA, other.index)?)),
        };
        Ok(Self {
            input_bindings: inputs.iter().map(|_| Binding::default()).collect(),
            output_bindings: Vec::new(),
            names: Names {
                input_pointers: inputs.iter().map(|name| name.as_ptr()).collect(),
                _inputs: inputs,
                outputs: names(&signature.outputs)?,
            },
            passed: signature.passed(),
            input_values: Vec::new(),
            output_names: Vec::new(),
            output_values: Vec::new(),
            memory: memory(AllocationDevice::CPU, 0)?,
            device_memory,
            options: Arc::new(RunOptions::new().map_err(|error| fault(readable(error.message())))?),
            session,
            signature,
        })
    }

    /// By which a forward pass can be ended from another thread.
    pub(crate) fn options(&self) -> Arc<RunOptions<NoSelectedOutputs>> {
        Arc::clone(&self.options)
    }

    /// Declarations of the outputs, in their order.
    pub(crate) fn outputs(&self) -> &[TensorSpec] {
        &self.signature.outputs
    }

    /// Checks the inputs and points `input_values` at them.
    fn bind_inputs(&mut self, inputs: &[TensorView<'_>]) -> Result<()> {
        let specs = &self.signature.inputs;
        if inputs.len() != specs.len() {
            return Err(self.contract(format!("takes {} inputs, got {}", specs.len(), inputs.len())));
        }
        self.input_values.clear();
        let device = self.device_memory.as_ref().map_or(DeviceId::CPU, |(device, _)| *device);
        for (index, (input, spec)) in inputs.iter().zip(specs).enumerate() {
            let given = input.memory(device);
            let place = Place { device: given.device(), address: given.address(), length: given.len() };
            check_input(input, place, spec).map_err(|reason| self.contract(reason))?;
            let memory = match &self.device_memory {
                Some((device, memory)) if place.device == *device => memory,
                _ => &self.memory,
            };
            let value = self.input_bindings[index]
                .value(memory, place, input.dtype, input.shape)
                .map_err(|reason| Error::Inference(format!("input `{}`: {reason}", spec.name)))?;
            self.input_values.push(value);
        }
        Ok(())
    }

    /// Checks the outputs and points `output_values` at those that have memory, null at the others.
    fn bind_outputs(&mut self, wanted: &[usize], outputs: &mut [Tensor]) -> Result<()> {
        if wanted.len() != outputs.len() {
            return Err(self.contract(format!("is asked for {} outputs into {} tensors", wanted.len(), outputs.len())));
        }
        if self.output_bindings.len() < wanted.len() {
            self.output_bindings.resize_with(wanted.len(), Binding::default);
        }
        self.output_names.clear();
        self.output_values.clear();
        for (position, (&index, tensor)) in wanted.iter().zip(outputs).enumerate() {
            let Some(spec) = self.signature.outputs.get(index) else {
                let count = self.signature.outputs.len();
                return Err(self.contract(format!("is asked for output number {index}, but has {count}")));
            };
            if wanted[..position].contains(&index) {
                return Err(self.contract(format!("is asked for the output `{}` twice", spec.name)));
            }
            self.output_names.push(self.names.outputs[index].as_ptr());
            if !tensor.is_empty() && tensor.dtype() != spec.dtype {
                let (is, given) = (spec.dtype, tensor.dtype());
                return Err(self.contract(format!("gives the output `{}` as {is}, not {given}", spec.name)));
            }
            let value = if self.writes_into(index, tensor) {
                let bytes = tensor.bytes_mut();
                let (address, length) = (bytes.as_mut_ptr().expose_provenance(), bytes.len());
                let place = Place { device: DeviceId::CPU, address, length };
                self.output_bindings[position]
                    .value(&self.memory, place, tensor.dtype(), tensor.shape())
                    .map_err(|reason| Error::Inference(format!("output `{}`: {reason}", spec.name)))?
            } else {
                ptr::null_mut()
            };
            self.output_values.push(value);
        }
        Ok(())
    }

    /// Whether ONNX Runtime can write the output straight into `tensor`. Otherwise it makes the output, which is then copied:
    ///
    /// - An empty tensor has no room.
    /// - An input that is handed on as an output, with no node between, it writes into no memory of ours, and does not say so.
    /// - Where the file declares another shape than the true one, it refuses memory of the true one.
    fn writes_into(&self, index: usize, tensor: &Tensor) -> bool {
        let declared = &self.signature.outputs[index].shape;
        !tensor.is_empty()
            && !self.passed[index]
            && declared.len() == tensor.shape().len()
            && declared.iter().zip(tensor.shape()).all(|(dim, size)| !matches!(dim, Dim::Fixed(fixed) if fixed != size))
    }

    fn contract(&self, reason: impl std::fmt::Display) -> Error {
        Error::Contract(format!("the model {} {reason}", self.signature.path.display()))
    }

    /// What a failed run is told as: ONNX Runtime's words, and the shapes that came beside those declared.
    fn failure(&self, reason: &str, inputs: &[TensorView<'_>]) -> Error {
        let mut text = format!("the model {} failed: {reason}; inputs:", self.signature.path.display());
        for (input, spec) in inputs.iter().zip(&self.signature.inputs) {
            let declared: Vec<_> = spec.shape.iter().map(Dim::to_string).collect();
            // Writing to a string does not fail.
            let _ = write!(text, " {} {} (declared: {});", spec.name, shape_text(input.shape), declared.join(", "));
        }
        text.pop();
        Error::Inference(text)
    }
}

impl Session for OnnxSession {
    fn forward(&mut self, inputs: &[TensorView<'_>], wanted: &[usize], outputs: &mut [Tensor]) -> Result<()> {
        self.bind_inputs(inputs)?;
        self.bind_outputs(wanted, outputs)?;
        // SAFETY: the name pointers lead into `self.names`. The values in use wrap buffers whose lengths were checked
        // against their shapes, and which `inputs` and `outputs` borrow for the whole call: for reading, as `Run` treats
        // inputs, and for writing. `&mut self` keeps other calls out of the session.
        let status = unsafe {
            (ort::api().Run)(
                self.session.ptr().cast_mut(),
                self.options.ptr(),
                self.names.input_pointers.as_ptr(),
                self.input_values.as_ptr(),
                self.input_values.len(),
                self.output_names.as_ptr(),
                self.output_names.len(),
                self.output_values.as_mut_ptr(),
            )
        };
        let mut ran = result(status);
        for ((tensor, &index), &value) in outputs.iter_mut().zip(wanted).zip(&self.output_values) {
            if !self.writes_into(index, tensor) {
                // SAFETY: the pointer went into `Run` as null, so ONNX Runtime made the value for this call to own. It is
                // owned even where the run or another output failed, so that it is released.
                let value = unsafe { Value::owned(value) };
                ran = ran.and_then(|()| value?.copy_into(self.signature.outputs[index].dtype, tensor));
            }
        }
        ran.map_err(|reason| self.failure(&reason, inputs))
    }
}

/// Fails where `input`, which lies at `place`, is not what the file declares, or cannot be given to ONNX Runtime.
fn check_input(input: &TensorView<'_>, place: Place, spec: &TensorSpec) -> std::result::Result<(), String> {
    let name = &spec.name;
    if input.dtype != spec.dtype {
        return Err(format!("takes {} for the input `{name}`, got {}; convert it", spec.dtype, input.dtype));
    }
    let size = input.shape.iter().try_fold(input.dtype.size(), |size, &dim| size.checked_mul(dim));
    if size == Some(0) {
        // Some kernels abort the whole process on it.
        let shape = shape_text(input.shape);
        return Err(format!(
            "got no elements for the input `{name}`: its shape is {shape}; call it with one row or more"
        ));
    }
    if size != Some(place.length) {
        let (shape, given) = (shape_text(input.shape), place.length);
        return Err(format!("got {given} bytes for the input `{name}`, which do not make {} {shape}", input.dtype));
    }
    if !place.address.is_multiple_of(input.dtype.size()) {
        return Err(format!("got the input `{name}` at an address that is not aligned for {}; copy it", input.dtype));
    }
    Ok(())
}
