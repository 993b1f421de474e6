//! A loaded ONNX file.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use ort::{
    logging::LogLevel,
    session::builder::GraphOptimizationLevel,
    value::{TensorElementType, ValueType},
};
use parking_lot::Mutex;
use relevo_core::{
    error::{Error, Result},
    policy::{Batch, Model, ModelFacts, ModelSource, Session, StateLink, check_rows, names_next_value},
    spec::{Dim, TensorSpec},
    tensor::DeviceId,
};
use sha2::{Digest, Sha256};

use crate::{
    agreement,
    beside::Beside,
    device::Device,
    endless,
    fixed_batch::{self, Original, Outcome},
    graph::{Declaration, dtype, may_be_next},
    inline,
    library::Library,
    message::readable,
    mixing,
    noise::Noise,
    open_shapes,
    session::{self, OnnxSession},
    weights::{self, Suspect},
    widths,
};

/// The format's name.
pub(crate) const FORMAT: &str = "onnx";

/// What a file declares; shared by the model and its sessions.
#[derive(Debug)]
pub(crate) struct Signature {
    /// The model file, for messages.
    pub(crate) path: PathBuf,
    /// Inputs in the file's order.
    pub(crate) inputs: Vec<TensorSpec>,
    /// Outputs in the file's order, with the shapes that ONNX Runtime holds them to.
    pub(crate) outputs: Vec<TensorSpec>,
}

impl Signature {
    /// Which outputs are an input handed on, with no node between.
    pub(crate) fn passed(&self) -> Vec<bool> {
        let is_input = |name: &str| self.inputs.iter().any(|input| input.name == name);
        self.outputs.iter().map(|output| is_input(&output.name)).collect()
    }
}

/// How sessions are made of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Workshop {
    /// What makes them.
    pub(crate) library: &'static Library,
    /// Where they run.
    pub(crate) device: Device,
    /// Threads of one forward pass.
    pub(crate) threads: usize,
}

/// An ONNX file in memory, from which sessions are made.
///
/// The file's bytes are held once, and so are those of files with weights beside it. Every session is built from them, so later
/// changes of the files on disk do not matter.
/// ONNX Runtime copies the weights into each session: N sessions hold the weights N times, beside the bytes here.
pub(crate) struct OnnxModel {
    signature: Arc<Signature>,
    facts: ModelFacts,
    /// Memory that begins with a default value of its input.
    states: Vec<StateLink>,
    bytes: Vec<u8>,
    /// Weights that `bytes` names and does not hold.
    beside: Beside,
    /// Where the graph draws random numbers: the seeds in `bytes`.
    noise: Option<Noise>,
    workshop: Workshop,
    /// The session that loading built to check the file; the first caller gets it.
    first: Mutex<Option<OnnxSession>>,
}

