//! What a model takes and gives: the role of every tensor, its shape a row, and the batch axis, as the names say and
//! as a forward pass shows. Where the file's declaration and the forward pass differ, the forward pass is right.

use std::{collections::BTreeMap, path::Path};

use super::{
    Head, HeadKind, PolicyOptions,
    backend::{Model, Session, StateLink},
    convention::{self, InputRole, OutputRole},
    declared::Declared,
    probe::{OutputShape, Probe},
    recurrence::{self, Recurrence},
};
use crate::{
    error::{Error, Result},
    spec::{Dim, TensorSpec},
    tensor::elements,
};

/// Why a tensor has its role where the user said so.
const GIVEN: &str = "given by `roles`";

/// How many rows one forward pass may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Batch {
    /// Any number of rows.
    Dynamic {
        /// How that showed.
        reason: String,
    },
    /// One row: a batch is run row by row.
    One {
        /// How that showed.
        reason: String,
    },
}

/// An input and its role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputContract {
    /// The file's declaration.
    pub spec: TensorSpec,
    /// What the input is for.
    pub role: InputRole,
    /// How the role was inferred.
    pub reason: String,
    /// Which axis counts the rows.
    pub batch_axis: usize,
    /// Shape of one row: the declared shape without the batch axis.
    pub row_shape: Vec<usize>,
}

/// An output and its role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputContract {
    /// The file's declaration.
    pub spec: TensorSpec,
    /// What the output is.
    pub role: OutputRole,
    /// How the role was inferred.
    pub reason: String,
    /// Which axis counts the rows; `None` for constants.
    pub batch_axis: Option<usize>,
    /// Shape of one row as a forward pass gave it; the whole shape where there is no batch axis.
    pub row_shape: Vec<usize>,
}

impl InputContract {
    /// The shape of `rows` rows.
    pub fn shape(&self, rows: usize) -> Vec<usize> {
        with_axis(&self.row_shape, Some(self.batch_axis), rows)
    }

    /// Whether the rows of a batch lie one behind the other.
    pub fn rows_come_first(&self) -> bool {
        rows_come_first(&self.row_shape, self.batch_axis)
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        elements(&self.row_shape).saturating_mul(self.spec.dtype.size())
    }
}

impl OutputContract {
    /// The shape of `rows` rows.
    pub fn shape(&self, rows: usize) -> Vec<usize> {
        with_axis(&self.row_shape, self.batch_axis, rows)
    }

    /// Whether it has rows, and those of a batch lie one behind the other.
    pub fn rows_come_first(&self) -> bool {
        self.batch_axis.is_some_and(|axis| rows_come_first(&self.row_shape, axis))
    }

    /// Elements of one row.
    pub fn row_len(&self) -> usize {
        elements(&self.row_shape)
    }
}

/// Whether nothing but axes of size 1 stands before the one that counts the rows.
fn rows_come_first(row_shape: &[usize], batch_axis: usize) -> bool {
    row_shape.iter().take(batch_axis).all(|size| *size == 1)
}

pub(super) fn with_axis(row_shape: &[usize], axis: Option<usize>, rows: usize) -> Vec<usize> {
    let mut shape = row_shape.to_vec();
    if let Some(axis) = axis {
        shape.insert(axis, rows);
    }
    shape
}

/// What a model takes and gives.
#[derive(Debug, Clone, PartialEq)]
pub struct Contract {
    /// Inputs in the file's order.
    pub inputs: Vec<InputContract>,
    /// Outputs in the file's order.
    pub outputs: Vec<OutputContract>,
    /// How many rows one forward pass may take.
    pub batch: Batch,
    /// Whether the model has memory: a state input on which its outputs depend.
    pub recurrent: bool,
    /// The states that it hands on from step to step. Where it has no memory: those that begin with something else than zeros.
    pub states: Vec<StateLink>,
    /// Numbers of choices of the branches of its discrete actions, where a constant of the file says them; else empty.
    pub branches: Vec<usize>,
    /// State inputs on which outputs depend, though it does not show which output gives their next value.
    pub unlinked: Vec<usize>,
    /// Observations that may be states, and the outputs that may be their next values: their names do not say so.
    pub likely_states: Vec<(usize, usize)>,
    /// What the file itself says of its actions and observations.
    pub declared: Declared,
}

