//! `relevo.Run` and its episodes: reading a run folder.

use std::{path::PathBuf, sync::Arc};

use parking_lot::Mutex;
use pyo3::prelude::*;
use relevo_core::trajectory;

use crate::{detach::detach, episode::Episode, error::to_python};

#[pyclass(frozen, module = "relevo")]
pub(crate) struct Run {
    run: trajectory::Run,
    path: PathBuf,
}

#[pymethods]
impl Run {
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let run = detach(py, || trajectory::Run::open(&path))?;
        Ok(Self { run, path })
    }

    #[getter]
    fn path(&self) -> &PathBuf {
        &self.path
    }

    #[getter]
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let text = serde_json::to_string(self.run.info())
            .map_err(|error| to_python(&relevo_core::Error::trajectory(&self.path, error)))?;
        py.import("json")?.call_method1("loads", (text,))
    }

    fn episodes(&self) -> PyResult<Episodes> {
        let episodes = self.run.episodes().map_err(|error| to_python(&error))?;
        Ok(Episodes(Mutex::new(episodes)))
    }

    fn __repr__(&self) -> String {
        format!("Run({})", self.path.display())
    }
}

#[pyclass(frozen, module = "relevo")]
pub(crate) struct Episodes(Mutex<trajectory::Episodes>);

#[pymethods]
impl Episodes {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Episode>> {
        let next = detach(py, || self.0.lock().next().transpose())?;
        Ok(next.map(|episode| Episode::new(Arc::new(episode))))
    }
}
