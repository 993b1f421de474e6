//! One error enum for the whole engine, tagged by the boundary at which the fault showed.
//!
//! Every message says what was expected, what came, and what to do.

use std::path::PathBuf;

use uuid::Uuid;

/// Shorthand for a result that fails with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong, by the boundary it crossed. Each variant becomes one Python exception.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A setting is impossible or contradicts another one.
    #[error("{0}")]
    Config(String),

    /// A model file, or the library that runs it, could not be loaded.
    #[error("cannot load {}: {reason}", path.display())]
    ModelLoad {
        /// The file at fault.
        path: PathBuf,
        /// What is wrong with it and what to do.
        reason: String,
    },

    /// Data does not fit what a model takes or gives.
    #[error("{0}")]
    Contract(String),

    /// No actor has this id.
    #[error("no actor has the id {id}; {hint}")]
    ActorNotFound {
        /// The id that was asked for.
        id: Uuid,
        /// What to do.
        hint: String,
    },

    /// The forward pass failed, or gave numbers that cannot be used.
    #[error("{0}")]
    Inference(String),

    /// The device that was asked for is not usable here.
    #[error("{0}")]
    DeviceUnavailable(String),

    /// A call came at a moment when it means nothing (before `start`, after `shutdown`, without an open step).
    #[error("{0}")]
    State(String),

    /// Steps could not be recorded or read.
    #[error("{}: {reason}", path.display())]
    Trajectory {
        /// The run folder or segment at fault.
        path: PathBuf,
        /// What is wrong with it and what to do.
        reason: String,
    },

    /// One of the above, about one actor, whose id its text names.
    #[error("{error}")]
    OfActor {
        /// The actor.
        id: Uuid,
        /// What is wrong.
        error: Box<Error>,
    },
}

impl Error {
    /// The same error, about one actor.
    #[must_use]
    pub fn of_actor(self, id: Uuid) -> Self {
        Self::OfActor { id, error: Box::new(self) }
    }

    /// The actor that it is about, where it is about one.
    pub fn actor(&self) -> Option<Uuid> {
        match self {
            Self::OfActor { id, .. } | Self::ActorNotFound { id, .. } => Some(*id),
            _ => None,
        }
    }

    /// A [`Error::Trajectory`] from an I/O or Arrow error at `path`.
    pub fn trajectory(path: impl Into<PathBuf>, reason: impl std::fmt::Display) -> Self {
        Self::Trajectory { path: path.into(), reason: reason.to_string() }
    }

    /// A [`Error::ModelLoad`] for the file at `path`.
    pub fn model_load(path: impl Into<PathBuf>, reason: impl std::fmt::Display) -> Self {
        Self::ModelLoad { path: path.into(), reason: reason.to_string() }
    }
}
