//! What the engine asks of a model backend. ONNX Runtime is one; others join by implementing the same three traits.

use std::{fmt, path::Path, sync::Arc};

use crate::{
    error::Result,
    spec::TensorSpec,
    tensor::{Tensor, TensorView},
};

/// How a model is to be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadOptions {
    /// Threads that one forward pass may use inside. One is right when many actors share the machine.
    pub threads: usize,
    /// `"cpu"`, `"cuda:0"`, `"mps"`.
    pub device: String,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { threads: 1, device: "cpu".into() }
    }
}

/// Loads model files of one format.
pub trait Backend: Send + Sync {
    /// The format's name: `onnx`, `torchscript`.
    fn format(&self) -> &'static str;

    /// Whether this backend is meant to load the file at `path`, judged by its name.
    fn accepts(&self, path: &Path) -> bool;

    /// Loads the file; what is wrong with it is told by [`Error::ModelLoad`](crate::Error::ModelLoad).
    fn load(&self, path: &Path, options: &LoadOptions) -> Result<Arc<dyn Model>>;
}

/// What a file says of itself beside its inputs and outputs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelFacts {
    /// The tool that wrote it, with its version.
    pub producer: String,
    /// Hex SHA-256 of the file.
    pub sha256: String,
    /// Operators inside that draw random numbers.
    pub random_ops: Vec<String>,
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

    /// A new session on the shared weights.
    fn session(&self) -> Result<Box<dyn Session>>;
}

/// Something that runs forward passes, one caller at a time.
pub trait Session: Send {
    /// Runs the model once.
    ///
    /// `inputs` holds every input in the file's order. `wanted` lists the outputs to compute, and `outputs[i]` receives
    /// output `wanted[i]`. A tensor in `outputs` that already has elements is taken as the caller's word for the
    /// output's type and shape, and is written in place without an allocation; an empty one takes the shape that the
    /// run gives.
    ///
    /// # Errors
    /// [`Error::Inference`](crate::Error::Inference) when the model fails, with the backend's own message.
    fn forward(&mut self, inputs: &[TensorView<'_>], wanted: &[usize], outputs: &mut [Tensor]) -> Result<()>;
}
