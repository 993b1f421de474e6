//! Backends that other packages bring along, behind the C table of `relevo-abi`.

#![expect(unsafe_code, reason = "functions of a C table are called, and what they point to is read")]

use std::{
    ffi::c_void,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    ptr, slice,
    sync::Arc,
};

use relevo_abi::{
    ABI_VERSION, BackendTable, BatchKind, Bytes, DType as ForeignDType, Description, Device, Failure, FailureKind,
    ModelHandle, Options, RowShape, SessionHandle, Slice, Source, Tensor as ForeignTensor, Text,
};
use smallvec::SmallVec;

use super::{
    backend::{Backend, Device as DeviceState, LoadOptions, Model, ModelFacts, ModelSource, Session, StateLink},
    contract::Batch,
};
use crate::{
    error::{Error, Result},
    spec::{DType, Dim, TensorSpec},
    tensor::{Tensor, TensorView, elements},
};

/// A backend behind a C table.
#[derive(Debug, Clone)]
pub struct ForeignBackend {
    table: &'static BackendTable,
    format: &'static str,
    version: String,
}

impl ForeignBackend {
    /// The backend of this table; `package` is what messages call it.
    ///
    /// # Errors
    /// [`Error::Config`] for a table of another version, or one that is too short.
    ///
    /// # Safety
    /// `table` must lead to a table that begins with the fields `size` and `abi_version`, and that is as they say. It must
    /// stay, with the code that it leads to, for the rest of the process.
    pub unsafe fn new(package: &str, table: *const BackendTable) -> Result<Self> {
        // SAFETY: promised by the caller. Nothing else is read before the version is known.
        let (size, version) =
            unsafe { (ptr::addr_of!((*table).size).read(), ptr::addr_of!((*table).abi_version).read()) };
        if version != ABI_VERSION {
            let older = if version < ABI_VERSION { package } else { "relevo" };
            return Err(Error::Config(format!(
                "the model backend of {package} speaks version {version} of Relevo's table for backends, this Relevo \
                 version {ABI_VERSION}; upgrade the older one: pip install --upgrade {older}"
            )));
        }
        let expected = BackendTable::LEAST_SIZE;
        if size < expected {
            return Err(Error::Config(format!(
                "the model backend of {package} gives a table of {size} bytes, but version {ABI_VERSION} of it has \
                 {expected} at least; pip install --upgrade {package}"
            )));
        }
        // SAFETY: it is as long as it says, and of our version.
        let table = unsafe { BackendTable::read(table, size) };
        // SAFETY: the texts are the table's, and stay with it.
        let (format, version) = unsafe { (table.format.text(), table.version.text()) };
        // Backends stay for the rest of the process; so does what is known of them.
        Ok(Self { table: Box::leak(Box::new(table)), format: Box::leak(format.into_boxed_str()), version })
    }

    /// The backend's version, for people.
    pub fn version(&self) -> &str {
        &self.version
    }
}

impl Backend for ForeignBackend {
    fn format(&self) -> &'static str {
        self.format
    }

    fn accepts(&self, path: &Path) -> bool {
        // SAFETY: the function is the table's, and the path lives for the call.
        unsafe { (self.table.accepts)(self.table.context, Text::new(path.as_os_str().as_encoded_bytes())) }
    }

    fn recognises(&self, bytes: &[u8]) -> bool {
        // SAFETY: as above.
        unsafe { (self.table.recognises)(self.table.context, Bytes::new(bytes)) }
    }

    fn devices(&self) -> Result<Vec<DeviceState>> {
        let Some(devices) = self.table.devices else {
            return Ok(vec![DeviceState { name: "cpu".into(), fault: None }]);
        };
        let mut told: Vec<DeviceState> = Vec::new();
        // SAFETY: the function is the table's, and the context is what `push_device` expects.
        let failure = unsafe { devices(self.table.context, push_device, (&raw mut told).cast()) };
        check(self.table, failure, Path::new(self.format))?;
        Ok(told)
    }

    fn load(&self, source: ModelSource<'_>, options: &LoadOptions) -> Result<Arc<dyn Model>> {
        let from = Source {
            size: size_of::<Source<'_>>(),
            path: Text::new(source.path.as_os_str().as_encoded_bytes()),
            bytes: source.bytes.map_or(Bytes::none(), Bytes::new),
        };
        let shapes: Vec<_> = options
            .shapes
            .iter()
            .map(|(name, sizes)| RowShape { name: Text::of(name), sizes: Slice::new(sizes) })
            .collect();
        let states: Vec<_> = options.states.iter().map(|name| Text::of(name)).collect();
        let options = Options {
            size: size_of::<Options<'_>>(),
            device: Text::of(&options.device),
            threads: options.threads,
            shapes: Slice::new(&shapes),
            states: Slice::new(&states),
        };
        let mut handle = ptr::null_mut();
        // SAFETY: the function is the table's; everything that it is given lives for the call.
        let failure =
            unsafe { (self.table.load)(self.table.context, &raw const from, &raw const options, &raw mut handle) };
        check(self.table, failure, source.path)?;
        if handle.is_null() {
            return Err(Error::model_load(source.path, format!("the backend {} gave no model", self.format)));
        }
        Ok(Arc::new(ForeignModel::new(self, handle, source.path)?))
    }
}

