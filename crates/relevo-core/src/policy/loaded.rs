//! A model file, loaded, with its contract.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    Worker, WorkerPool,
    backend::{Backend, LoadOptions, Model, ModelSource},
    contract::{Batch, Contract},
    convention::OutputRole,
    folder::{Folder, check_regular},
    size::{check_rows, check_shapes},
    unbatched,
};
use crate::{
    error::{Error, Result},
    tensor::{Tensor, TensorView},
};

/// How a file begins that Git LFS leaves in the place of a large one.
const POINTER: &[u8] = b"version https://git-lfs";

/// More threads than this in one forward pass are a slip of the keyboard.
const MOST_THREADS: usize = 1024;

/// So many of its first bytes show what a file without an ending is.
const HEAD: u64 = 64;

/// A model file, loaded, with its contract.
#[derive(Debug, Clone)]
pub struct LoadedModel {
    /// Where it was loaded from.
    pub path: PathBuf,
    /// How it was loaded.
    pub options: LoadOptions,
    /// Roles that the user gave, by tensor name.
    pub roles: BTreeMap<String, String>,
    /// The backend's model.
    pub model: Arc<dyn Model>,
    /// What it takes and gives.
    pub contract: Arc<Contract>,
    /// Workers of [`LoadedModel::forward`].
    pub pool: Arc<WorkerPool>,
}

impl LoadedModel {
    /// Loads `path` with the first backend that accepts it, and infers its contract. `path` may be a folder with a
    /// `metadata.json` as RelayRL 0.5 writes it; what that says of a device is for the caller to ask for, by
    /// [`default_device`](super::default_device).
    pub fn load(
        path: &Path,
        backends: &[Arc<dyn Backend>],
        options: &LoadOptions,
        roles: &BTreeMap<String, String>,
    ) -> Result<Self> {
        check_threads(options)?;
        if !path.exists() {
            return Err(Error::model_load(path, "there is no such file; check the path"));
        }
        check_regular(path)?;
        if let Some(folder) = Folder::at(path)? {
            return Self::load_folder(&folder, backends, options, roles);
        }
        let backend = backends.iter().find(|backend| takes(&***backend, path)).ok_or_else(|| {
            let formats: Vec<_> = backends.iter().map(|backend| backend.format()).collect();
            Error::model_load(
                path,
                format!(
                    "its name fits none of the formats that can be loaded ({}); {}",
                    formats.join(", "),
                    advice_for_name(path)
                ),
            )
        })?;
        Self::load_with(&**backend, ModelSource { path, bytes: None }, options, roles)
    }

    /// Loads the model in a folder: by the file's name, or where that says nothing, by the format that the folder names.
    fn load_folder(
        folder: &Folder,
        backends: &[Arc<dyn Backend>],
        options: &LoadOptions,
        roles: &BTreeMap<String, String>,
    ) -> Result<Self> {
        let path = &*folder.file;
        let by_name = backends.iter().find(|backend| backend.accepts(path));
        let by_format = || backends.iter().find(|backend| backend.format() == folder.format);
        let backend = by_name.or_else(by_format).ok_or_else(|| {
            let formats: Vec<_> = backends.iter().map(|backend| backend.format()).collect();
            Error::model_load(
                path,
                format!(
                    "it is a model of the format {}, but those that can be loaded here are {}; install what loads it, such as \
                     relevo[torch] for torchscript (in a checkout of the repository: make demo-torch)",
                    folder.format,
                    formats.join(", ")
                ),
            )
        })?;
        let mut options = options.clone();
        if let (true, Some(observation)) = (options.shapes.is_empty(), &folder.observation) {
            options.shapes.insert(String::new(), observation.clone());
        }
        let mut loaded = Self::load_with(&**backend, ModelSource { path, bytes: None }, &options, roles)?;
        let mut contract = (*loaded.contract).clone();
        folder.compare(&mut contract);
        loaded.contract = Arc::new(contract);
        Ok(loaded)
    }

