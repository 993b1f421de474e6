//! `relevo.Contract`: what a model takes and gives.

use std::collections::BTreeMap;

use pyo3::{prelude::*, types::PyTuple};
use relevo_core::{
    policy::{self, Batch, Head, LoadedModel, PolicyOptions, StateLink},
    spec::{Dim, TensorSpec},
};

#[pyclass(frozen, get_all, module = "relevo")]
pub(crate) struct Contract {
    inputs: Vec<Py<TensorContract>>,
    outputs: Vec<Py<TensorContract>>,
    batch: &'static str,
    batch_reason: String,
    recurrent: bool,
    states: Vec<Py<StateContract>>,
    unlinked: Vec<String>,
    random_ops: Vec<String>,
    default_head: Option<String>,
    branches: Py<PyTuple>,
    unused_actions: Vec<String>,
    /// `relevo.Bounds`, or nothing.
    bounds: Option<Py<PyAny>>,
    /// `relevo.Normalization` by name.
    normalization: BTreeMap<String, Py<PyAny>>,
    producer: String,
    notes: Vec<String>,
}

#[pyclass(frozen, get_all, module = "relevo")]
pub(crate) struct TensorContract {
    name: String,
    dtype: &'static str,
    shape: Py<PyTuple>,
    row_shape: Py<PyTuple>,
    batch_axis: Option<usize>,
    role: String,
    reason: String,
}

#[pyclass(frozen, get_all, module = "relevo")]
pub(crate) struct StateContract {
    input: String,
    output: String,
    dtype: &'static str,
    row_shape: Py<PyTuple>,
    batch_axis: usize,
    initial: &'static str,
}

impl Contract {
    pub(crate) fn new(py: Python<'_>, loaded: &LoadedModel) -> PyResult<Self> {
        let contract = &loaded.contract;
        let facts = loaded.model.facts();
        let inputs = contract.inputs.iter().map(|input| {
            TensorContract::new(py, &input.spec, &input.row_shape, Some(input.batch_axis), &input.role, &input.reason)
        });
        let outputs = contract.outputs.iter().map(|output| {
            TensorContract::new(py, &output.spec, &output.row_shape, output.batch_axis, &output.role, &output.reason)
        });
        let states = contract.states.iter().map(|link| StateContract::new(py, contract, link));
        let (batch, batch_reason) = match &contract.batch {
            policy::Batch::Dynamic { reason } => ("dynamic", reason.clone()),
            Batch::One { reason } => ("one", format!("{reason}; actors are run row by row")),
        };
        let head = Head::new(&PolicyOptions::default(), contract, !facts.random_ops.is_empty()).ok();
        let settings = py.import("relevo.settings")?;
        let bounds = contract.declared.bounds.as_ref().map(|bounds| {
            let given = (bounds.low().to_vec(), bounds.high().to_vec(), bounds.kind().to_string());
            settings.call_method1("Bounds", given).map(Bound::unbind)
        });
        let normalization = contract.declared.normalization.iter().map(|(name, own)| {
            let given = (own.mean.clone(), own.variance.clone(), own.epsilon, own.clip);
            Ok((name.clone(), settings.call_method1("Normalization", given)?.unbind()))
        });
        Ok(Self {
            bounds: bounds.transpose()?,
            normalization: normalization.collect::<PyResult<_>>()?,
            inputs: inputs.collect::<PyResult<_>>()?,
            outputs: outputs.collect::<PyResult<_>>()?,
            batch,
            batch_reason,
            recurrent: contract.recurrent,
            states: states.collect::<PyResult<_>>()?,
            unlinked: contract.unlinked.iter().map(|at| contract.inputs[*at].spec.name.clone()).collect(),
            random_ops: facts.random_ops.clone(),
            unused_actions: head.as_ref().map(|head| head.unused_actions(contract)).unwrap_or_default(),
            branches: PyTuple::new(
                py,
                head.as_ref().map(Head::branches).filter(|branches| !branches.is_empty()).unwrap_or(&contract.branches),
            )?
            .unbind(),
            default_head: head.map(|head| head.describe()),
            producer: facts.producer.clone(),
            notes: facts.notes.iter().cloned().chain(contract.notes(!facts.random_ops.is_empty())).collect(),
        })
    }
}

