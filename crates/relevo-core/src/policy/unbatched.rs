//! Models that have no axis for rows: `[6] → [3]`, or `[1, 6] → [3]`. Each tensor that lacks the axis gets one of size 1 in front, so
//! that everything else may count on it; such a model takes one row at a time.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use smallvec::SmallVec;

use super::{
    agreement::made_up,
    backend::{Model, ModelFacts, Session, StateLink},
    contract::{Batch, InputContract},
    convention::{self, InputRole, OutputRole},
    probe::Probe,
};
use crate::{
    error::Result,
    spec::{Dim, TensorSpec},
    tensor::{DeviceId, Tensor, TensorView},
};

/// Rows that are compared to see which outputs are the same whatever comes.
const ROWS: usize = 3;

/// A model whose tensors get the axis that they lack.
#[derive(Debug)]
struct Unbatched {
    inner: Arc<dyn Model>,
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
    facts: ModelFacts,
    lacking: Arc<Lacking>,
}

/// Which inputs and outputs have no axis for rows.
#[derive(Debug)]
struct Lacking {
    inputs: Vec<bool>,
    outputs: Vec<bool>,
}

/// A session of such a model.
struct UnbatchedSession {
    inner: Box<dyn Session>,
    lacking: Arc<Lacking>,
}

/// The model and its session as they are where all their tensors have an axis for rows, or where no forward pass shows
/// that they have none; otherwise with that axis added.
pub(super) fn with_rows(
    path: &Path,
    model: Arc<dyn Model>,
    session: Box<dyn Session>,
    roles: &BTreeMap<String, String>,
) -> (Arc<dyn Model>, Box<dyn Session>) {
    if model.inputs().iter().any(|input| input.shape.is_empty()) {
        return (model, session);
    }
    let is_state = |at: usize, spec: &TensorSpec| {
        model.states().iter().any(|link| link.input == at)
            || roles.get(&spec.name).map_or_else(
                || convention::input_role(&spec.name).0 == InputRole::State,
                |role| role.starts_with("state"),
            )
    };
    let inputs: Vec<bool> =
        model.inputs().iter().enumerate().map(|(at, spec)| lacks_axis(spec, is_state(at, spec))).collect();
    let rows: Vec<_> =
        model.inputs().iter().zip(&inputs).map(|(spec, lacks)| one_row(spec, *lacks, roles.get(&spec.name))).collect();
    let none = vec![false; model.outputs().len()];
    let mut session = UnbatchedSession { inner: session, lacking: Arc::new(Lacking { inputs, outputs: none }) };
    let mut probe = Probe { path, model: &*model, session: &mut session, inputs: &rows };
    let lacking = match probe.lacking_outputs(roles) {
        // A model that does not run is for its contract to tell of.
        Some(outputs) => Arc::new(Lacking { inputs: session.lacking.inputs.clone(), outputs }),
        None => return (model, session.inner),
    };
    session.lacking = lacking.clone();
    (Arc::new(Unbatched::new(model, lacking)), Box::new(session))
}

/// Whether no axis of an input may count the rows: none is left open, and where it may be looked for, there is no 1.
fn lacks_axis(spec: &TensorSpec, is_state: bool) -> bool {
    let is_one = |dim: &Dim| *dim == Dim::Fixed(1);
    let is_fixed = spec.shape.iter().all(|dim| matches!(dim, Dim::Fixed(_)));
    // States of torch's recurrent layers are [layers, batch, width].
    let is_across = spec.shape.len() == 3 && is_one(&spec.shape[1]);
    let has_one = if is_state { spec.shape.iter().any(is_one) } else { spec.shape.first().is_some_and(is_one) };
    is_fixed && !has_one && !is_across
}

/// An input, with the axis that it may lack, for forward passes on made-up rows.
fn one_row(spec: &TensorSpec, lacks: bool, role: Option<&String>) -> InputContract {
    let mut spec = spec.clone();
    if lacks {
        spec.shape.insert(0, Dim::Fixed(1));
    }
    let open = spec.shape.iter().position(|dim| matches!(dim, Dim::Dynamic(_)));
    let axis = open.or_else(|| spec.shape.iter().position(|dim| *dim == Dim::Fixed(1))).unwrap_or(0);
    let size = |dim: &Dim| match dim {
        Dim::Fixed(size) => *size,
        Dim::Dynamic(_) => 1,
    };
    let mut row_shape: Vec<_> = spec.shape.iter().map(size).collect();
    row_shape.remove(axis);
    let named = convention::input_role(&spec.name).0;
    let role = role.and_then(|role| role.split(':').next().unwrap_or(role).parse().ok()).unwrap_or(named);
    InputContract { spec, role, reason: String::new(), batch_axis: axis, row_shape }
}