impl Contract {
    /// Infers the contract of `model` from names and probing forward passes. `roles` overrides the role of any input or
    /// output by name; `device` is where the session runs.
    ///
    /// # Errors
    /// [`Error::Config`] for a role that no tensor has, [`Error::ModelLoad`] for a model that cannot be run or whose
    /// widths are not declared.
    pub fn infer(
        path: &Path,
        model: &dyn Model,
        session: &mut dyn Session,
        roles: &BTreeMap<String, String>,
        device: &str,
    ) -> Result<Self> {
        check_names(model, roles)?;
        let roles_of_inputs = model.inputs().iter().map(|spec| input_role(spec, roles.get(&spec.name)));
        let mut inputs = roles_of_inputs.collect::<Result<Vec<_>>>()?;
        let suspects = recurrence::suspect(&mut inputs, model, roles);
        let (batch, shapes) = settle_axes(path, &mut inputs, model, session)?;
        let mut probe = Probe { path, model, session, inputs: &inputs };
        let mut found = probe.recurrence(&batch, &shapes, &suspects, roles)?;
        let is_state = |input: &InputContract| input.role == InputRole::State;
        if found.acquitted.len() < suspects.len()
            && inputs.iter().enumerate().all(|(at, input)| {
                input.role == InputRole::ActionMask || (is_state(input) && !found.acquitted.contains(&at))
            })
        {
            // Something must be observed.
            found.release(&suspects);
        }
        for at in &found.acquitted {
            let (role, reason) = convention::input_role(&inputs[*at].spec.name);
            (inputs[*at].role, inputs[*at].reason) = (role, reason.into());
            let axis = row_axis(&inputs[*at].spec);
            set_axis(path, &mut inputs[*at], axis)?;
        }
        if found.recurrent {
            find_episode_inputs(&mut inputs, roles);
        }
        if !inputs.iter().any(|input| input.role == InputRole::Observation) {
            return Err(Error::model_load(
                path,
                "no input is an observation; name one by roles={\"…\": \"observation\"}",
            ));
        }
        let mut probe = Probe { path, model, session, inputs: &inputs };
        let mixed = match &batch {
            Batch::One { .. } => None,
            Batch::Dynamic { .. } => probe.disagreement(&shapes, &found.random, device == "cpu")?,
        };
        if let Some(crossed) = inputs.iter_mut().find(|input| is_crossed(input))
            && !matches!(model.facts().batch, Some(Batch::Dynamic { .. }))
            && (matches!(batch, Batch::One { .. })
                || mixed.is_some()
                || shapes.iter().any(|shape| shape.batch_axis.is_none()))
        {
            // What was taken for the number of rows is that of steps.
            set_axis(path, crossed, 0)?;
        }
        let batch = mixed.map_or(batch, |reason| Batch::One { reason });
        let branches = branches(model.outputs(), &shapes);
        let declared = Declared::read(&model.facts().declared).map_err(|reason| {
            Error::model_load(
                path,
                format!("what relevo.export wrote into it cannot be read: {reason}; export it again"),
            )
        })?;
        let mut outputs = output_contracts(model.outputs(), &shapes, &branches, roles, &found.pairs)?;
        for (input, output) in &found.pairs {
            let (input, output) = (&inputs[*input], &mut outputs[*output]);
            output.role = OutputRole::State;
            output.reason = format!("the next value of `{}`", input.spec.name);
            (output.batch_axis, output.row_shape) = (Some(input.batch_axis), input.row_shape.clone());
        }
        let likely_states = Probe { path, model, session, inputs: &inputs }.likely_states(&outputs)?;
        let Recurrence { links: states, recurrent, unlinked, .. } = found;
        Ok(Self { inputs, outputs, batch, recurrent, states, branches, unlinked, likely_states, declared })
    }

    /// The observation inputs, in the file's order.
    pub fn observations(&self) -> impl Iterator<Item = &InputContract> {
        self.inputs.iter().filter(|input| input.role == InputRole::Observation)
    }

    /// Whether the rows of every tensor lie one behind the other, so that a batch can be cut into parts.
    pub fn rows_come_first(&self) -> bool {
        self.inputs.iter().all(InputContract::rows_come_first)
            && self.outputs.iter().all(|output| output.batch_axis.is_none() || output.rows_come_first())
    }

