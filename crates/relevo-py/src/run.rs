//! `relevo.Run` and its episodes: reading a run folder.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use pyo3::prelude::*;
use relevo_core::trajectory::{self, Selection};

use crate::{
    detach::{detach, detach_and_log},
    episode::Episode,
    error::to_python,
};

#[pyclass(frozen, module = "relevo")]
pub(crate) struct Run {
    run: Arc<trajectory::Run>,
}

#[pymethods]
impl Run {
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let run = detach_and_log(py, || trajectory::Run::open(&path))?;
        Ok(Self { run: Arc::new(run) })
    }

    #[getter]
    fn path(&self) -> &Path {
        self.run.path()
    }

    #[getter]
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let text = serde_json::to_string(self.run.info())
            .map_err(|error| to_python(&relevo_core::Error::trajectory(self.run.path(), error)))?;
        py.import("json")?.call_method1("loads", (text,))
    }

    fn episodes(&self, py: Python<'_>) -> Episodes {
        Episodes(Mutex::new(py.detach(|| self.run.episodes(&Selection::default()))))
    }

    fn __repr__(&self) -> String {
        format!("Run({})", self.run.path().display())
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
