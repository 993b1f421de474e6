//! `relevo.Actors`: a handle on some actors, and the two calls of the hot path.

use std::{collections::BTreeMap, sync::Arc};

use pyo3::{
    prelude::*,
    types::{PyBool, PyDict, PyTuple},
};
use relevo_core::{
    policy::{Head, HeadKind, PolicyOptions},
    runtime::{ActCall, ActOptions, Actor, ActorGroup, Caller, Recording, Request, Ticket, first_nan},
    spec::DType,
    trajectory::ExtraSpec,
};
use uuid::Uuid;

use crate::{
    action_batch::ActionBatch,
    array::Contiguous,
    detach::{Signals, detach, is_main_thread},
    error::{self, to_python},
    event_loop::{self, EventLoop, EventLoopCache},
    extras::Extras,
    observations::Observations,
    outcome::OutcomeArguments,
};

#[pyclass(frozen, module = "relevo")]
pub(crate) struct Actors {
    group: Arc<ActorGroup>,
    extras: Arc<[ExtraSpec]>,
    event_loop: EventLoopCache,
}

impl Actors {
    pub(crate) fn new(group: Arc<ActorGroup>) -> PyResult<Self> {
        let extras = group.extras().map_err(|error| to_python(&error))?;
        Ok(Self { group, extras, event_loop: EventLoopCache::default() })
    }
}

#[pymethods]
impl Actors {
    #[getter]
    fn ids(&self) -> Vec<Uuid> {
        self.group.actors.iter().map(|actor| actor.id()).collect()
    }

    #[getter]
    fn observation_dtypes(&self) -> BTreeMap<String, &'static str> {
        let name = |key: &str| if key.is_empty() { "observation".to_owned() } else { key.to_owned() };
        let version = self.group.actors[0].policy().current();
        version.schema.observations.iter().map(|column| (name(&column.key), column.dtype.name())).collect()
    }

    #[getter]
    fn action_columns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let columns = PyDict::new(py);
        for column in self.group.actors[0].policy().current().head.actions() {
            let name = if column.key.is_empty() { "action" } else { &column.key };
            columns.set_item(name, (column.dtype.name(), PyTuple::new(py, &column.shape)?))?;
        }
        Ok(columns)
    }

    #[getter]
    fn branches<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.group.actors[0].policy().current().head.branches())
    }

    #[getter]
    fn heads<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let version = self.group.actors[0].policy().current();
        let contract = &version.loaded.contract;
        let random_graph = !version.loaded.model.facts().random_ops.is_empty();
        let heads = PyDict::new(py);
        for kind in HeadKind::ALL {
            let head = Head::new(&PolicyOptions::with_head(kind), contract, random_graph);
            if let Ok(head) = head
                && let [column] = head.actions()
            {
                let (shape, branches) = (PyTuple::new(py, &column.shape)?, PyTuple::new(py, head.branches())?);
                heads.set_item(kind.to_string(), (column.dtype.name(), shape, branches))?;
            }
        }
        Ok(heads)
    }

    fn __len__(&self) -> usize {
        self.group.actors.len()
    }

    fn __repr__(&self) -> String {
        format!("Actors({} actors)", self.group.actors.len())
    }

    #[pyo3(signature = (obs, mask=None, deterministic=None, record=None, extra=None), text_signature = "($self, obs, mask=None, deterministic=None, record=True, extra=None)")]
    pub(crate) fn act(
        &self,
        py: Python<'_>,
        obs: &Bound<'_, PyAny>,
        mask: Option<&Bound<'_, PyAny>>,
        deterministic: Option<bool>,
        record: Option<&Bound<'_, PyAny>>,
        extra: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<ActionBatch> {
        let mut arguments = ActArguments::new(self, obs, mask, deterministic, record, extra)?;
        let is_main = is_main_thread(py)?;
        let call = arguments.begin(py, &self.group)?;
        if self.group.actors.len() == 1 {
            let ticket = arguments.submit(call, Caller::Blocks)?;
            let mut signals = Signals::default();
            let (result, baton) = py.detach(|| {
                let mut keep_waiting = || signals.check();
                ticket.wait_in_turn(is_main.then_some(&mut keep_waiting))
            });
            if let Some(baton) = baton {
                baton.keep();
            }
            return signals.or(result).map(|results| ActionBatch::new(results, arguments.observations.device(py)));
        }
        let call = arguments.write(call)?;
        let options = arguments.options();
        let results = detach(py, || call.run(&options))?;
        Ok(ActionBatch::new(results, arguments.observations.device(py)))
    }

    #[pyo3(signature = (obs, mask=None, deterministic=None, record=None, extra=None), text_signature = "($self, obs, mask=None, deterministic=None, record=True, extra=None)")]
    pub(crate) fn act_async<'py>(
        slf: &Bound<'py, Self>,
        obs: &Bound<'py, PyAny>,
        mask: Option<&Bound<'py, PyAny>>,
        deterministic: Option<bool>,
        record: Option<&Bound<'py, PyAny>>,
        extra: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, this) = (slf.py(), slf.get());
        let running = event_loop::running(py)?;
        if this.group.actors.len() > 1 {
            // A batch by itself, for a thread of the loop's.
            let (obs, mask) = (own(obs)?, mask.map(own).transpose()?);
            let extra = extra.map(|extra| own(extra)).transpose()?;
            let arguments = (py.None(), slf.getattr("act")?, obs, mask, deterministic, record, extra);
            return running.call_method1("run_in_executor", arguments);
        }
        let mut arguments = ActArguments::new(this, obs, mask, deterministic, record, extra)?;
        let call = arguments.begin(py, &this.group)?;
        let ticket = arguments.submit(call, Caller::Turns)?;
        let event_loop = this.event_loop.of(&running)?;
        let device = arguments.observations.device(py);
        Ok(EventLoop::wait_for(&event_loop, &running, ticket, device)?.into_any())
    }

    #[pyo3(signature = (reward, terminated=None, truncated=None, final_obs=None), text_signature = "($self, reward, terminated=False, truncated=False, final_obs=None)")]
    pub(crate) fn observe(
        &self,
        py: Python<'_>,
        reward: &Bound<'_, PyAny>,
        terminated: Option<&Bound<'_, PyAny>>,
        truncated: Option<&Bound<'_, PyAny>>,
        final_obs: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let rows = self.group.actors.len();
        let observed = || Ok((detach(py, || Ok(self.group.actors[0].observed()))?, self.observation_names()));
        let given = OutcomeArguments::new(reward, terminated, truncated, final_obs, rows, observed)?;
        if self.group.try_observe(&given.outcome(), &given.finals).map_err(|error| to_python(&error))? {
            return Ok(());
        }
        let owned = given.into_owned(rows);
        detach(py, || self.group.observe(&owned.outcome(), &owned.finals))
    }

    #[pyo3(signature = (which=None))]
    fn reset_state(&self, py: Python<'_>, which: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let rows = self.group.actors.len();
        let which = which.map(|which| -> PyResult<_> {
            let array = Contiguous::new(which)?;
            array.expect("which", DType::Bool, rows, &[])?;
            Ok(array.bytes().to_vec())
        });
        let which = which.transpose()?;
        detach(py, || self.group.reset_state(which.as_deref()))
    }
}

