//! `relevo.kernels`: the mathematics of `relevo-kernels` over NumPy.

mod advantage;
mod arrays;
mod bandwidth;
mod plan;
mod prefix;
mod sampling;

use pyo3::{
    prelude::*,
    types::{PyTuple, PyType},
};
use relevo_kernels::Error;

pub(crate) use self::{
    advantage::{discounted_returns, gae, n_step, vtrace},
    bandwidth::{attention_bandwidth_cost, bandwidth_aware_priorities, bandwidth_efficiency, effective_bandwidth_cost},
    plan::{EmaPlanTracker, plan_surprise},
    prefix::prefix_match,
    sampling::{prioritized_proportional, priority_sample},
};
use crate::{
    error::{config, contract},
    once::Once,
};

/// The Python exception for what a kernel refused.
fn refused(error: &Error) -> PyErr {
    if error.is_of_data() { contract(&error.to_string()) } else { config(&error.to_string()) }
}

/// Bytes of input from which on the interpreter lock is released: below, the work takes less than some ten microseconds, and
/// to release the lock and take it again would be a part of it.
const LARGE: usize = 1 << 18;

/// Runs a kernel on so many bytes of input.
///
/// While the lock is released, another thread that writes to the arrays spoils the numbers, as with NumPy's own functions.
fn run<T: Send>(py: Python<'_>, bytes: usize, kernel: impl FnOnce() -> Result<T, Error> + Send) -> PyResult<T> {
    crate::detach::detach_if(py, bytes >= LARGE, kernel).map_err(|error| refused(&error))
}

/// A named tuple of `relevo.kernels`, of the class that `class` remembers.
///
/// Made by `tuple.__new__`, as the class itself would, which saves a call into Python code.
fn named_tuple<'py>(
    py: Python<'py>,
    class: &Once,
    name: &str,
    fields: impl IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error = PyErr>,
) -> PyResult<Bound<'py, PyAny>> {
    static NEW: Once = Once::new();
    let class = class.import(py, "relevo.kernels", name)?.cast_into::<PyType>()?;
    let new = NEW.get(py, || py.get_type::<PyTuple>().getattr("__new__"))?;
    new.call1((class, fields.into_pyobject(py)?))
}
