//! Recurrence: which inputs take what the step before gave, and which outputs give it. Names tell of candidates; what forward
//! passes show decides.

use std::{borrow::Cow, collections::BTreeMap};

use super::{
    backend::{Model, StateLink},
    contract::{Batch, InputContract, OutputContract, row_axis},
    convention::{self, InputRole, OutputRole},
    probe::{OutputShape, Probe, fill_ones, probe_input},
    state_name::StateName,
};
use crate::{
    error::{Error, Result},
    spec::{Dim, TensorSpec, shape_text},
    tensor::Tensor,
};

/// Names that a state may have, and an observation as well. `state` is not among them: it is a name for observations.
const WEAK_NAMES: [&str; 14] = [
    "h",
    "c",
    "hx",
    "cx",
    "hidden",
    "hidden_states",
    "cell",
    "cell_states",
    "memory",
    "memories",
    "rnn_state",
    "rnn_hidden",
    "lstm_state",
    "lstm_states",
];

/// An input and the output that gives its next value.
type Pair = (usize, usize);

/// What is known of a model's memory.
#[derive(Debug, Default)]
pub(super) struct Recurrence {
    /// States that are to be handed on.
    pub(super) links: Vec<StateLink>,
    /// Whether anything depends on a state, or a state changes on its way.
    pub(super) recurrent: bool,
    /// All pairs of an input and an output, also those that the model merely hands through.
    pub(super) pairs: Vec<Pair>,
    /// State inputs on which outputs depend, though none gives their next value.
    pub(super) unlinked: Vec<usize>,
    /// Inputs that might have been states by their names, and are none.
    pub(super) acquitted: Vec<usize>,
    /// Which outputs are drawn at random.
    pub(super) random: Vec<bool>,
}

impl Recurrence {
    /// Takes all suspects for what their names say first.
    pub(super) fn release(&mut self, suspects: &[usize]) {
        self.links.retain(|link| !suspects.contains(&link.input));
        self.unlinked.retain(|input| !suspects.contains(input));
        self.recurrent = !(self.links.is_empty() && self.unlinked.is_empty());
        self.pairs.retain(|(input, _)| !suspects.contains(input));
        self.acquitted = suspects.to_vec();
    }
}

/// The output that `roles` gives for a state input: `state:NAME`.
pub(super) fn named_output(role: &str) -> Option<&str> {
    role.strip_prefix("state:")
}

/// Gives the role of a state to inputs that the backend or their names tell of; those that only may be states are returned.
pub(super) fn suspect(inputs: &mut [InputContract], model: &dyn Model, roles: &BTreeMap<String, String>) -> Vec<usize> {
    let symbol = batch_symbol(inputs);
    let mut suspects = Vec::new();
    for (at, input) in inputs.iter_mut().enumerate() {
        let name = &input.spec.name;
        if roles.contains_key(name) {
            continue;
        }
        if model.states().iter().any(|link| link.input == at) {
            input.role = InputRole::State;
            input.reason = "the model's own account of its states".into();
        } else if input.role == InputRole::Observation
            && let Some(reason) = suspicion(&input.spec, model.outputs(), symbol.as_deref())
        {
            input.role = InputRole::State;
            input.reason = reason;
            suspects.push(at);
        }
    }
    suspects
}

/// What the file calls the number of rows: the axis that counts them in the first observation that leaves it open.
pub(super) fn batch_symbol(inputs: &[InputContract]) -> Option<String> {
    inputs.iter().filter(|input| input.role == InputRole::Observation).find_map(|input| {
        match input.spec.shape.get(row_axis(&input.spec)) {
            Some(Dim::Dynamic(name)) => Some(name.clone()),
            _ => None,
        }
    })
}

/// Why an input might be a state.
fn suspicion(spec: &TensorSpec, outputs: &[TensorSpec], symbol: Option<&str>) -> Option<String> {
    let name = &spec.name;
    let state = StateName::of(name);
    let partner =
        outputs.iter().find(|output| may_be_state(&output.name) && state.becomes(&StateName::of(&output.name)));
    if let Some(output) = partner {
        return Some(format!("the output `{}` is named like it, and of its shape", output.name));
    }
    // Observations come row by row; torch's recurrent layers have [layers, batch, width].
    let lies_across = |axis: &usize| *axis > 0 && matches!(spec.shape[*axis], Dim::Dynamic(_));
    (batch_axes(spec, symbol).iter().any(lies_across)
        || is_in_tuple(name)
        || WEAK_NAMES.contains(&name.to_ascii_lowercase().as_str()))
    .then(|| "an output of its shape changes with it".into())
}