impl Probe<'_> {
    /// Which outputs are answers without an axis for rows; `None` where inputs and outputs have all that they need.
    fn lacking_outputs(&mut self, roles: &BTreeMap<String, String>) -> Option<Vec<bool>> {
        let lacking: Vec<_> =
            self.inputs.iter().zip(self.model.inputs()).map(|(row, spec)| row.spec != *spec).collect();
        let is_unbatched = lacking.contains(&true);
        let first = self.made_up_row(0).ok()?;
        let is_float = |output: &Tensor| output.dtype().is_float();
        let without: Vec<bool> = first
            .iter()
            .map(|output| match output.shape() {
                [1] => is_unbatched && is_float(output),
                [1, ..] => false,
                shape => !self.inputs.iter().any(|input| input.batch_axis > 0 && input.shape(1) == shape),
            })
            .collect();
        let may_lack = is_unbatched || (without.contains(&true) && self.takes_one_row(&first));
        if !may_lack {
            return None;
        }
        let others: Vec<_> = (1..ROWS).filter_map(|set| self.made_up_row(set).ok()).collect();
        let follows = |at: usize| others.iter().any(|outputs| outputs[at].bytes() != first[at].bytes());
        if is_unbatched && self.is_batch(&lacking, &first, &follows) {
            return None;
        }
        let role = |at: usize| {
            let name = &self.model.outputs()[at].name;
            let given = roles.get(name).and_then(|role| role.parse::<OutputRole>().ok());
            given.or_else(|| convention::output_role(name).map(|(role, _)| role))
        };
        // A network whose last layer is still zero answers the same to everything.
        let is_constant = !(0..first.len()).any(follows);
        let is_answer = |at: usize| match role(at) {
            Some(OutputRole::Constant) => false,
            Some(role) if is_constant => role.is_action(),
            _ => follows(at),
        };
        // The next value of a state has the axes of the state, whatever its sizes look like.
        let of_state =
            |at: usize| self.model.states().iter().find(|link| link.output == at).map(|link| lacking[link.input]);
        let answers: Vec<_> =
            (0..first.len()).map(|at| of_state(at).unwrap_or_else(|| without[at] && is_answer(at))).collect();
        (is_unbatched || answers.contains(&true)).then_some(answers)
    }

    fn made_up_row(&mut self, set: usize) -> Result<Vec<Tensor>> {
        let inputs: Vec<_> = self.inputs.iter().enumerate().map(|(at, input)| made_up(input, at, set, 1)).collect();
        self.run_on(&inputs)
    }

    /// Whether two rows do not run, or give outputs of more axes than `one` row does.
    fn takes_one_row(&mut self, one: &[Tensor]) -> bool {
        let is_open = |input: &InputContract| matches!(input.spec.shape[input.batch_axis], Dim::Dynamic(_));
        if matches!(self.model.facts().batch, Some(Batch::One { .. })) || !self.inputs.iter().any(is_open) {
            return true;
        }
        let inputs: Vec<_> = self.inputs.iter().enumerate().map(|(at, input)| made_up(input, at, 0, 2)).collect();
        let is_alike = |two: Vec<Tensor>| one.iter().zip(&two).all(|(one, two)| one.shape().len() == two.shape().len());
        !self.run_on(&inputs).is_ok_and(is_alike)
    }

    /// Whether the first axis of all inputs, which is no 1, counts rows after all: a change of the first leaves the others as
    /// they are.
    fn is_batch(&mut self, lacking: &[bool], first: &[Tensor], follows: &dyn Fn(usize) -> bool) -> bool {
        // Behind the axis that was added.
        let sizes: Vec<_> = self.inputs.iter().map(|input| input.row_shape.first().copied().unwrap_or(0)).collect();
        let count = sizes[0];
        let begins = |output: &Tensor| output.shape().first() == Some(&count);
        if lacking.contains(&false)
            || sizes.iter().any(|size| *size != count)
            || !first.iter().enumerate().all(|(at, output)| !follows(at) || begins(output))
        {
            return false;
        }
        let inputs: Vec<_> = self
            .inputs
            .iter()
            .enumerate()
            .map(|(at, input)| {
                let (mut tensor, other) = (made_up(input, at, 0, 1), made_up(input, at, 1, 1));
                let size = tensor.bytes().len() / count;
                tensor.bytes_mut()[..size].copy_from_slice(&other.bytes()[..size]);
                tensor
            })
            .collect();
        let Ok(changed) = self.run_on(&inputs) else { return false };
        let is_same = |(at, (before, after)): (usize, (&Tensor, &Tensor))| {
            let size = before.bytes().len() / count;
            !follows(at) || before.bytes()[size..] == after.bytes()[size..]
        };
        first.iter().zip(&changed).enumerate().all(is_same)
    }
}