    /// The mask input, if the model has one.
    pub fn mask(&self) -> Option<&InputContract> {
        self.inputs.iter().find(|input| input.role == InputRole::ActionMask)
    }

    /// What a user may not expect, where no head is given.
    pub fn notes(&self, random_graph: bool) -> Vec<String> {
        let words = |(input, output): &(usize, usize)| {
            let (input, output) = (&self.inputs[*input].spec.name, &self.outputs[*output].spec.name);
            format!(
                "`{input}` may be memory, and `{output}` its next value: an output of its shape changes with it. If so, say it: \
                 roles={{\"{input}\": \"state:{output}\"}}; it is taken for an observation"
            )
        };
        let default = Head::new(&PolicyOptions::default(), self, random_graph);
        self.likely_states.iter().map(words).chain(default.iter().flat_map(|head| self.doubts(head))).collect()
    }

    /// Outputs that a head which nobody asked for hands on as the action, though they may be what actions are made of: how to say
    /// so.
    pub(crate) fn doubts(&self, default: &Head) -> Vec<String> {
        let is_vague = |output: &&OutputContract| {
            output.role == OutputRole::Action
                && output.spec.dtype.is_float()
                // Of one number there is no choice.
                && output.row_len() > 1
                && output.reason != GIVEN
                && !convention::names_an_action(&output.spec.name)
        };
        if default.kinds().any(|kind| kind != HeadKind::Raw) {
            return Vec::new();
        }
        let words = |output: &OutputContract| {
            let (name, reason, width) = (&output.spec.name, &output.reason, output.row_len());
            let pairs = if width % 2 == 0 {
                format!("; means and log-deviations side by side, {} each: the head gaussian", width / 2)
            } else {
                String::new()
            };
            format!(
                "by default `{name}` is taken for the action itself, though its name may mean something else ({reason}). If it \
                 holds logits: the head categorical (several branches: branches of {width} choices in all); values of \
                 actions: the head argmax{pairs}"
            )
        };
        self.outputs.iter().filter(is_vague).map(words).collect()
    }

    /// Position of the first output with `role`.
    pub fn output(&self, role: OutputRole) -> Option<usize> {
        self.outputs.iter().position(|output| output.role == role)
    }
}

/// Gives their role to inputs that tell a model with memory whether an episode goes on: those of one number a row, whose name
/// may say so. One observation stays.
fn find_episode_inputs(inputs: &mut [InputContract], roles: &BTreeMap<String, String>) {
    for at in 0..inputs.len() {
        let input = &inputs[at];
        let others = inputs.iter().enumerate().filter(|(other, _)| *other != at);
        let is_observed = others.into_iter().any(|(_, other)| other.role == InputRole::Observation);
        if input.role != InputRole::State
            && !roles.contains_key(&input.spec.name)
            && elements(&input.row_shape) == 1
            && is_observed
            && let Some((role, reason)) = convention::episode_role(&input.spec.name)
        {
            (inputs[at].role, inputs[at].reason) = (role, reason.into());
        }
    }
}

fn check_names(model: &dyn Model, roles: &BTreeMap<String, String>) -> Result<()> {
    let names = || model.inputs().iter().chain(model.outputs()).map(|spec| spec.name.as_str());
    match roles.keys().find(|key| !names().any(|name| name == key.as_str())) {
        None => Ok(()),
        Some(unknown) => Err(Error::Config(format!(
            "roles names `{unknown}`, but the model has no such tensor; it has {}",
            names().collect::<Vec<_>>().join(", ")
        ))),
    }
}

/// An input with its role; which axis counts its rows is not settled yet.
fn input_role(spec: &TensorSpec, role: Option<&String>) -> Result<InputContract> {
    let (role, reason) = match role {
        Some(role) if recurrence::named_output(role).is_some() => (InputRole::State, GIVEN),
        Some(role) => (role.parse()?, GIVEN),
        None => convention::input_role(&spec.name),
    };
    Ok(InputContract { spec: spec.clone(), role, reason: reason.into(), batch_axis: 0, row_shape: Vec::new() })
}