    /// Loads a model from memory with the first backend that recognises it; messages call it `name`.
    ///
    /// # Errors
    /// As [`LoadedModel::load`].
    pub fn load_bytes(
        name: &str,
        bytes: &[u8],
        backends: &[Arc<dyn Backend>],
        options: &LoadOptions,
        roles: &BTreeMap<String, String>,
    ) -> Result<Self> {
        check_threads(options)?;
        let path = Path::new(name);
        check_pointer(path, bytes)?;
        let backend = backends.iter().find(|backend| backend.recognises(bytes)).ok_or_else(|| {
            let formats: Vec<_> = backends.iter().map(|backend| backend.format()).collect();
            Error::model_load(
                path,
                format!(
                    "its {} bytes are none of the formats that can be loaded ({}); give the bytes of an exported model",
                    bytes.len(),
                    formats.join(", ")
                ),
            )
        })?;
        Self::load_with(&**backend, ModelSource { path, bytes: Some(bytes) }, options, roles)
    }

    fn load_with(
        backend: &dyn Backend,
        source: ModelSource<'_>,
        options: &LoadOptions,
        roles: &BTreeMap<String, String>,
    ) -> Result<Self> {
        let path = source.path;
        if source.bytes.is_none() {
            check_regular(path)?;
            check_pointer(path, &beginning(path))?;
        }
        check_shapes(&options.shapes)?;
        let is_state = |(_, role): &(&String, &String)| role.split(':').next() == Some("state");
        let states = roles.iter().filter(is_state).map(|(name, _)| name.clone()).collect();
        let options = &LoadOptions { states, ..options.clone() };
        let model = backend.load(source, options)?;
        check_rows(path, model.inputs(), model.outputs())?;
        let session = model.session()?;
        let (model, mut session) = unbatched::with_rows(path, model, session, roles);
        let contract = Contract::infer(path, &*model, &mut *session, roles, &options.device)?;
        tell(path, &*model, &contract, options);
        Ok(Self {
            path: path.to_owned(),
            options: options.clone(),
            roles: roles.clone(),
            model,
            contract: Arc::new(contract),
            pool: Arc::default(),
        })
    }

    /// Takes over the names and roles of `old`, position by position, for a model whose own names say nothing: a module
    /// that a training loop hands over. Constants of `old`, and what they say, are taken over as well.
    ///
    /// # Errors
    /// [`Error::Contract`] where it has more or fewer inputs, or outputs beside constants.
    pub fn named_after(mut self, old: &Self) -> Result<Self> {
        let mut contract = (*self.contract).clone();
        let outputs: Vec<_> =
            old.contract.outputs.iter().filter(|output| output.role != OutputRole::Constant).collect();
        if contract.inputs.len() != old.contract.inputs.len() || contract.outputs.len() != outputs.len() {
            return Err(Error::Contract(format!(
                "{} has {} inputs and {} outputs, but the model that serves has {} and {}; give a module of the same \
                 contract",
                self.path.display(),
                contract.inputs.len(),
                contract.outputs.len(),
                old.contract.inputs.len(),
                outputs.len()
            )));
        }
        let reason = "by position, from the version before";
        for (input, old) in contract.inputs.iter_mut().zip(&old.contract.inputs) {
            input.spec.name.clone_from(&old.spec.name);
            (input.role, input.reason) = (old.role, reason.into());
        }
        for (output, old) in contract.outputs.iter_mut().zip(outputs) {
            output.spec.name.clone_from(&old.spec.name);
            (output.role, output.reason) = (old.role, reason.into());
        }
        contract.branches.clone_from(&old.contract.branches);
        // Its own names were those of arguments.
        let position = |name: &str| self.contract.inputs.iter().position(|input| input.spec.name == *name);
        let normalization = std::mem::take(&mut contract.declared.normalization).into_iter();
        let renamed = normalization
            .filter_map(|(name, own)| Some((old.contract.inputs.get(position(&name)?)?.spec.name.clone(), own)));
        contract.declared.normalization = renamed.collect();
        contract.declared.bounds.clone_from(&old.contract.declared.bounds);
        self.contract = Arc::new(contract);
        self.roles.clone_from(&old.roles);
        Ok(self)
    }