impl Unbatched {
    fn new(inner: Arc<dyn Model>, lacking: Arc<Lacking>) -> Self {
        let with_axis = |specs: &[TensorSpec], lacking: &[bool]| -> Vec<TensorSpec> {
            let axis = |(spec, lacks): (&TensorSpec, &bool)| {
                let mut spec = spec.clone();
                if *lacks {
                    spec.shape.insert(0, Dim::Fixed(1));
                }
                spec
            };
            specs.iter().zip(lacking).map(axis).collect()
        };
        let names = |specs: &[TensorSpec], lacking: &[bool]| -> Vec<String> {
            let lacking = specs.iter().zip(lacking).filter(|(_, lacks)| **lacks);
            lacking.map(|(spec, _)| format!("`{}`", spec.name)).collect()
        };
        let without =
            [names(inner.inputs(), &lacking.inputs), names(inner.outputs(), &lacking.outputs)].concat().join(", ");
        let mut facts = inner.facts().clone();
        if !matches!(facts.batch, Some(Batch::One { .. })) {
            facts.batch = Some(Batch::One { reason: format!("no axis counts the rows of {without}") });
        }
        facts.notes.push(format!("no axis counts the rows of {without}: one of size 1 is put before the others"));
        Self {
            inputs: with_axis(inner.inputs(), &lacking.inputs),
            outputs: with_axis(inner.outputs(), &lacking.outputs),
            facts,
            inner,
            lacking,
        }
    }
}

impl Model for Unbatched {
    fn format(&self) -> &'static str {
        self.inner.format()
    }

    fn inputs(&self) -> &[TensorSpec] {
        &self.inputs
    }

    fn outputs(&self) -> &[TensorSpec] {
        &self.outputs
    }

    fn facts(&self) -> &ModelFacts {
        &self.facts
    }

    fn states(&self) -> &[StateLink] {
        self.inner.states()
    }

    fn device(&self) -> DeviceId {
        self.inner.device()
    }

    fn session(&self) -> Result<Box<dyn Session>> {
        Ok(Box::new(UnbatchedSession { inner: self.inner.session()?, lacking: self.lacking.clone() }))
    }
}

impl Session for UnbatchedSession {
    fn forward(&mut self, inputs: &[TensorView<'_>], wanted: &[usize], outputs: &mut [Tensor]) -> Result<()> {
        let views: SmallVec<[TensorView<'_>; 8]> = inputs
            .iter()
            .zip(&self.lacking.inputs)
            .map(|(input, lacks)| match input.shape {
                [1, row @ ..] if *lacks => TensorView { shape: row, ..*input },
                _ => *input,
            })
            .collect();
        let shape = |output: &Tensor| -> SmallVec<[usize; 8]> { SmallVec::from_slice(output.shape()) };
        for (output, _) in outputs.iter_mut().zip(wanted).filter(|(_, index)| self.lacking.outputs[**index]) {
            if let [1, row @ ..] = &shape(output)[..] {
                output.reset(output.dtype(), row);
            }
        }
        self.inner.forward(&views, wanted, outputs)?;
        for (output, _) in outputs.iter_mut().zip(wanted).filter(|(_, index)| self.lacking.outputs[**index]) {
            let mut shape = shape(output);
            shape.insert(0, 1);
            output.reset(output.dtype(), &shape);
        }
        Ok(())
    }
}