impl OnnxModel {
    /// Reads and checks a file.
    pub(crate) fn load(
        source: ModelSource<'_>,
        workshop: Workshop,
        shapes: &BTreeMap<String, Vec<usize>>,
    ) -> Result<Self> {
        let path = source.path;
        let fault = |reason: String| Error::model_load(path, reason);
        let bytes = match source.bytes {
            Some(bytes) => bytes.to_vec(),
            None => std::fs::read(path).map_err(|error| {
                Error::model_load(path, format!("{error}; check that the path names a readable ONNX file"))
            })?,
        };
        let mut hash = Sha256::new_with_prefix(&bytes);
        let (mut bytes, declaration, hidden) = looked_into(bytes).map_err(fault)?;
        let beside = Beside::read(source, &declaration.weight_files).map_err(fault)?;
        let suspects = weights::suspects(&bytes, &beside).map_err(fault)?;
        beside.files().for_each(|(_, contents)| hash.update(contents));
        let sha256 = format!("{:x}", hash.finalize());
        bytes = beside.written_into(bytes).map_err(fault)?;
        let mut noise = None;
        if !declaration.random_ops.is_empty() {
            let (seeded, seeds) = Noise::new(&bytes).map_err(fault)?;
            (bytes, noise) = (seeded, Some(seeds));
        }
        let Declaration {
            mut inputs,
            mut outputs,
            producer,
            declared,
            random_ops,
            batch_obstacle,
            steered,
            meetings,
            loops,
            widths,
            mut notes,
            ..
        } = declaration;
        notes.extend(open_shapes::fill(&mut inputs, shapes)?);
        let states = states(&bytes, &beside, &inputs, &outputs, &mut notes).map_err(fault)?;
        let open = inputs.clone();
        let told = widths::fill(&mut inputs, &widths);
        check_rows(path, &inputs, &outputs)?;
        let session = workshop.session(path, &of_session(&bytes, noise.as_ref()), &beside)?;
        for spec in &mut outputs {
            if let Some(outlet) = session.outputs().iter().find(|outlet| outlet.name() == spec.name) {
                correct_shape(spec, outlet.dtype());
            }
        }
        let mut signature = Arc::new(Signature { path: path.into(), inputs, outputs });
        let mut first = OnnxSession::new(session, workshop.device, Arc::clone(&signature))?;
        if loops {
            endless::check(&mut first, &signature.inputs).map_err(fault)?;
        }
        if !told.is_empty() {
            if fixed_batch::run(&mut first, &agreement::rows(&signature.inputs, 0)[0]).is_ok() {
                notes.extend(told);
            } else {
                // What weights seemed to tell does not hold: the sizes are for the caller to give.
                let outputs = signature.outputs.clone();
                signature = Arc::new(Signature { path: path.into(), inputs: open, outputs });
                let session = workshop.session(path, &of_session(&bytes, noise.as_ref()), &beside)?;
                first = OnnxSession::new(session, workshop.device, signature.clone())?;
            }
        }
        check_suspects(&suspects, &signature.inputs, &mut first).map_err(fault)?;

        let original = Original {
            bytes: &bytes,
            inputs: &signature.inputs,
            outputs: &signature.outputs,
            obstacle: hidden.clone().or(batch_obstacle),
        };
        let build = |bytes: &[u8]| workshop.trial(path, bytes, &beside, &signature.inputs);
        let batch = match fixed_batch::rewritten(&original, &mut first, &build) {
            None => {
                let steered =
                    steered.map(|op| format!("it holds control flow ({op}) that goes by numbers of all rows at once"));
                let compared = || mixing::reason(&bytes, &signature.inputs, &meetings, &build);
                // Random numbers differ from run to run.
                let mixed = hidden.or(steered).or_else(|| noise.is_none().then(compared).flatten());
                mixed.map(|reason| Batch::One { reason })
            }
            Some(Outcome::Kept(reason)) => {
                Some(Batch::One { reason: format!("declared with a batch of 1, and not rewritten for more: {reason}") })
            }
            Some(Outcome::Rewritten(rewritten)) => {
                let fixed_batch::Rewritten { bytes: edited, inputs, outputs } = *rewritten;
                signature = Arc::new(Signature { path: path.into(), inputs, outputs });
                first = OnnxSession::new(
                    workshop.session(path, &edited, &beside)?,
                    workshop.device,
                    Arc::clone(&signature),
                )?;
                bytes = edited;
                let reason = "rewritten from a batch of 1; batches of made-up rows gave what the rows give alone";
                Some(Batch::Dynamic { reason: reason.into() })
            }
        };
        let facts = ModelFacts { producer, sha256, random_ops, batch, notes, declared };
        Ok(Self { signature, facts, states, bytes, beside, noise, workshop, first: Mutex::new(Some(first)) })
    }
}

/// The file with its own functions written out, what it declares, and why such functions are left that cannot be looked into.
fn looked_into(bytes: Vec<u8>) -> std::result::Result<(Vec<u8>, Declaration, Option<String>), String> {
    let declaration = Declaration::read(&bytes)?;
    let written_out = inline::inlined(&bytes).and_then(|written_out| match written_out {
        None => Ok(None),
        Some(written_out) => Declaration::read(&written_out).map(|of_all| Some((written_out, of_all))),
    });
    Ok(match written_out {
        Ok(None) => (bytes, declaration, None),
        Ok(Some((written_out, of_all))) => (written_out, of_all, None),
        Err(reason) => (bytes, declaration, Some(reason)),
    })
}

/// Fails where a weight with numbers that may be meant, as minus infinity is in a mask, makes most made-up rows come out as NaN or
/// plus infinity.
fn check_suspects(
    suspects: &[Suspect],
    inputs: &[TensorSpec],
    session: &mut OnnxSession,
) -> std::result::Result<(), String> {
    let Some(Suspect { name, holds }) = suspects.first() else { return Ok(()) };
    let rows = agreement::rows(inputs, 0);
    // Inputs that the model does not take show nothing.
    let answers: Vec<_> = rows.iter().filter_map(|row| fixed_batch::run(session, row).ok()).collect();
    let spoilt = answers.iter().filter(|outputs| outputs.iter().any(agreement::is_spoilt)).count();
    if spoilt * 2 <= answers.len() {
        return Ok(());
    }
    Err(format!(
        "its weight `{name}` holds {holds}, and {spoilt} of {} made-up rows come out as NaN or infinity; export an earlier \
         checkpoint, or mask by a large number in place of an infinite one",
        answers.len()
    ))
}