    /// One forward pass on every input in the file's order, giving every output. No actor is involved.
    ///
    /// # Errors
    /// [`Error::Contract`] for an input that does not fit, [`Error::Inference`] where the model fails.
    pub fn forward(&self, inputs: &[TensorView<'_>]) -> Result<Vec<Tensor>> {
        let rows = self.rows(inputs)?;
        let all: Vec<_> = (0..self.contract.outputs.len()).collect();
        let mut worker = self.pool.checkout(|| Worker::new(self, &all, Arc::default()))?;
        worker.forward_all(rows, inputs)?;
        Ok(worker.take_outputs())
    }

    /// Checks every input against the contract, and how many rows they have in common.
    fn rows(&self, inputs: &[TensorView<'_>]) -> Result<usize> {
        let contracts = &self.contract.inputs;
        let rows = match (contracts.first(), inputs.first()) {
            (Some(contract), Some(input)) => input.shape.get(contract.batch_axis).copied().unwrap_or(0),
            _ => 0,
        };
        for (contract, input) in contracts.iter().zip(inputs) {
            let expected = contract.shape(rows);
            if input.dtype != contract.spec.dtype || input.shape != expected {
                return Err(Error::Contract(format!(
                    "input `{}` must be {} of shape {}, but {} of shape {} came",
                    contract.spec.name,
                    contract.spec.dtype,
                    crate::spec::shape_text(&expected),
                    input.dtype,
                    crate::spec::shape_text(input.shape)
                )));
            }
        }
        if rows > 1 && matches!(self.contract.batch, Batch::One { .. }) && !self.contract.rows_come_first() {
            return Err(Error::Contract(format!(
                "the model takes one row at a time, and the rows of its states do not lie one behind the other; {rows} rows \
                 came, call forward for each"
            )));
        }
        if rows == 0 {
            return Err(Error::Contract("a forward pass needs at least one row, but the batch has none".into()));
        }
        Ok(rows)
    }
}

/// The first bytes of a file; none where it cannot be read, which whoever reads it tells of.
fn beginning(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(POINTER.len() as u64).read_to_end(&mut bytes));
    if read.is_ok() { bytes } else { Vec::new() }
}

/// Fails where a file is what Git leaves in the place of a large one.
fn check_pointer(path: &Path, bytes: &[u8]) -> Result<()> {
    if bytes.starts_with(POINTER) {
        return Err(Error::model_load(
            path,
            "it is a pointer of Git LFS in the model's place; fetch the model by `git lfs pull`",
        ));
    }
    Ok(())
}

fn check_threads(options: &LoadOptions) -> Result<()> {
    if (1..=MOST_THREADS).contains(&options.threads) {
        return Ok(());
    }
    Err(Error::Config(format!(
        "threads must be between 1 and {MOST_THREADS}, but is {}; 1 is right when many actors share the machine",
        options.threads
    )))
}

/// Tells of a model that was loaded, and of what a user may not expect of it.
fn tell(path: &Path, model: &dyn Model, contract: &Contract, options: &LoadOptions) {
    let (path, format) = (path.display(), model.format());
    tracing::info!(
        %path,
        format,
        device = options.device,
        threads = options.threads,
        sha256 = model.facts().sha256,
        recurrent = contract.recurrent,
        "the model {path} ({format}) is loaded"
    );
    if let Batch::One { reason } = &contract.batch {
        tracing::warn!(%path, reason, "the model {path} takes one row at a time: {reason}; N actors cost N forward passes");
    }
}

/// What to do with a file that no backend loads, by what its ending is known for.
/// Whether a backend is to load the file: by its name, or where that has no ending, by how it begins.
pub fn takes(backend: &dyn Backend, path: &Path) -> bool {
    let begins_like_one = || {
        let mut head = Vec::new();
        let read = File::open(path).and_then(|file| file.take(HEAD).read_to_end(&mut head));
        read.is_ok() && backend.recognises(&head)
    };
    backend.accepts(path) || (path.extension().is_none() && path.is_file() && begins_like_one())
}

fn advice_for_name(path: &Path) -> &'static str {
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_ascii_lowercase());
    match extension.as_deref() {
        Some("zip") => {
            "a model of Stable-Baselines3 is loaded by its own class, such as PPO.load, and exported by \
             relevo.export.to_onnx"
        }
        Some("pkl" | "pickle") => {
            "pickles are never loaded, as they run code; export the model in the program that wrote it, by \
             relevo.export.to_onnx"
        }
        _ => {
            "export the model by relevo.export.to_onnx (.onnx), or by relevo.export.to_torchscript (.pt), which \
             relevo[torch] loads (in a checkout of the repository: make demo-torch)"
        }
    }
}
