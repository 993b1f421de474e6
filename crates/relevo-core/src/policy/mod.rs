//! Policies: a loaded model, the contract of what it takes and gives, the head that turns its outputs into actions,
//! and the named, versioned slot that serves it.

mod agreement;
mod backend;
mod bounds;
mod contract;
mod convention;
mod declared;
mod folder;
mod foreign;
mod head;
mod head_builder;
mod head_part;
mod loaded;
mod memory;
mod normalizer;
mod options;
mod pool;
mod probe;
pub mod random;
mod recurrence;
mod sampling;
mod size;
mod slot;
mod state_name;
mod unbatched;
mod worker;

pub use backend::{Backend, Device, LoadOptions, Model, ModelFacts, ModelSource, Session, StateLink};
pub use bounds::{ActionBounds, BoundsKind};
pub use contract::{Batch, Contract, InputContract, OutputContract};
pub use convention::{InputRole, OutputRole};
pub use declared::{Declared, Statistics};
pub use folder::{default_device, model_file};
pub use foreign::ForeignBackend;
pub use head::{Head, HeadError, HeadKind, HeadRequest, HeadRows, HeadScratch};
pub use loaded::{LoadedModel, takes};
pub use memory::{MemorySpec, NextValue, StateSpec};
pub use normalizer::Normalizer;
pub use options::PolicyOptions;
pub use pool::{PooledWorker, WorkerPool};
pub(crate) use sampling::first_nan_row;
pub use size::{MOST_ROW_BYTES, check_rows};
pub use slot::{OwnWorker, PolicySlot, PolicyStats, PolicyVersion};
pub use state_name::names_next_value;
pub use worker::Worker;