impl Actors {
    fn observation_names(&self) -> Vec<String> {
        self.group.actors[0].policy().current().observation_names()
    }
}

/// The arguments of `act`, in forms that the engine takes.
struct ActArguments<'py> {
    observations: Observations<'py>,
    mask: Option<Contiguous<'py>>,
    deterministic: Option<bool>,
    record: RecordArgument,
    extras: Extras<'py>,
}

impl<'py> ActArguments<'py> {
    /// Takes them apart. This may run Python code, so it comes before the group's lock.
    fn new(
        actors: &Actors,
        obs: &Bound<'py, PyAny>,
        mask: Option<&Bound<'py, PyAny>>,
        deterministic: Option<bool>,
        record: Option<&Bound<'py, PyAny>>,
        extra: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Self> {
        let rows = actors.group.actors.len();
        let record = record.map(|record| RecordArgument::new(record, rows)).transpose()?;
        let extras = if actors.extras.is_empty() && extra.is_none() {
            Extras::default()
        } else {
            Extras::new(&actors.extras, obs, extra, rows)?
        };
        Ok(Self {
            extras,
            observations: Observations::new(
                obs,
                &actors.extras,
                || actors.observation_names(),
                || actors.group.device(),
            )?,
            mask: mask.map(|mask| mask_bytes(mask, &actors.group.actors)).transpose()?,
            deterministic,
            record: record.unwrap_or(RecordArgument::Same(true)),
        })
    }

    /// Begins the call, checks them against what the policies take, and makes the group and what lies on a device ready.
    fn begin<'a>(&mut self, py: Python<'_>, group: &'a Arc<ActorGroup>) -> PyResult<ActCall<'a>> {
        loop {
            match self.try_to_begin(py, group) {
                // The call that it waits for may be one of a loop that was closed.
                Err(_) if py.detach(|| group.has_waiting()) && event_loop::forget_closed(py)? => {}
                Err(error) => return Err(error),
                Ok(call) => match self.observations.missing(&call, self.record.rows()) {
                    None => return Ok(call),
                    Some(missing) => {
                        // This runs Python code, for which the group must be free.
                        drop(call);
                        self.observations.provide(missing)?;
                    }
                },
            }
        }
    }

    fn try_to_begin<'a>(&self, py: Python<'_>, group: &'a Arc<ActorGroup>) -> PyResult<ActCall<'a>> {
        let mut call = loop {
            match group.try_begin().map_err(|error| to_python(&error))? {
                Some(call) => break call,
                // Another thread is in a call of this group, and may need the interpreter lock to finish.
                None => py.detach(|| group.wait()),
            }
        };
        self.check(&call)?;
        let masked = self.mask.is_some();
        if call.needs_preparation(masked) {
            detach(py, || call.prepare(masked))?;
            // The actors may follow another policy since.
            self.check(&call)?;
        }
        Ok(call)
    }

    /// Refuses them unless they are what the policies take.
    fn check(&self, call: &ActCall<'_>) -> PyResult<()> {
        self.observations.check(&call.schema(), call.actors())?;
        match &self.mask {
            None => Ok(()),
            Some(mask) => call.check_mask(mask.shape()[1], mask.bytes()).map_err(|error| to_python(&error)),
        }
    }

    /// Sends the call of one actor into a batch with others.
    fn submit(&self, call: ActCall<'_>, caller: Caller) -> PyResult<Ticket> {
        let request = Request {
            observations: &self.observations.bytes(),
            mask: self.mask.as_ref().map(Contiguous::bytes),
            deterministic: self.deterministic,
            record: self.record.rows().keeps(0),
            extras: &self.extras.inputs(),
        };
        call.submit(&request, caller).map_err(|error| to_python(&error))
    }

    /// Puts them into the call's row.
    fn write<'a>(&'a self, mut call: ActCall<'a>) -> PyResult<ActCall<'a>> {
        self.observations.write(&mut call)?;
        if let Some(mask) = &self.mask {
            call.write_mask(mask.bytes()).map_err(|error| to_python(&error))?;
        }
        call.write_extras(&self.extras.inputs()).map_err(|error| to_python(&error))?;
        Ok(call)
    }

    fn options(&self) -> ActOptions<'_> {
        ActOptions { deterministic: self.deterministic, record: self.record.rows() }
    }
}

