//! `relevo.Subscription`: finished trajectories for a learner in the same process.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use pyo3::{prelude::*, types::PyTuple};
use relevo_core::trajectory::{self, Next};

use crate::{detach::wait, episode::Episode, error};

/// How often a reader that waits looks whether the user pressed Ctrl-C.
const PAUSE: Duration = Duration::from_millis(50);

#[pyclass(frozen, module = "relevo")]
pub(crate) struct Subscription(pub(crate) Arc<trajectory::Subscription>);

impl Subscription {
    /// The next trajectory, `None` where none came until `until`, or where no more will come.
    fn await_next(&self, py: Python<'_>, until: Option<Instant>) -> PyResult<Option<Episode>> {
        let next = wait(py, |keep_waiting| {
            loop {
                let now = Instant::now();
                let pause = until.map_or(now + PAUSE, |until| until.min(now + PAUSE));
                match self.0.next(pause)? {
                    Next::Trajectory(episode) => return Ok(Some(episode)),
                    Next::End => return Ok(None),
                    Next::NotYet if until.is_some_and(|until| until <= Instant::now()) => return Ok(None),
                    Next::NotYet => keep_waiting()?,
                }
            }
        })?;
        Ok(next.map(Episode::new))
    }
}

#[pymethods]
impl Subscription {
    #[pyo3(signature = (timeout=None))]
    fn get(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Episode>> {
        let timeout = timeout.map(Duration::try_from_secs_f64).transpose();
        let timeout = timeout.map_err(|reason| error::config(&format!("timeout: {reason}")))?;
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        self.await_next(py, until)
    }

    #[getter]
    fn dropped(&self) -> u64 {
        self.0.dropped()
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn close(&self) {
        self.0.close();
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Episode>> {
        self.await_next(py, None)
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, _error: &Bound<'_, PyTuple>) {
        self.0.close();
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // Nobody reads any more, so nobody may wait.
        self.0.close();
    }
}
