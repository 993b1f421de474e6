//! From the engine's errors to Python's exceptions, which are defined in `relevo.errors`.

use pyo3::{prelude::*, types::PyType};
use relevo_core::Error;

/// The Python exception for an engine error.
pub(crate) fn to_python(error: &Error) -> PyErr {
    let raised = raise(class(error), &error.to_string());
    if let Some(actor) = error.actor() {
        // Where that fails, as for want of memory, the text still names it.
        Python::attach(|py| drop(raised.value(py).setattr("actor_id", actor)));
    }
    raised
}

fn class(error: &Error) -> &'static str {
    match error {
        Error::Config(_) => "ConfigError",
        Error::ModelLoad { .. } => "ModelLoadError",
        Error::Contract(_) => "ContractError",
        Error::ActorNotFound { .. } => "ActorNotFoundError",
        Error::Inference(_) => "InferenceError",
        Error::DeviceUnavailable(_) => "DeviceUnavailableError",
        Error::State(_) => "AgentStateError",
        Error::Trajectory { .. } => "TrajectoryError",
        Error::OfActor { error, .. } => class(error),
    }
}

/// A `relevo.ConfigError`.
pub(crate) fn config(message: &str) -> PyErr {
    raise("ConfigError", message)
}

/// A `relevo.ContractError`.
pub(crate) fn contract(message: &str) -> PyErr {
    raise("ContractError", message)
}

fn raise(class: &str, message: &str) -> PyErr {
    Python::attach(|py| {
        let class = py.import("relevo.errors").and_then(|errors| Ok(errors.getattr(class)?.cast_into::<PyType>()?));
        match class {
            Ok(class) => PyErr::from_type(class, (message.to_owned(),)),
            Err(error) => error,
        }
    })
}