/// Inputs with a default value, and the outputs that are called their next values.
fn states(
    bytes: &[u8],
    beside: &Beside,
    inputs: &[TensorSpec],
    outputs: &[TensorSpec],
    notes: &mut Vec<String>,
) -> std::result::Result<Vec<StateLink>, String> {
    let mut states = Vec::new();
    for (input, state) in inputs.iter().enumerate() {
        let Some(mut initial) = beside.initializer(bytes, &state.name)? else { continue };
        let is_next = |next: &TensorSpec| names_next_value(&state.name, &next.name) && may_be_next(state, next);
        let Some(output) = outputs.iter().position(is_next) else { continue };
        if initial.len() != agreement::row_bytes(state) {
            notes.push(format!(
                "the state `{}` begins with zeros: its default value is not that of one row",
                state.name
            ));
            initial.clear();
        }
        states.push(StateLink { input, output, initial });
    }
    Ok(states)
}

/// The file's bytes for a new session.
fn of_session<'a>(bytes: &'a [u8], noise: Option<&Noise>) -> std::borrow::Cow<'a, [u8]> {
    noise.map_or(bytes.into(), |noise| noise.seeded(bytes).into())
}

impl Workshop {
    /// A session of ONNX Runtime for a file's bytes; `path` serves messages.
    fn session(self, path: &Path, bytes: &[u8], beside: &Beside) -> Result<ort::session::Session> {
        let refused = |error: &ort::Error| {
            let reason = readable(error.message());
            Error::model_load(path, format!("ONNX Runtime refuses it: {reason}; {}", advice(&reason)))
        };
        if self.device == Device::Cpu {
            return self.commit(bytes, beside, true).map_err(|error| refused(&error));
        }
        let error = match self.commit(bytes, beside, false) {
            Ok(session) => return Ok(session),
            Err(error) => error,
        };
        // Whose fault it is shows on the CPU.
        Self { device: Device::Cpu, ..self }.commit(bytes, beside, true).map_err(|error| refused(&error))?;
        match self.commit(bytes, beside, true) {
            Ok(session) => {
                let (device, reason) = (self.device, readable(error.message()));
                tracing::warn!(
                    path = %path.display(), %device, reason,
                    "parts of the model {} run on the CPU, as {device} lacks their operators", path.display()
                );
                Ok(session)
            }
            Err(error) => Err(Error::DeviceUnavailable(format!(
                "{} was to run on the device `{}`, which ONNX Runtime {} at {} has but cannot use: {}; mend that, or load it \
                 with device=\"cpu\"",
                path.display(),
                self.device,
                self.library.version,
                self.library.path.display(),
                readable(error.message())
            ))),
        }
    }

    /// The same, with operators that the device lacks on the CPU or refused.
    fn commit(self, bytes: &[u8], beside: &Beside, cpu_helps: bool) -> ort::Result<ort::session::Session> {
        let mut builder = ort::session::Session::builder(&self.library.environment)?
            .with_optimization_level(GraphOptimizationLevel::All)?
            .with_parallel_execution(false)?
            .with_intra_threads(self.threads)?
            .with_inter_threads(1)?
            .with_intra_op_spinning(false)?
            .with_inter_op_spinning(false)?
            // Every failure comes back as an error; beside it, ONNX Runtime would write to stderr.
            .with_log_level(LogLevel::Fatal)?;
        for (name, contents) in beside.files() {
            builder = builder.with_external_initializer_file_in_memory(name, Arc::clone(contents))?;
        }
        let builder = self.device.register(builder)?;
        let mut builder = if cpu_helps { builder } else { builder.with_disable_cpu_fallback()? };
        builder.commit_from_memory(bytes)
    }