unsafe extern "C" fn push_device(context: *mut c_void, name: Text<'_>, fault: Text<'_>) {
    // SAFETY: the context is the vector that `devices` gave, and the texts live for the call.
    let (told, name, fault) = unsafe { (&mut *context.cast::<Vec<DeviceState>>(), name.text(), fault.text()) };
    told.push(DeviceState { name, fault: Some(fault).filter(|fault| !fault.is_empty()) });
}

/// The failure that a function of the table gave, as an error; it is taken back to where it came from.
fn check(table: &BackendTable, failure: *mut Failure, path: &Path) -> Result<()> {
    if failure.is_null() {
        return Ok(());
    }
    // SAFETY: failures that the table's functions give are whole until they are released, which happens once, here.
    let (kind, message) = unsafe {
        let told = ((*failure).kind, (*failure).message.text());
        (table.release_failure)(failure);
        told
    };
    Err(match kind {
        kind if kind == FailureKind::Contract as i32 => Error::Contract(message),
        kind if kind == FailureKind::Inference as i32 => Error::Inference(message),
        kind if kind == FailureKind::DeviceUnavailable as i32 => Error::DeviceUnavailable(message),
        kind if kind == FailureKind::Config as i32 => Error::Config(message),
        _ => Error::model_load(path, message),
    })
}

/// A model behind a C table.
struct ForeignModel {
    table: &'static BackendTable,
    format: &'static str,
    handle: *mut ModelHandle,
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
    facts: ModelFacts,
    states: Vec<StateLink>,
    device: Device,
    path: Arc<Path>,
}

// SAFETY: the table's models may be used by many threads at a time.
unsafe impl Send for ForeignModel {}
// SAFETY: as above.
unsafe impl Sync for ForeignModel {}

impl ForeignModel {
    fn new(backend: &ForeignBackend, handle: *mut ModelHandle, path: &Path) -> Result<Self> {
        let mut model = Self {
            table: backend.table,
            format: backend.format,
            handle,
            inputs: Vec::new(),
            outputs: Vec::new(),
            facts: ModelFacts::default(),
            states: Vec::new(),
            device: Device::CPU,
            path: path.into(),
        };
        // From here on the handle is released with the model.
        model.read().map_err(|reason| {
            Error::model_load(path, format!("the backend {} describes it wrongly: {reason}", backend.format))
        })?;
        Ok(model)
    }

