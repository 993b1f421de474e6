//! A loaded ONNX file.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use ort::{environment::Environment, logging::LogLevel, session::builder::GraphOptimizationLevel, value::ValueType};
use parking_lot::Mutex;
use relevo_core::{
    error::{Error, Result},
    policy::{Model, ModelFacts, ModelSource, Session},
    spec::{Dim, TensorSpec},
};
use sha2::{Digest, Sha256};

use crate::{graph::Declaration, library, message::readable, session::OnnxSession};

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

/// An ONNX file in memory, from which sessions are made.
///
/// The file's bytes are held once and every session is built from them, so later changes of the file on disk do not matter.
/// ONNX Runtime copies the weights into each session: N sessions hold the weights N times, beside the bytes here.
pub(crate) struct OnnxModel {
    signature: Arc<Signature>,
    facts: ModelFacts,
    bytes: Vec<u8>,
    threads: usize,
    environment: Environment,
    /// The session that loading built to check the file; the first caller gets it.
    first: Mutex<Option<OnnxSession>>,
}

impl OnnxModel {
    /// Reads and checks a file; ONNX Runtime is looked for in `candidates`.
    pub(crate) fn load(source: ModelSource<'_>, threads: usize, candidates: &[PathBuf]) -> Result<Self> {
        let path = source.path;
        let bytes = match source.bytes {
            Some(bytes) => bytes.to_vec(),
            None => std::fs::read(path).map_err(|error| {
                Error::model_load(path, format!("{error}; check that the path names a readable ONNX file"))
            })?,
        };
        let declaration = Declaration::read(&bytes).map_err(|reason| Error::model_load(path, reason))?;
        let Declaration { inputs, mut outputs, producer, random_ops } = declaration;
        let sha256 = format!("{:x}", Sha256::digest(&bytes));
        let environment = library::environment(candidates, path)?;
        let session = build(&environment, path, &bytes, threads)?;
        for (spec, outlet) in outputs.iter_mut().zip(session.outputs()) {
            correct_shape(spec, outlet.dtype());
        }
        let signature = Arc::new(Signature { path: path.into(), inputs, outputs });
        let first = Mutex::new(Some(OnnxSession::new(session, Arc::clone(&signature))?));
        Ok(Self {
            signature,
            facts: ModelFacts { producer, sha256, random_ops, ..ModelFacts::default() },
            bytes,
            threads,
            environment,
            first,
        })
    }
}

/// A session of ONNX Runtime for the file's bytes; `path` serves messages, and to find weights in files beside it.
fn build(environment: &Environment, path: &Path, bytes: &[u8], threads: usize) -> Result<ort::session::Session> {
    let folder =
        std::path::absolute(path).ok().and_then(|path| path.parent().map(Path::to_path_buf)).unwrap_or_default();
    let commit = || -> ort::Result<_> {
        ort::session::Session::builder(environment)?
            .with_optimization_level(GraphOptimizationLevel::All)?
            .with_parallel_execution(false)?
            .with_intra_threads(threads)?
            .with_inter_threads(1)?
            .with_intra_op_spinning(false)?
            .with_inter_op_spinning(false)?
            // Every failure comes back as an error; beside it, ONNX Runtime would write to stderr.
            .with_log_level(LogLevel::Fatal)?
            .with_config_entry("session.model_external_initializers_file_folder_path", folder.to_string_lossy())?
            .commit_from_memory(bytes)
    };
    commit().map_err(|error| {
        let reason = readable(error.message());
        Error::model_load(path, format!("ONNX Runtime refuses it: {reason}; export the model again"))
    })
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

    fn session(&self) -> Result<Box<dyn Session>> {
        if let Some(session) = self.first.lock().take() {
            return Ok(Box::new(session));
        }
        let begun = Instant::now();
        let session = build(&self.environment, &self.signature.path, &self.bytes, self.threads)?;
        let (path, seconds) = (self.signature.path.display(), begun.elapsed().as_secs_f64());
        tracing::debug!(%path, threads = self.threads, seconds, "a further session of {path} is made");
        Ok(Box::new(OnnxSession::new(session, Arc::clone(&self.signature))?))
    }
}

impl fmt::Debug for OnnxModel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("OnnxModel")
            .field("signature", &self.signature)
            .field("facts", &self.facts)
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}