/// Copies arrays that the caller may write to while they wait.
fn own<'py>(given: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    given.py().import("copy")?.call_method1("deepcopy", (given,))
}

/// A mask as bytes, 0 where an action is not allowed.
fn mask_bytes<'py>(mask: &Bound<'py, PyAny>, actors: &[Arc<Actor>]) -> PyResult<Contiguous<'py>> {
    let mask = Contiguous::new(mask)?;
    let Some(dtype) = mask.dtype() else {
        return Err(error::contract(
            "mask must be an array of truth values, or of numbers that are 0 where an action is not allowed",
        ));
    };
    let columns = match mask.shape() {
        [rows, columns] if *rows == actors.len() => *columns,
        shape => {
            return Err(error::contract(&format!(
                "mask must have a row for each of the {} actors and a column for each action, but has the shape {}",
                actors.len(),
                relevo_core::spec::shape_text(shape)
            )));
        }
    };
    if let Some(element) = first_nan(mask.bytes(), dtype) {
        let (row, column) = (element / columns, element % columns);
        let actor = actors[row].id();
        let error = relevo_core::Error::Contract(format!(
            "the mask of actor {actor} (row {row}) holds NaN in column {column}; give 0 where an action is not allowed, and 1 \
             where it is"
        ));
        return Err(to_python(&error.of_actor(actor)));
    }
    match dtype {
        DType::Bool | DType::UInt8 | DType::Int8 => Ok(mask),
        _ => mask.converted("bool"),
    }
}

enum RecordArgument {
    Same(bool),
    /// Copied: the call runs with the interpreter lock released.
    Each(Vec<u8>),
}

impl RecordArgument {
    fn rows(&self) -> Recording<'_> {
        match self {
            Self::Same(true) => Recording::All,
            Self::Same(false) => Recording::Nothing,
            Self::Each(rows) => Recording::Rows(rows),
        }
    }

    fn new(record: &Bound<'_, PyAny>, rows: usize) -> PyResult<Self> {
        if let Ok(record) = record.cast::<PyBool>() {
            return Ok(Self::Same(record.is_true()));
        }
        let array = Contiguous::new(record)?;
        if let ([], Some(DType::Bool)) = (array.shape(), array.dtype()) {
            return Ok(Self::Same(array.bytes()[0] != 0));
        }
        array.expect("record", DType::Bool, rows, &[])?;
        Ok(Self::Each(array.bytes().to_vec()))
    }
}