    /// A session for an edited file, whose outputs are only known to ONNX Runtime. Those that hold no numbers are left out.
    pub(crate) fn trial(
        self,
        path: &Path,
        bytes: &[u8],
        beside: &Beside,
        inputs: &[TensorSpec],
    ) -> std::result::Result<OnnxSession, String> {
        let session = self.commit(bytes, beside, true).map_err(|error| readable(error.message()))?;
        let output = |outlet: &ort::value::Outlet| -> std::result::Result<Option<TensorSpec>, String> {
            let ValueType::Tensor { ty, .. } = outlet.dtype() else { return Ok(None) };
            if *ty == TensorElementType::String {
                return Ok(None);
            }
            let element = ort::sys::ONNXTensorElementDataType::from(*ty);
            let dtype = dtype(element as i32).ok_or_else(|| format!("`{}` is a tensor of {ty}", outlet.name()))?;
            let mut spec = TensorSpec { name: outlet.name().into(), dtype, shape: Vec::new() };
            correct_shape(&mut spec, outlet.dtype());
            Ok(Some(spec))
        };
        let outputs = session.outputs().iter().filter_map(|outlet| output(outlet).transpose());
        let outputs = outputs.collect::<std::result::Result<_, _>>()?;
        let signature = Signature { path: path.into(), inputs: inputs.to_vec(), outputs };
        OnnxSession::new(session, self.device, Arc::new(signature)).map_err(|error| error.to_string())
    }

    /// Makes a session for a graph that does next to nothing.
    pub(crate) fn try_out(self) -> std::result::Result<(), String> {
        // A graph `y = x` for one number, as the ONNX format writes it.
        const IDENTITY: &[u8] = b"\x08\x08\x12\x00:7\x0a\x10\x0a\x01x\x12\x01y\x22\x08Identity\x12\x01gZ\x0f\x0a\x01x\x12\x0a\x0a\x08\x08\x01\x12\x04\x0a\x02\x08\x01b\x0f\x0a\x01y\x12\x0a\x0a\x08\x08\x01\x12\x04\x0a\x02\x08\x01B\x04\x0a\x00\x10\x10";
        self.commit(IDENTITY, &Beside::default(), true).map(|_| ()).map_err(|error| readable(error.message()))
    }
}

/// What to do about a file that ONNX Runtime refuses for this reason.
fn advice(reason: &str) -> &'static str {
    let unknown_operator = ["No Op registered", "is not a registered function/op", "Could not find an implementation"];
    if unknown_operator.iter().any(|words| reason.contains(words)) {
        "this ONNX Runtime lacks the operator: export the model with standard operators of a lower opset, or install a newer one \
         with `pip install -U onnxruntime`"
    } else if reason.contains("opset") || reason.contains("IR version") || reason.contains("ir_version") {
        "install a newer one with `pip install -U onnxruntime`, or export the model with a lower opset_version"
    } else {
        "export the model again"
    }
}

/// Takes the shape that ONNX Runtime works with: the file's, corrected by what follows from the nodes.
fn correct_shape(spec: &mut TensorSpec, known: &ValueType) {
    if let ValueType::Tensor { shape, dimension_symbols, .. } = known {
        let dims = shape.iter().zip(dimension_symbols.iter());
        spec.shape = dims
            .map(|(&size, symbol)| match usize::try_from(size) {
                Ok(size) => Dim::Fixed(size),
                // ONNX Runtime calls dimensions without a name `unk__0`, `unk__1` …
                Err(_) if symbol.starts_with("unk__") => Dim::Dynamic(String::new()),
                Err(_) => Dim::Dynamic(symbol.clone()),
            })
            .collect();
    }
}

impl Model for OnnxModel {
    fn format(&self) -> &'static str {
        FORMAT
    }

    fn inputs(&self) -> &[TensorSpec] {
        &self.signature.inputs
    }

    fn outputs(&self) -> &[TensorSpec] {
        &self.signature.outputs
    }

    fn facts(&self) -> &ModelFacts {
        &self.facts
    }

    fn states(&self) -> &[StateLink] {
        &self.states
    }

    fn device(&self) -> DeviceId {
        session::input_device(self.workshop.device, &self.signature)
    }

    fn session(&self) -> Result<Box<dyn Session>> {
        if let Some(session) = self.first.lock().take() {
            return Ok(Box::new(session));
        }
        let begun = Instant::now();
        let session =
            self.workshop.session(&self.signature.path, &of_session(&self.bytes, self.noise.as_ref()), &self.beside)?;
        let (path, seconds) = (self.signature.path.display(), begun.elapsed().as_secs_f64());
        tracing::debug!(%path, threads = self.workshop.threads, seconds, "a further session of {path} is made");
        Ok(Box::new(OnnxSession::new(session, self.workshop.device, Arc::clone(&self.signature))?))
    }
}

impl fmt::Debug for OnnxModel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("OnnxModel")
            .field("signature", &self.signature)
            .field("facts", &self.facts)
            .field("workshop", &self.workshop)
            .finish_non_exhaustive()
    }
}