    /// Takes over the description.
    fn read(&mut self) -> Result<(), String> {
        // SAFETY: the handle is the table's own.
        let description = unsafe { (self.table.describe)(self.handle) };
        if description.is_null() {
            return Err("there is no description".into());
        }
        // SAFETY: descriptions begin with their size, and live as long as the model.
        let size = unsafe { ptr::addr_of!((*description).size).read() };
        if size < Description::LEAST_SIZE {
            return Err(format!("the description has {size} bytes, not {}", Description::LEAST_SIZE));
        }
        // SAFETY: it is as long as it says, and whole with everything that it leads to.
        unsafe {
            let description = Description::read(description, size);
            self.inputs = specs(description.inputs)?;
            self.outputs = specs(description.outputs)?;
            let texts = |texts: Slice<'_, Text<'_>>| texts.get().iter().map(|text| text.text()).collect();
            let reason = description.batch_reason.text();
            self.facts = ModelFacts {
                producer: description.producer.text(),
                sha256: description.sha256.text(),
                random_ops: texts(description.random_ops),
                notes: texts(description.notes),
                declared: description.declared.text(),
                batch: match description.batch {
                    kind if kind == BatchKind::Dynamic as i32 => Some(Batch::Dynamic { reason }),
                    kind if kind == BatchKind::One as i32 => Some(Batch::One { reason }),
                    _ => None,
                },
            };
            let link = |link: &relevo_abi::StateLink<'_>| StateLink {
                input: link.input,
                output: link.output,
                initial: link.initial.get().to_vec(),
            };
            if description.input_device.kind != 0 {
                self.device = description.input_device;
            }
            self.states = description.states.get().iter().map(link).collect();
        }
        let outside = |link: &&StateLink| link.input >= self.inputs.len() || link.output >= self.outputs.len();
        match self.states.iter().find(outside) {
            Some(link) => Err(format!("a state leads from output {} to input {}", link.output, link.input)),
            None => Ok(()),
        }
    }
}

/// # Safety
/// The specs, with everything that they lead to, must be whole.
unsafe fn specs(specs: Slice<'_, relevo_abi::TensorSpec<'_>>) -> Result<Vec<TensorSpec>, String> {
    // SAFETY: promised by the caller.
    let specs = unsafe { specs.get() };
    specs
        .iter()
        .map(|spec| {
            // SAFETY: as above.
            let (name, dims) = unsafe { (spec.name.text(), spec.dims.get()) };
            let dtype = DType::from_dlpack(spec.dtype)
                .ok_or_else(|| format!("`{name}` has the element type {:?}, which is not known", spec.dtype))?;
            let dim = |dim: &relevo_abi::Dim<'_>| match usize::try_from(dim.size) {
                Ok(size) => Dim::Fixed(size),
                // SAFETY: as above.
                Err(_) => Dim::Dynamic(unsafe { dim.name.text() }),
            };
            Ok(TensorSpec { shape: dims.iter().map(dim).collect(), name, dtype })
        })
        .collect()
}

impl Model for ForeignModel {
    fn format(&self) -> &'static str {
        self.format
    }

    fn inputs(&self) -> &[TensorSpec] {
        &self.inputs
    }

    fn outputs(&self) -> &[TensorSpec] {
        &self.outputs
    }

    fn facts(&self) -> &ModelFacts {
        &self.facts
    }

    fn states(&self) -> &[StateLink] {
        &self.states
    }

    fn device(&self) -> Device {
        self.device
    }

    fn session(&self) -> Result<Box<dyn Session>> {
        let mut handle = ptr::null_mut();
        // SAFETY: the handle is the table's own.
        let failure = unsafe { (self.table.session)(self.handle, &raw mut handle) };
        check(self.table, failure, &self.path)?;
        if handle.is_null() {
            return Err(Error::Inference(format!("the model {} gave no session", self.path.display())));
        }
        let (table, device, path) = (self.table, self.device, Arc::clone(&self.path));
        Ok(Box::new(ForeignSession { table, handle, device, path }))
    }
}

impl Drop for ForeignModel {
    fn drop(&mut self) {
        // SAFETY: the handle is the table's own, and is given back once.
        unsafe { (self.table.release_model)(self.handle) }
    }
}

impl fmt::Debug for ForeignModel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ForeignModel")
            .field("format", &self.format)
            .field("path", &self.path)
            .field("inputs", &self.inputs)
            .field("outputs", &self.outputs)
            .finish_non_exhaustive()
    }
}

/// A session behind a C table.
struct ForeignSession {
    table: &'static BackendTable,
    handle: *mut SessionHandle,
    device: Device,
    path: Arc<Path>,
}

// SAFETY: the table's sessions may move between threads; `&mut self` keeps their calls apart.
unsafe impl Send for ForeignSession {}