/// Finds out which axis of each input counts the rows, and by that how many a batch may have. For a state it may be any: where
/// its declaration does not say which, each is tried.
fn settle_axes(
    path: &Path,
    inputs: &mut [InputContract],
    model: &dyn Model,
    session: &mut dyn Session,
) -> Result<(Batch, Vec<OutputShape>)> {
    let symbol = recurrence::batch_symbol(inputs);
    let choices: Vec<Vec<usize>> = inputs
        .iter()
        .map(|input| match input.role {
            InputRole::State => recurrence::batch_axes(&input.spec, symbol.as_deref()),
            _ => vec![row_axis(&input.spec)],
        })
        .collect();
    let tries = choices.iter().map(Vec::len).max().unwrap_or(1).max(1);
    let mut first = None;
    for attempt in 0..tries {
        for (input, axes) in inputs.iter_mut().zip(&choices) {
            let axis = axes.get(attempt).or(axes.first()).copied().unwrap_or(0);
            set_axis(path, input, axis)?;
        }
        let (batch, shapes) = Probe { path, model, session, inputs }.batch()?;
        if matches!(batch, Batch::Dynamic { .. }) || tries == 1 {
            return Ok((batch, shapes));
        }
        first.get_or_insert((batch, shapes));
    }
    for (input, axes) in inputs.iter_mut().zip(&choices) {
        set_axis(path, input, axes.first().copied().unwrap_or(0))?;
    }
    first.ok_or_else(|| Error::model_load(path, "no axis of its inputs counts the rows; export the model again"))
}

/// The axis that counts the rows of an input that is no state: the first, or as torch's recurrent layers have it the second of
/// [steps, batch, width], where there is one step.
pub(super) fn row_axis(spec: &TensorSpec) -> usize {
    let is_open = |dim: &Dim| matches!(dim, Dim::Dynamic(_));
    match &spec.shape[..] {
        [Dim::Fixed(1), rows, rest @ ..] if is_open(rows) && !rest.is_empty() && !rest.iter().any(is_open) => 1,
        _ => 0,
    }
}

/// Whether the rows of an observation or a mask are counted by its second axis.
fn is_crossed(input: &InputContract) -> bool {
    input.role != InputRole::State && input.batch_axis == 1
}

/// Takes `axis` as the one that counts the rows of `input`; the others must have a size.
fn set_axis(path: &Path, input: &mut InputContract, axis: usize) -> Result<()> {
    let spec = &input.spec;
    if spec.shape.is_empty() {
        return Err(Error::model_load(
            path,
            format!(
                "input `{name}` has no axis for the rows of a batch: it is declared as a scalar, or without a shape; where it takes \
                 rows all the same, give the shape of one by shapes={{\"{name}\": (…,)}}, and otherwise export the model with that \
                 input as [batch] or [batch, 1]",
                name = spec.name
            ),
        ));
    }
    if let (0, [Dim::Fixed(size @ 2..), Dim::Dynamic(rows)]) = (axis, &spec.shape[..])
        && input.role == InputRole::Observation
    {
        return Err(Error::model_load(
            path,
            format!(
                "input `{}` is declared as [{size}, {open}]: its first axis counts {size} rows, and its second one has no size; \
                 where the second one counts the rows, export the model with that first: [{open}, {size}]",
                spec.name,
                open = Dim::Dynamic(rows.clone())
            ),
        ));
    }
    let others = spec.shape.iter().enumerate().filter(|(other, _)| *other != axis);
    let row_shape = others.map(|(_, dim)| match dim {
        Dim::Fixed(size) => Ok(*size),
        Dim::Dynamic(_) => Err(Error::model_load(
            path,
            format!(
                "input `{name}` is declared as [{}]: besides the batch axis another one has no size; give the shape of one row \
                 by shapes={{\"{name}\": (…,)}}, or export the model with that width fixed; or if it is a state, say which output gives its next value: \
                 roles={{\"{name}\": \"state:OUTPUT\"}}",
                spec.shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
                name = spec.name
            ),
        )),
    });
    input.row_shape = row_shape.collect::<Result<_>>()?;
    input.batch_axis = axis;
    Ok(())
}

