//! `relevo.Run` and its episodes: reading a run folder.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use numpy::{Element, PyArray1};
use parking_lot::Mutex;
use pyo3::{prelude::*, types::PyDict};
use relevo_core::{
    Error,
    trajectory::{self, EpisodeSummary, Report, Selection},
};

use crate::{
    array,
    detach::{detach, detach_and_log, wait},
    episode::Episode,
    error::to_python,
    steps::Steps,
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
            .map_err(|error| to_python(&Error::trajectory(self.run.path(), error)))?;
        py.import("json")?.call_method1("loads", (text,))
    }

    #[getter]
    fn step_count(&self) -> u64 {
        self.run.steps_count()
    }

    #[getter]
    fn nbytes(&self) -> u64 {
        self.run.bytes()
    }

    #[getter]
    fn problems(&self) -> Vec<String> {
        self.run.problems().iter().map(ToString::to_string).collect()
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        py.detach(|| self.run.summaries().len())
    }

    fn episode(&self, py: Python<'_>, number: u64) -> PyResult<Episode> {
        let found = detach(py, || {
            self.run.episode(number)?.ok_or_else(|| {
                let known = self.run.summaries();
                let told = match (known.first(), known.last()) {
                    (Some(first), Some(last)) => format!("it has {} to {}", first.number, last.number),
                    _ => "it has none yet".into(),
                };
                Error::trajectory(self.run.path(), format!("the run has no episode {number}; {told}"))
            })
        })?;
        Ok(Episode::new(Arc::new(found)))
    }

    #[pyo3(signature = (*, numbers=None, policy_versions=None, returns=None))]
    fn episodes(
        &self,
        py: Python<'_>,
        numbers: Option<&Bound<'_, PyAny>>,
        policy_versions: Option<Bounds<u64>>,
        returns: Option<Bounds<f64>>,
    ) -> PyResult<Episodes> {
        let selection = selection(numbers, policy_versions, returns)?;
        Ok(Episodes(Mutex::new(py.detach(|| self.run.episodes(&selection)))))
    }

    #[pyo3(signature = (columns=None, *, numbers=None, policy_versions=None, returns=None))]
    fn steps(
        &self,
        py: Python<'_>,
        columns: Option<Vec<String>>,
        numbers: Option<&Bound<'_, PyAny>>,
        policy_versions: Option<Bounds<u64>>,
        returns: Option<Bounds<f64>>,
    ) -> PyResult<Steps> {
        let steps = Steps { run: self.run.clone(), columns, selection: selection(numbers, policy_versions, returns)? };
        // A column that is not there is told now.
        detach(py, || steps.run.steps(steps.columns.as_deref(), &Selection::default()).map(drop))?;
        Ok(steps)
    }

    fn index<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let table = py.detach(|| self.run.summaries());
        let index = PyDict::new(py);
        let set = |name: &str, values: Bound<'py, PyAny>| index.set_item(name, values);
        set("number", column(py, table, |episode| episode.number))?;
        let ids: Vec<u8> = table.iter().flat_map(|episode| episode.actor_id.into_bytes()).collect();
        set("actor_id", PyArray1::from_vec(py, ids).call_method1("reshape", ((-1, 16),))?)?;
        set("steps", column(py, table, |episode| episode.steps))?;
        set("episode_return", column(py, table, |episode| episode.episode_return))?;
        set("terminated", column(py, table, |episode| episode.terminated))?;
        set("truncated", column(py, table, |episode| episode.truncated))?;
        set("complete", column(py, table, |episode| episode.complete))?;
        set("rewards_missing", column(py, table, |episode| episode.rewards_missing))?;
        set("rewards_nan", column(py, table, |episode| episode.rewards_nan))?;
        set("rewards_infinite", column(py, table, |episode| episode.rewards_infinite))?;
        let policies: Vec<&str> = table.iter().map(|episode| &*episode.policy).collect();
        set("policy", array::numpy_function(py, "array")?.call1((policies, "object"))?)?;
        set("lowest_policy_version", column(py, table, |episode| episode.lowest_version))?;
        set("highest_policy_version", column(py, table, |episode| episode.highest_version))?;
        let times =
            |time: fn(&EpisodeSummary) -> i64| column(py, table, time).call_method1("view", ("datetime64[ns]",));
        set("first_timestamp", times(|episode| episode.first_time)?)?;
        set("last_timestamp", times(|episode| episode.last_time)?)?;
        Ok(index)
    }

    #[pyo3(signature = (tell=None))]
    fn verify<'py>(&self, py: Python<'py>, tell: Option<Py<PyAny>>) -> PyResult<Bound<'py, PyDict>> {
        let report = wait(py, |keep_waiting| self.run.verify(&mut |bytes| told(tell.as_ref(), bytes, keep_waiting)))?;
        as_dict(py, &report)
    }

    fn __repr__(&self) -> String {
        format!("Run({}, {} steps)", self.run.path().display(), self.run.steps_count())
    }
}