impl Session for ForeignSession {
    fn forward(&mut self, inputs: &[TensorView<'_>], wanted: &[usize], outputs: &mut [Tensor]) -> Result<()> {
        if wanted.len() != outputs.len() {
            let (asked, room) = (wanted.len(), outputs.len());
            return Err(Error::Contract(format!("{asked} outputs were asked for, into {room} tensors")));
        }
        for input in inputs {
            let (given, needed) = (input.memory(self.device).len(), elements(input.shape) * input.dtype.size());
            if given != needed {
                return Err(Error::Contract(format!(
                    "the model {} was given {given} bytes for an input of {needed} in the memory of {} or of the CPU",
                    self.path.display(),
                    self.device
                )));
            }
        }
        // The shapes first: the tensors point to them.
        let mut shapes: SmallVec<[i64; 32]> = SmallVec::new();
        for input in inputs {
            shapes.extend(input.shape.iter().map(|size| *size as i64));
        }
        for output in &*outputs {
            shapes.extend(output.shape().iter().map(|size| *size as i64));
        }
        let mut rest = shapes.as_ptr();
        let mut tensor = |data: *mut u8, device: Device, dtype: DType, ndim: usize| {
            let shape = rest;
            rest = rest.wrapping_add(ndim);
            foreign_tensor(data, device, dtype, shape, ndim)
        };
        let given: SmallVec<[ForeignTensor; 8]> = inputs
            .iter()
            .map(|input| {
                let memory = input.memory(self.device);
                let address = ptr::with_exposed_provenance_mut(memory.address());
                tensor(address, memory.device(), input.dtype, input.shape.len())
            })
            .collect();
        let places: SmallVec<[ForeignTensor; 8]> = outputs
            .iter_mut()
            .map(|output| {
                let (dtype, ndim) = (output.dtype(), output.shape().len());
                let data = if output.is_empty() { ptr::null_mut() } else { output.bytes_mut().as_mut_ptr() };
                tensor(data, Device::CPU, dtype, ndim)
            })
            .collect();
        let mut context = Allocation { outputs: outputs.as_mut_ptr(), count: outputs.len() };
        // SAFETY: the handle is the table's own, and `&mut self` keeps other calls out. Inputs, which the table promises
        // not to write to, and outputs are borrowed for the call; their shapes lie in `shapes`, and `context` in this frame.
        let failure = unsafe {
            (self.table.forward)(
                self.handle,
                given.as_ptr(),
                given.len(),
                wanted.as_ptr(),
                places.as_ptr(),
                places.len(),
                allocate,
                (&raw mut context).cast(),
            )
        };
        check(self.table, failure, &self.path)
    }
}

impl Drop for ForeignSession {
    fn drop(&mut self) {
        // SAFETY: the handle is the table's own, and is given back once.
        unsafe { (self.table.release_session)(self.handle) }
    }
}

/// The outputs of the call that is running.
struct Allocation {
    outputs: *mut Tensor,
    count: usize,
}

/// Shapes an output that has no memory yet, for a backend that knows only now what it is.
unsafe extern "C" fn allocate(
    context: *mut c_void,
    position: usize,
    dtype: ForeignDType,
    shape: *const i64,
    ndim: i32,
) -> *mut c_void {
    // A panic (out of memory for an absurd shape) must not reach the backend's frames.
    let shaped = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the context is the one that `forward` gave, and the shape is as the table says.
        let (outputs, shape) = unsafe {
            let context = &*context.cast::<Allocation>();
            let shape = if ndim > 0 { slice::from_raw_parts(shape, ndim as usize) } else { &[] };
            (slice::from_raw_parts_mut(context.outputs, context.count), shape)
        };
        let shape: Option<SmallVec<[usize; 8]>> = shape.iter().map(|size| usize::try_from(*size).ok()).collect();
        let (output, dtype, shape) = (outputs.get_mut(position)?, DType::from_dlpack(dtype)?, shape?);
        output.reset(dtype, &shape);
        Some(output.bytes_mut().as_mut_ptr().cast())
    }));
    shaped.ok().flatten().unwrap_or(ptr::null_mut())
}

fn foreign_tensor(address: *mut u8, device: Device, dtype: DType, shape: *const i64, ndim: usize) -> ForeignTensor {
    ForeignTensor {
        data: address.cast(),
        device,
        ndim: ndim as i32,
        dtype: dtype.dlpack(),
        shape,
        strides: ptr::null(),
        byte_offset: 0,
    }
}