fn output_contracts(
    specs: &[TensorSpec],
    shapes: &[OutputShape],
    branches: &[usize],
    roles: &BTreeMap<String, String>,
    states: &[(usize, usize)],
) -> Result<Vec<OutputContract>> {
    // What is remembered may have any name: a running `mean` is no action.
    let is_state = |output: usize| states.iter().any(|(_, next)| *next == output);
    let named = |at: usize| {
        let found = convention::output_role(&specs[at].name);
        found.filter(|(role, _)| *role != OutputRole::Probabilities || shapes[at].adds_up_to_one)
    };
    let mut others = (0..specs.len()).filter(|output| !is_state(*output));
    let named_action = others.any(|at| named(at).is_some_and(|(role, _)| role.is_action()));
    specs
        .iter()
        .zip(shapes)
        .enumerate()
        .map(|(index, (spec, shape))| {
            let (role, reason) = if let Some(role) = roles.get(&spec.name) {
                (role.parse()?, GIVEN)
            } else if let Some((OutputRole::Action, _)) = named(index)
                && is_log_probabilities(spec, shape, branches)
            {
                (OutputRole::Logits, "floats under the name of a discrete action: a log-probability for each choice")
            } else if let Some((OutputRole::LogProb, _)) = named(index)
                && !named_action
                && spec.dtype.is_float()
                && shape.batch_axis.is_some()
                && matches!(shape.row_shape[..], [choices] if choices > 1)
            {
                (OutputRole::Logits, "a log-probability for each choice, and no other output is named like an action")
            } else if let Some((role, reason)) = named(index) {
                (role, reason)
            } else if shape.batch_axis.is_none() {
                (OutputRole::Constant, "its shape does not follow the batch")
            } else if let Some(role) = by_position(index, shapes).filter(|_| !named_action) {
                (role, "by position and shape: action, value and log-probability, as Stable-Baselines3 exports them")
            } else if index == 0 && !named_action {
                (OutputRole::Action, "the first output, and no other is named like an action")
            } else {
                (OutputRole::Other, "the name is not known")
            };
            let (batch_axis, row_shape) = match (role, shape.batch_axis) {
                (OutputRole::Constant, Some(axis)) => (None, with_axis(&shape.row_shape, Some(axis), 1)),
                (_, axis) => (axis, shape.row_shape.clone()),
            };
            Ok(OutputContract { spec: spec.clone(), role, reason: reason.into(), batch_axis, row_shape })
        })
        .collect()
}

/// The numbers of choices that ML-Agents writes into a constant of the file, for its discrete actions.
fn branches(specs: &[TensorSpec], shapes: &[OutputShape]) -> Vec<usize> {
    let constant = |name: &str| {
        let found = specs.iter().zip(shapes).find(|(spec, _)| spec.name == name);
        found.and_then(|(_, shape)| shape.constant.as_deref())
    };
    // Before it had hybrid actions, one constant was for both kinds, and another told them apart.
    let old = || constant("action_output_shape").filter(|_| constant("is_continuous_control") == Some(&[0.0]));
    let sizes = constant("discrete_action_output_shape").or_else(old).unwrap_or(&[]);
    let sizes: Option<Vec<usize>> = sizes
        .iter()
        .map(|size| (*size >= 1.0 && size.fract() == 0.0 && *size < 1e6).then_some(*size as usize))
        .collect();
    sizes.unwrap_or_default()
}

/// Whether an action's output holds a number for each choice instead of the choices.
fn is_log_probabilities(spec: &TensorSpec, shape: &OutputShape, branches: &[usize]) -> bool {
    let discrete = spec.name.contains("discrete") || spec.name == "action";
    discrete
        && spec.dtype.is_float()
        && shape.batch_axis.is_some()
        && !branches.is_empty()
        && shape.row_shape == [branches.iter().sum::<usize>()]
}

/// What the second and third of three outputs are that have no names: [rows, 1] and [rows] after the action.
fn by_position(index: usize, shapes: &[OutputShape]) -> Option<OutputRole> {
    let [action, value, log_prob] = shapes else { return None };
    let follows = action.batch_axis == Some(0) && value.batch_axis == Some(0) && log_prob.batch_axis == Some(0);
    let alike = follows && value.row_shape == [1] && log_prob.row_shape.is_empty();
    match index {
        1 if alike => Some(OutputRole::Value),
        2 if alike => Some(OutputRole::LogProb),
        _ => None,
    }
}