/// Whether an output's name says nothing else.
fn may_be_state(output: &str) -> bool {
    convention::output_role(output).is_none_or(|(role, _)| role == OutputRole::State)
}

/// Whether an output has no name but its position, such as `output_1` and `output_1.0`.
fn is_positional(name: &str) -> bool {
    let position = name.strip_prefix("output_");
    position.is_some_and(|position| {
        position.split('.').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
    })
}

/// Whether a name is the path of a part of a tuple, such as `hc.0`: its order is all that it tells.
fn is_in_tuple(name: &str) -> bool {
    name.rsplit_once('.').is_some_and(|(_, at)| at.parse::<usize>().is_ok())
}

/// The axes that may count the rows of a state, the likeliest first. Empty where the declaration has more than one that it
/// leaves open.
pub(super) fn batch_axes(spec: &TensorSpec, symbol: Option<&str>) -> Vec<usize> {
    let axes = |fits: &dyn Fn(&Dim) -> bool| -> Vec<usize> {
        spec.shape.iter().enumerate().filter(|(_, dim)| fits(dim)).map(|(axis, _)| axis).collect()
    };
    let open = axes(&|dim| matches!(dim, Dim::Dynamic(_)));
    let named =
        axes(&|dim| matches!((dim, symbol), (Dim::Dynamic(name), Some(symbol)) if !name.is_empty() && name == symbol));
    match (&open[..], &named[..]) {
        ([axis], _) | (_, [axis]) => vec![*axis],
        ([], _) => {
            let mut ones = axes(&|dim| *dim == Dim::Fixed(1));
            // States of torch's recurrent layers are [layers, batch, width].
            ones.sort_by_key(|axis| (spec.shape.len() != 3 || *axis != 1, *axis));
            ones
        }
        _ => Vec::new(),
    }
}

