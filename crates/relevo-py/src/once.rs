//! Python objects that are looked up, or made, once.

use parking_lot::Mutex;
use pyo3::{prelude::*, types::PyString};

/// A Python object that is looked up, or made, at its first use.
///
/// Its lock is held with the interpreter lock alone, which a thread that forks has as well: so no child finds it locked. A
/// `PyOnceLock` lets go of the interpreter lock while it is set, and a child that was forked off in that moment waits for ever.
pub(crate) struct Once(Mutex<Option<Py<PyAny>>>);

impl Once {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// The object; `find` looks it up, and may run Python code.
    pub(crate) fn get<'py>(
        &self,
        py: Python<'py>,
        find: impl FnOnce() -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let Some(known) = self.0.lock().as_ref() {
            return Ok(known.bind(py).clone());
        }
        let found = find()?.unbind();
        Ok(self.0.lock().get_or_insert(found).bind(py).clone())
    }

    /// An attribute of a module.
    pub(crate) fn import<'py>(&self, py: Python<'py>, module: &str, name: &str) -> PyResult<Bound<'py, PyAny>> {
        self.get(py, || py.import(module)?.getattr(name))
    }

    /// The text `name`, as Python keeps names.
    pub(crate) fn name<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyString>> {
        Ok(self.get(py, || Ok(PyString::intern(py, name).into_any()))?.cast_into()?)
    }
}
