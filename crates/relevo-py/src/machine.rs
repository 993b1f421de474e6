//! What the engine sees of the machine.

use std::thread::available_parallelism;

use pyo3::prelude::*;

/// How many processors the engine may use: affinity and a container's quota are counted.
#[pyfunction]
pub(crate) fn processors() -> usize {
    available_parallelism().map_or(1, Into::into)
}