#[pymethods]
impl Contract {
    fn __repr__(&self) -> String {
        let line = |tensor: &Py<TensorContract>| tensor.get().__repr__();
        let block = |title: &str, tensors: &[Py<TensorContract>]| {
            let lines: Vec<_> = tensors.iter().map(|tensor| format!("    {}", line(tensor))).collect();
            format!("  {title}:\n{}", lines.join("\n"))
        };
        let states: Vec<_> = self.states.iter().map(|state| format!("\n    {}", state.get().__repr__())).collect();
        let bounds = self.bounds.iter().map(|bounds| format!("  bounds: {bounds}, from the file\n"));
        let statistics = self.normalization.iter().map(|(name, own)| format!("  normalises {name} itself: {own}\n"));
        let declared: Vec<_> = bounds.chain(statistics).collect();
        let notes: Vec<_> = self.notes.iter().map(|note| format!("  note: {note}\n")).collect();
        format!(
            "Contract(\n{}\n{}\n  batch: {} ({})\n  recurrent: {}{}\n  default head: {}\n{}{})",
            block("inputs", &self.inputs),
            block("outputs", &self.outputs),
            self.batch,
            self.batch_reason,
            if self.recurrent { "yes" } else { "no" },
            states.concat(),
            self.default_head.as_deref().unwrap_or("none"),
            declared.concat(),
            notes.concat(),
        )
    }
}

impl StateContract {
    fn new(py: Python<'_>, contract: &policy::Contract, link: &StateLink) -> PyResult<Py<Self>> {
        let input = &contract.inputs[link.input];
        let contract = Self {
            input: input.spec.name.clone(),
            output: contract.outputs[link.output].spec.name.clone(),
            dtype: input.spec.dtype.name(),
            row_shape: PyTuple::new(py, &input.row_shape)?.unbind(),
            batch_axis: input.batch_axis,
            initial: if link.initial.iter().all(|byte| *byte == 0) { "zeros" } else { "the model's own" },
        };
        Py::new(py, contract)
    }
}

#[pymethods]
impl StateContract {
    fn __repr__(&self) -> String {
        format!(
            "{} <- {}: {} {}, actors along axis {}, begins with {}",
            self.input, self.output, self.dtype, self.row_shape, self.batch_axis, self.initial
        )
    }
}

impl TensorContract {
    fn new(
        py: Python<'_>,
        spec: &TensorSpec,
        row_shape: &[usize],
        batch_axis: Option<usize>,
        role: &impl ToString,
        reason: &str,
    ) -> PyResult<Py<Self>> {
        let dims = spec.shape.iter().map(|dim| match dim {
            Dim::Fixed(size) => size.into_pyobject(py).map(Bound::into_any).map_err(PyErr::from),
            Dim::Dynamic(_) => dim.to_string().into_pyobject(py).map(Bound::into_any).map_err(PyErr::from),
        });
        let shape = PyTuple::new(py, dims.collect::<PyResult<Vec<_>>>()?)?.unbind();
        let contract = Self {
            name: spec.name.clone(),
            dtype: spec.dtype.name(),
            shape,
            row_shape: PyTuple::new(py, row_shape)?.unbind(),
            batch_axis,
            role: role.to_string(),
            reason: reason.to_owned(),
        };
        Py::new(py, contract)
    }
}

#[pymethods]
impl TensorContract {
    fn __repr__(&self) -> String {
        format!("{}: {} {} -> {} ({})", self.name, self.dtype, self.shape, self.role, self.reason)
    }
}