/// Makes the run in a folder whole again.
#[pyfunction]
#[pyo3(signature = (path, tell=None))]
pub(crate) fn repair_run(py: Python<'_>, path: PathBuf, tell: Option<Py<PyAny>>) -> PyResult<Bound<'_, PyDict>> {
    let report =
        wait(py, |keep_waiting| trajectory::repair(&path, &mut |bytes| told(tell.as_ref(), bytes, keep_waiting)))?;
    as_dict(py, &report)
}

/// Tells how many bytes are done, and sees whether the user pressed Ctrl-C.
fn told(
    tell: Option<&Py<PyAny>>,
    bytes: u64,
    keep_waiting: &mut dyn FnMut() -> relevo_core::Result<()>,
) -> relevo_core::Result<()> {
    if let Some(tell) = tell {
        Python::attach(|py| tell.call1(py, (bytes,)))
            .map_err(|error| Error::State(format!("the function that is told of the progress failed: {error}")))?;
    }
    keep_waiting()
}

fn as_dict<'py>(py: Python<'py>, report: &Report) -> PyResult<Bound<'py, PyDict>> {
    let texts = |errors: &[Error]| errors.iter().map(ToString::to_string).collect::<Vec<_>>();
    let dict = PyDict::new(py);
    dict.set_item("sound", report.is_sound())?;
    dict.set_item("batches", report.batches)?;
    dict.set_item("bytes", report.bytes)?;
    dict.set_item("unclosed_segments", report.unclosed)?;
    dict.set_item("problems", texts(&report.problems))?;
    dict.set_item("lost", texts(&report.lost))?;
    dict.set_item("lost_episodes", report.lost_episodes)?;
    dict.set_item("lost_steps", report.lost_steps)?;
    Ok(dict)
}

fn column<'py, T: Element>(
    py: Python<'py>,
    table: &[EpisodeSummary],
    value: impl Fn(&EpisodeSummary) -> T,
) -> Bound<'py, PyAny> {
    PyArray1::from_vec(py, table.iter().map(value).collect()).into_any()
}

/// One value, or the lowest and the highest, either of which may be missing.
#[derive(FromPyObject)]
enum Bounds<T> {
    One(T),
    Between(Option<T>, Option<T>),
}

impl<T: Copy> Bounds<T> {
    fn or(self, lowest: T, highest: T) -> (T, T) {
        match self {
            Self::One(only) => (only, only),
            Self::Between(low, high) => (low.unwrap_or(lowest), high.unwrap_or(highest)),
        }
    }
}

fn selection(
    numbers: Option<&Bound<'_, PyAny>>,
    policy_versions: Option<Bounds<u64>>,
    returns: Option<Bounds<f64>>,
) -> PyResult<Selection> {
    let numbers = numbers.map(|numbers| -> PyResult<Vec<u64>> {
        if let Ok(number) = numbers.extract::<u64>() {
            return Ok(vec![number]);
        }
        let mut numbers = numbers.try_iter()?.map(|number| number?.extract()).collect::<PyResult<Vec<u64>>>()?;
        numbers.sort_unstable();
        Ok(numbers)
    });
    Ok(Selection {
        numbers: numbers.transpose()?,
        versions: policy_versions.map(|versions| versions.or(0, u64::MAX)),
        returns: returns.map(|returns| returns.or(f64::NEG_INFINITY, f64::INFINITY)),
    })
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