impl Probe<'_> {
    /// Finds out what the model remembers, given the shapes of its outputs.
    pub(super) fn recurrence(
        &mut self,
        batch: &Batch,
        shapes: &[OutputShape],
        suspects: &[usize],
        roles: &BTreeMap<String, String>,
    ) -> Result<Recurrence> {
        if !self.inputs.iter().any(|input| input.role == InputRole::State) {
            // Without random operators nothing needs to be run.
            let random = if self.model.facts().random_ops.is_empty() {
                vec![false; self.model.outputs().len()]
            } else {
                let before = self.run_row(None)?;
                self.random_outputs(&before)?
            };
            return Ok(Recurrence { random, ..Recurrence::default() });
        }
        let before = self.run_row(None)?;
        let (pairs, undecided) = self.pair(batch, shapes, &before, suspects, roles)?;
        let random = self.random_outputs(&before)?;
        let mut found = Recurrence::default();
        for (at, input) in self.inputs.iter().enumerate() {
            if input.role != InputRole::State {
                continue;
            }
            let after = self.run_row(Some(at))?;
            let pair = pairs.iter().find(|(input, _)| *input == at).map(|(_, output)| *output);
            let differs = |output: usize| !random[output] && before[output].bytes() != after[output].bytes();
            let others = (0..before.len()).any(|output| Some(output) != pair && differs(output));
            let Some(output) = pair else {
                let may_be = |(input, output): &Pair| *input == at && differs(*output);
                if suspects.contains(&at) && !undecided.iter().any(may_be) {
                    found.acquitted.push(at);
                } else if others {
                    found.unlinked.push(at);
                    found.recurrent = true;
                }
                continue;
            };
            if suspects.contains(&at) && !differs(output) {
                found.acquitted.push(at);
                continue;
            }
            found.pairs.push((at, output));
            let is_handed_through = before[output].bytes() == self.row(at, None).bytes()
                && after[output].bytes() == self.row(at, Some(at)).bytes();
            let known = self.model.states().iter().find(|link| link.input == at);
            let initial = known.map(|link| link.initial.clone()).unwrap_or_default();
            // What lies in the model itself may change with other rows than these: its backend read that off the code.
            let is_its_own = known.is_some() && self.model.outputs()[output].name == input.spec.name;
            let is_memory = others || !is_handed_through || is_its_own;
            found.recurrent |= is_memory;
            // What is merely handed through is fed with zeros anyway.
            if is_memory || initial.iter().any(|byte| *byte != 0) {
                found.links.push(StateLink { input: at, output, initial });
            }
        }
        found.random = random;
        Ok(found)
    }

    /// Observations that may be memory, with the outputs that may be their next values: there is one of no known role that has their
    /// shape and changes with them, and something else is observed.
    pub(super) fn likely_states(&mut self, outputs: &[OutputContract]) -> Result<Vec<Pair>> {
        let fits = |input: &InputContract, output: &OutputContract| {
            input.role == InputRole::Observation
                && output.role == OutputRole::Other
                && output.batch_axis == Some(input.batch_axis)
                && (output.spec.dtype, &output.row_shape) == (input.spec.dtype, &input.row_shape)
        };
        let inputs = self.inputs;
        let of_input = |at: usize| (0..outputs.len()).filter(move |output| fits(&inputs[at], &outputs[*output]));
        let of_output = |output: usize| inputs.iter().filter(|input| fits(input, &outputs[output])).count();
        let pairs = (0..inputs.len()).filter_map(|at| Some((at, of_input(at).next()?)));
        let is_only = |(at, output): &Pair| of_input(*at).count() == 1 && of_output(*output) == 1;
        let pairs: Vec<Pair> = pairs.filter(is_only).collect();
        let observed = inputs.iter().filter(|input| input.role == InputRole::Observation).count();
        if pairs.is_empty() || pairs.len() == observed {
            return Ok(Vec::new());
        }
        let before = self.run_row(None)?;
        let mut likely = Vec::new();
        for (at, output) in pairs {
            if self.run_row(Some(at))?[output].bytes() != before[output].bytes() {
                likely.push((at, output));
            }
        }
        Ok(likely)
    }

    /// Pairs every input that is a state, or may be one, with the output that gives its next value, where that shows. Second
    /// come the pairs of which only the order in the file could tell which is right.
    fn pair(
        &self,
        batch: &Batch,
        shapes: &[OutputShape],
        outputs: &[Tensor],
        suspects: &[usize],
        roles: &BTreeMap<String, String>,
    ) -> Result<(Vec<Pair>, Vec<Pair>)> {
        let specs = self.model.outputs();
        let fits = |at: usize, output: usize| {
            let input = &self.inputs[at];
            let follows = match batch {
                Batch::Dynamic { .. } => shapes[output].batch_axis == Some(input.batch_axis),
                Batch::One { .. } => true,
            };
            follows && outputs[output].dtype() == input.spec.dtype && outputs[output].shape() == input.shape(1)
        };
        let mut pairs: Vec<Pair> = Vec::new();
        let is_free = |pairs: &[Pair], output: usize| pairs.iter().all(|(_, taken)| *taken != output);
        let states = || (0..self.inputs.len()).filter(|at| self.inputs[*at].role == InputRole::State);

        let is_paired = |pairs: &[Pair], at: usize| pairs.iter().any(|(paired, _)| *paired == at);
        for at in states() {
            let given = roles.get(&self.inputs[at].spec.name).and_then(|role| named_output(role));
            if let Some(given) = given {
                let output = specs.iter().position(|spec| spec.name == given).filter(|output| fits(at, *output));
                pairs.push((at, output.ok_or_else(|| self.misfit("`roles`", at, given))?));
            }
        }
        for link in self.model.states().iter().filter(|link| self.inputs[link.input].role == InputRole::State) {
            if is_paired(&pairs, link.input) || !is_free(&pairs, link.output) {
                continue;
            }
            if !fits(link.input, link.output) {
                return Err(self.misfit("the model's own account", link.input, &specs[link.output].name));
            }
            pairs.push((link.input, link.output));
        }

        // By what is common to their names: all of it first, then whether they are hidden or cell states.
        let inputs: Vec<_> = self.inputs.iter().map(|input| StateName::of(&input.spec.name)).collect();
        let nexts: Vec<_> = specs.iter().map(|spec| StateName::of(&spec.name)).collect();
        let levels: [fn(&StateName) -> &str; 2] = [|name| &name.stem, |name| &name.kind];
        for word in levels {
            for at in states().filter(|at| !word(&inputs[*at]).is_empty()) {
                let is_called = |output: &usize| {
                    let other = roles.get(&specs[*output].name).map(|role| *role != OutputRole::State.to_string());
                    word(&nexts[*output]) == word(&inputs[at])
                        && !other.unwrap_or_else(|| !may_be_state(&specs[*output].name))
                        && is_free(&pairs, *output)
                        && fits(at, *output)
                };
                let outputs: Vec<_> = (0..specs.len()).filter(is_called).collect();
                if let [output] = outputs[..]
                    && !is_paired(&pairs, at)
                    && states().all(|other| {
                        other == at
                            || word(&inputs[other]) != word(&inputs[at])
                            || is_paired(&pairs, other)
                            || !fits(other, output)
                    })
                {
                    pairs.push((at, output));
                }
            }
        }

        // The rest by shape, where there is one input and one output of it, or parts of a tuple in order: of other names in
        // order, one swap gives a policy that runs and is wrong.
        let role = |output: usize| match roles.get(&specs[output].name) {
            Some(role) => Some(Cow::Borrowed(role.as_str())),
            None => convention::output_role(&specs[output].name).map(|(role, _)| Cow::Owned(role.to_string())),
        };
        let state = OutputRole::State.to_string();
        let is_action = |output: usize| {
            let names_action = |output| role(output).is_some_and(|role| role != state.as_str() && role != "constant");
            output == 0 && !(0..specs.len()).any(names_action)
        };
        // Whether an output is called a state, or is not called anything.
        let candidates = |pairs: &[Pair], at: usize, called: bool| -> Vec<usize> {
            let is = |output: usize| match role(output) {
                Some(role) => role == state.as_str(),
                None => !called && !is_action(output),
            };
            (0..specs.len()).filter(|output| is(*output) && is_free(pairs, *output) && fits(at, *output)).collect()
        };
        let mut undecided = Vec::new();
        for (called, suspected) in [(true, false), (false, false), (false, true)] {
            for at in states() {
                let is_alike = |other: usize| {
                    let (input, other_input) = (&self.inputs[at], &self.inputs[other]);
                    suspects.contains(&other) == suspected
                        && input.spec.dtype == other_input.spec.dtype
                        && input.batch_axis == other_input.batch_axis
                        && input.row_shape == other_input.row_shape
                };
                let waits = |other: &usize| is_alike(*other) && !is_paired(&pairs, *other);
                let alike: Vec<_> = states().filter(waits).collect();
                let outputs = candidates(&pairs, at, called);
                // A TorchScript result has no name but its position: the order is all that its author could say.
                let in_order = alike.iter().all(|at| is_in_tuple(&self.inputs[*at].spec.name))
                    || outputs.iter().all(|output| is_positional(&self.model.outputs()[*output].name));
                if !alike.contains(&at) || outputs.is_empty() {
                    continue;
                }
                if alike.len() == outputs.len() && (in_order || outputs.len() == 1) {
                    pairs.extend(alike.into_iter().zip(outputs));
                } else if !in_order {
                    undecided.extend(outputs.into_iter().map(|output| (at, output)));
                }
            }
        }
        Ok((pairs, undecided))
    }

    fn misfit(&self, who: &str, input: usize, output: &str) -> Error {
        let (input, specs) = (&self.inputs[input], self.model.outputs());
        let outputs: Vec<_> = specs.iter().map(|spec| spec.name.as_str()).collect();
        Error::Contract(format!(
            "{who} says that `{output}` gives the next value of the state `{}`, but there is no output of that name that is {} of \
             shape {} for each actor, with the same batch axis; the outputs are {}",
            input.spec.name,
            input.spec.dtype,
            shape_text(&input.row_shape),
            outputs.join(", ")
        ))
    }

    /// Which outputs differ though the inputs are the same.
    fn random_outputs(&mut self, before: &[Tensor]) -> Result<Vec<bool>> {
        if self.model.facts().random_ops.is_empty() {
            return Ok(vec![false; before.len()]);
        }
        // An action drawn among few may come out alike by chance.
        let mut random = vec![false; before.len()];
        for _ in 0..8 {
            let again = self.run_row(None)?;
            for (random, (before, again)) in random.iter_mut().zip(before.iter().zip(&again)) {
                *random |= before.bytes() != again.bytes();
            }
        }
        // Whole numbers beside random operators may be draws that luck made alike.
        let is_whole = |output: &Tensor| !output.dtype().is_float();
        random.iter_mut().zip(before).for_each(|(random, output)| *random |= is_whole(output));
        Ok(random)
    }

    /// One row of input `at`; the state `marked` is full of ones.
    fn row(&self, at: usize, marked: Option<usize>) -> Tensor {
        let mut row = probe_input(&self.inputs[at], 1);
        let known = self.model.states().iter().find(|link| link.input == at);
        match known.map(|link| &link.initial).filter(|initial| initial.len() == row.bytes().len()) {
            _ if marked == Some(at) => fill_ones(&mut row, self.inputs[at].spec.dtype),
            Some(initial) => row.bytes_mut().copy_from_slice(initial),
            None => {}
        }
        row
    }

    fn run_row(&mut self, marked: Option<usize>) -> Result<Vec<Tensor>> {
        let inputs: Vec<_> = (0..self.inputs.len()).map(|at| self.row(at, marked)).collect();
        self.run_on(&inputs)
    }
}
