//! What the engine asks of a model backend. ONNX Runtime is one; others join by implementing the same three traits.

use std::{collections::BTreeMap, fmt, path::Path, sync::Arc};

use super::contract::Batch;
use crate::{
    error::Result,
    spec::TensorSpec,
    tensor::{DeviceId, Tensor, TensorView},
};

/// How a model is to be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadOptions {
    /// Threads that one forward pass may use inside. One is right when many actors share the machine.
    pub threads: usize,
    /// `"cpu"`, `"cuda:0"`, `"mps"`.
    pub device: String,
    /// Shape of one row of inputs, by name, for files that do not declare it and whose shape no probing forward pass finds.
    /// The empty name stands for the only observation, whatever it is called: what a folder's `metadata.json` says.
    pub shapes: BTreeMap<String, Vec<usize>>,
    /// Inputs of which the user's roles say that they are states, for files that do not tell which axis counts their rows.
    pub states: Vec<String>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { threads: 1, device: "cpu".into(), shapes: BTreeMap::new(), states: Vec::new() }
    }
}

/// Loads model files of one format.
pub trait Backend: Send + Sync {
    /// The format's name: `onnx`, `torchscript`.
    fn format(&self) -> &'static str;

    /// Whether this backend is meant to load the file at `path`, judged by its name.
    fn accepts(&self, path: &Path) -> bool;

    /// Whether these bytes look like a file of this format, judged by how they begin.
    fn recognises(&self, bytes: &[u8]) -> bool;

    /// The devices that models of this format might run on here, the usable ones among them.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`](crate::Error::DeviceUnavailable) where the library that runs the models cannot be loaded.
    fn devices(&self) -> Result<Vec<Device>> {
        Ok(vec![Device { name: "cpu".into(), fault: None }])
    }

    /// Loads the model; what is wrong with it is told by [`Error::ModelLoad`](crate::Error::ModelLoad).
    fn load(&self, source: ModelSource<'_>, options: &LoadOptions) -> Result<Arc<dyn Model>>;
}

/// A device of a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// What [`LoadOptions::device`] calls it.
    pub name: String,
    /// Why it cannot be used, and what to do about it; `None` where it can.
    pub fault: Option<String>,
}

/// Where a model's bytes come from.
#[derive(Debug, Clone, Copy)]
pub struct ModelSource<'a> {
    /// The file, or for a model in memory the name that messages call it by.
    pub path: &'a Path,
    /// The file's bytes, where they are in memory already. Otherwise they are read from `path`.
    pub bytes: Option<&'a [u8]>,
}

/// What a file says of itself beside its inputs and outputs, and what loading found out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelFacts {
    /// The tool that wrote it, with its version.
    pub producer: String,
    /// Hex SHA-256 of the file.
    pub sha256: String,
    /// Operators inside that draw random numbers.
    pub random_ops: Vec<String>,
    /// What loading found out about the file, in sentences for people.
    pub notes: Vec<String>,
    /// What `relevo.export` wrote into the file about its policy, as [`Declared`](super::Declared) reads it; empty where it wrote
    /// nothing.
    pub declared: String,
    /// How many rows a forward pass takes, where the backend knows more of it than the declared shapes say.
    pub batch: Option<Batch>,
}

/// An input and the output that hands out its value for the next step, where the backend knows of such a pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateLink {
    /// Position among the inputs.
    pub input: usize,
    /// Position among the outputs.
    pub output: usize,
    /// The bytes of one row at the start of an episode; empty for zeros.
    pub initial: Vec<u8>,
}

/// A loaded model: weights that many sessions share.
pub trait Model: fmt::Debug + Send + Sync {
    /// The backend's format name.
    fn format(&self) -> &'static str;

    /// Inputs as declared, in the file's order.
    fn inputs(&self) -> &[TensorSpec];

    /// Outputs as declared, in the file's order.
    fn outputs(&self) -> &[TensorSpec];

    /// What else the file says.
    fn facts(&self) -> &ModelFacts;

    /// States that the model hands on from step to step, where they are known without looking at names.
    fn states(&self) -> &[StateLink] {
        &[]
    }

    /// A device in whose memory sessions read inputs, beside that of the CPU: where the model runs.
    fn device(&self) -> DeviceId {
        DeviceId::CPU
    }

    /// A new session on the shared weights.
    fn session(&self) -> Result<Box<dyn Session>>;
}

/// Something that runs forward passes, one caller at a time.
pub trait Session: Send {
    /// Runs the model once.
    ///
    /// `inputs` holds every input in the file's order; those that lie on the session's own device are read there, others in
    /// the CPU's memory ([`TensorView::memory`]). `wanted` lists the outputs to compute, and `outputs[i]` receives output
    /// `wanted[i]`. A tensor in `outputs` that already has elements is taken as the caller's word for the output's type and
    /// shape, and is written in place without an allocation; an empty one takes the shape that the run gives.
    ///
    /// # Errors
    /// [`Error::Inference`](crate::Error::Inference) when the model fails, with the backend's own message.
    fn forward(&mut self, inputs: &[TensorView<'_>], wanted: &[usize], outputs: &mut [Tensor]) -> Result<()>;
}
