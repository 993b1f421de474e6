//! Which outputs a head reads: found by their roles, checked by their shapes.

use super::{
    ActionBounds, BoundsKind, HeadKind,
    contract::{Contract, OutputContract},
    convention::OutputRole,
    head::is_float_column,
    head_part::{LogStd, Part, Reads},
    options::PolicyOptions,
};
use crate::{
    error::{Error, Result},
    spec::{DType, shape_text},
    tensor::elements,
    trajectory::ColumnSpec,
};

/// What an action is: a model that gives both at once has a column for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Nature {
    Continuous,
    Discrete,
}

pub(super) struct Builder<'a> {
    contract: &'a Contract,
    options: &'a PolicyOptions,
    random_graph: bool,
    pub(super) wanted: Vec<usize>,
}

impl<'a> Builder<'a> {
    pub(super) fn new(contract: &'a Contract, options: &'a PolicyOptions, random_graph: bool) -> Self {
        let wanted = if options.keep_outputs { (0..contract.outputs.len()).collect() } else { Vec::new() };
        Self { contract, options, random_graph, wanted }
    }

    /// The parts of the head, one for each action column.
    pub(super) fn parts(&mut self) -> Result<Vec<Part>> {
        let parts = if let [first, second] = self.natures()[..] {
            // Each column is known by the name of the output that it comes from.
            let mut parts = vec![self.part(Some(first))?, self.part(Some(second))?];
            parts[1].block = parts[0].blocks();
            parts
        } else {
            let mut part = self.part(None)?;
            part.column.key.clear();
            vec![part]
        };
        if !self.options.branches.is_empty() && parts.iter().all(|part| part.branches().is_empty()) {
            return Err(Error::Contract(format!(
                "branches {:?} were given, but no head picks from logits here; choose the head `categorical` or `argmax`",
                self.options.branches
            )));
        }
        Ok(parts)
    }

    /// The natures of the actions, in the order of the outputs; only where both are there does it matter.
    fn natures(&self) -> Vec<Nature> {
        let mut natures = Vec::new();
        let known = [OutputRole::Logits, OutputRole::Probabilities, OutputRole::ActionValues];
        let logits = known.into_iter().any(|role| self.contract.output(role).is_some());
        for output in &self.contract.outputs {
            let nature = nature(output);
            // An action of floats beside logits may be the choice itself, as a float: only its name tells.
            if let Some(nature) = nature
                && !natures.contains(&nature)
                && !(logits && output.role == OutputRole::Action && !output.spec.name.contains("continuous"))
            {
                natures.push(nature);
            }
        }
        natures
    }

    /// The part of one nature, or of whatever there is.
    fn part(&mut self, nature: Option<Nature>) -> Result<Part> {
        let has = |role| self.candidate(role, nature).is_some();
        let fits = |kind| match nature {
            Some(Nature::Continuous) => !matches!(kind, HeadKind::Argmax | HeadKind::Categorical),
            Some(Nature::Discrete) => kind != HeadKind::Gaussian,
            None => true,
        };
        let kind = self.options.head.filter(|kind| fits(*kind)).unwrap_or_else(|| {
            if has(OutputRole::DeterministicAction) {
                HeadKind::Raw
            } else if has(OutputRole::Logits) || has(OutputRole::Probabilities) {
                HeadKind::Categorical
            } else if has(OutputRole::ActionValues) {
                HeadKind::Argmax
            } else if has(OutputRole::MeanAndLogStd)
                || self.candidate(OutputRole::Mean, nature).is_some_and(|mean| self.has_deviation(mean))
            {
                HeadKind::Gaussian
            } else {
                HeadKind::Raw
            }
        });
        let (reads, column) = match kind {
            HeadKind::Argmax | HeadKind::Categorical => self.logits(kind, nature)?,
            HeadKind::Gaussian => self.gaussian(nature)?,
            HeadKind::Raw => self.raw(nature)?,
        };
        Ok(Part { kind, reads, column, squashes: false, block: 0 })
    }

    /// The first output with this role, and this nature if one is asked for.
    fn candidate(&self, role: OutputRole, wanted: Option<Nature>) -> Option<usize> {
        let fits = |output: &OutputContract| wanted.is_none() || nature(output) == wanted;
        self.contract.outputs.iter().position(|output| output.role == role && fits(output))
    }

    /// Whether there is a standard deviation for the mean at `mean`. A `scale` of other rows is something else.
    fn has_deviation(&self, mean: usize) -> bool {
        let width = self.contract.outputs[mean].row_len();
        let fits = |at: usize| {
            let output = &self.contract.outputs[at];
            output.spec.dtype.is_float() && [1, width].contains(&output.row_len())
        };
        self.contract.output(OutputRole::LogStd).is_some() || self.contract.output(OutputRole::Std).is_some_and(fits)
    }

    pub(super) fn want(&mut self, index: usize) -> usize {
        self.wanted.iter().position(|known| *known == index).unwrap_or_else(|| {
            self.wanted.push(index);
            self.wanted.len() - 1
        })
    }

    /// The first output with one of `roles`, in the order of the roles.
    fn find(
        &self,
        kind: HeadKind,
        nature: Option<Nature>,
        roles: &[OutputRole],
    ) -> Result<(usize, &'a OutputContract)> {
        let found = roles.iter().find_map(|role| self.candidate(*role, nature));
        let index = found.ok_or_else(|| {
            let outputs = &self.contract.outputs;
            let has: Vec<_> = outputs.iter().map(|output| format!("{} ({})", output.spec.name, output.role)).collect();
            let wants: Vec<_> = roles.iter().map(ToString::to_string).collect();
            Error::Contract(format!(
                "the head `{kind}` reads an output of role {}, but the model has {}; choose another head, or name the \
                 output by roles={{…}}",
                wants.join(" or "),
                has.join(", ")
            ))
        })?;
        let output = &self.contract.outputs[index];
        if output.rows_come_first() {
            return Ok((index, output));
        }
        let reason = match output.batch_axis {
            Some(_) => "its batch axis is not the first; export the model with that axis first".into(),
            None => format!(
                "it is {} whatever the number of rows; export the model with a batch axis on its answer too, without a squeeze(0) \
                 or an .item() at its end: [1, 6] → [1, 3], or with that axis dynamic",
                shape_text(&output.row_shape)
            ),
        };
        Err(Error::Contract(format!("output `{}` has no rows for actors: {reason}", output.spec.name)))
    }

    /// Branches of discrete actions: as the user or the file says; else one for each output of logits, or for each row of one that
    /// has several.
    fn logits(&mut self, kind: HeadKind, nature: Option<Nature>) -> Result<(Reads, ColumnSpec)> {
        let roles = [OutputRole::Logits, OutputRole::Probabilities, OutputRole::ActionValues, OutputRole::Action];
        let (index, output) = self.find(kind, nature, &roles)?;
        let are_probabilities = output.role == OutputRole::Probabilities;
        let first = choices(kind, output)?;
        let given = !self.options.branches.is_empty();
        let known = if given { &self.options.branches } else { &self.contract.branches };
        let fits = |width: usize| known.iter().sum::<usize>() == width && !known.contains(&0);
        let (mut read, mut branches, mut names) = (vec![index], first, vec![format!("`{}`", output.spec.name)]);
        let role = output.role;
        if (are_probabilities || role == OutputRole::Logits) && !fits(branches.iter().sum()) {
            for (more, output) in self.contract.outputs.iter().enumerate().skip(index + 1) {
                if output.role == role && output.rows_come_first() {
                    branches.extend(choices(kind, output)?);
                    read.push(more);
                    names.push(format!("`{}`", output.spec.name));
                }
            }
        }
        let width = branches.iter().sum();
        if given && !fits(width) {
            return Err(Error::Contract(format!(
                "branches {known:?} take {} logits, but output {} has {width}; give as many choices as there are logits",
                known.iter().sum::<usize>(),
                names.join(" and ")
            )));
        }
        let shape = match &branches[..] {
            _ if fits(width) => vec![known.len()],
            [_] => Vec::new(),
            several => vec![several.len()],
        };
        let branches = if fits(width) { known.clone() } else { branches };
        let column = ColumnSpec { key: output.spec.name.clone(), dtype: DType::Int64, shape };
        let at = read.into_iter().map(|index| self.want(index)).collect();
        Ok((Reads::Logits { at, branches, are_probabilities }, column))
    }

    fn gaussian(&mut self, nature: Option<Nature>) -> Result<(Reads, ColumnSpec)> {
        let roles = [OutputRole::Mean, OutputRole::MeanAndLogStd, OutputRole::Action];
        let (index, output) = self.find(HeadKind::Gaussian, nature, &roles)?;
        let logarithm = self.contract.output(OutputRole::LogStd);
        let deviation = logarithm.or_else(|| self.contract.output(OutputRole::Std));
        let has_axes = output.row_shape.len() > 1 && output.spec.dtype.is_float() && output.row_len() > 0;
        // With a deviation of its own, the mean may have the shape of actions of several axes.
        let mean_width = match deviation {
            Some(_) if output.role != OutputRole::MeanAndLogStd && has_axes => output.row_len(),
            _ => float_width(HeadKind::Gaussian, output)?,
        };
        let (log_std, width) = match deviation {
            Some(log_std) if output.role != OutputRole::MeanAndLogStd => {
                let found = &self.contract.outputs[log_std];
                // One row for all actors may come as [n] or [1, n], one number for all elements as [], [1] or [1, 1].
                let len = found.row_len();
                if ![1, mean_width].contains(&len) || !found.spec.dtype.is_float() {
                    return Err(Error::Contract(format!(
                        "the mean `{}` has {mean_width} columns, but the standard deviation `{}` ({}) has {len}; it must \
                         have as many, or 1 for all",
                        output.spec.name, found.spec.name, found.role
                    )));
                }
                let is_std = logarithm.is_none();
                (LogStd::At { at: self.want(log_std), repeats: mean_width / len, is_std }, mean_width)
            }
            _ if mean_width % 2 == 0 => (LogStd::SecondHalf, mean_width / 2),
            _ => {
                return Err(Error::Contract(format!(
                    "the head `gaussian` needs a standard deviation: an output of role log_std or std, or its logarithm as the second \
                     half of `{}`, which has an odd number of columns ({mean_width})",
                    output.spec.name
                )));
            }
        };
        let shape = if has_axes { output.row_shape.clone() } else { vec![width] };
        let column = ColumnSpec { key: output.spec.name.clone(), dtype: DType::Float32, shape };
        Ok((Reads::Gaussian { mean: self.want(index), log_std, width }, column))
    }

    fn raw(&mut self, nature: Option<Nature>) -> Result<(Reads, ColumnSpec)> {
        let roles = [
            OutputRole::DeterministicAction,
            OutputRole::Action,
            OutputRole::Mean,
            OutputRole::Logits,
            OutputRole::Probabilities,
            OutputRole::ActionValues,
        ];
        let (first, output) = self.find(HeadKind::Raw, nature, &roles)?;
        let deterministic = self.candidate(OutputRole::DeterministicAction, nature);
        let twin = |index: &usize| {
            let twin = &self.contract.outputs[*index];
            twin.row_shape == output.row_shape && twin.spec.dtype == output.spec.dtype && twin.rows_come_first()
        };
        let drawn = match deterministic {
            Some(_) => self.candidate(OutputRole::Action, nature).filter(twin),
            None => Some(first),
        };
        let log_prob = self
            .contract
            .output(OutputRole::LogProb)
            // With several columns, it would be counted for each.
            .filter(|index| {
                nature.is_none() && deterministic.is_none() && is_float_column(&self.contract.outputs[*index])
            });
        let column = ColumnSpec {
            key: output.spec.name.strip_prefix("deterministic_").unwrap_or(&output.spec.name).to_owned(),
            dtype: output.spec.dtype,
            shape: output.row_shape.clone(),
        };
        let reads = Reads::Raw {
            deterministic: deterministic.map(|index| self.want(index)),
            drawn: drawn.map(|index| self.want(index)),
            log_prob: log_prob.map(|index| self.want(index)),
            random_graph: self.random_graph,
        };
        Ok((reads, column))
    }

    /// The bounds of the continuous column, and which one it is: those that were asked for, or those that the file tells, where the
    /// actions are such as it speaks of.
    pub(super) fn bounds(&self, parts: &mut [Part]) -> Result<Option<(usize, ActionBounds)>> {
        let Some(bounds) = &self.options.bounds else {
            let Some(bounds) = &self.contract.declared.bounds else { return Ok(None) };
            let fits =
                |part: &Part| part.column.dtype == DType::Float32 && elements(&part.column.shape) == bounds.width();
            let Some((index, part)) = parts.iter_mut().enumerate().find(|(_, part)| fits(part)) else {
                return Ok(None);
            };
            part.squashes = bounds.kind() == BoundsKind::Tanh;
            return Ok(Some((index, bounds.clone())));
        };
        let Some((index, part)) = parts.iter_mut().enumerate().find(|(_, part)| part.column.dtype.is_float()) else {
            return Err(Error::Contract(
                "bounds are for continuous actions, but this policy's are whole numbers; leave them out".into(),
            ));
        };
        let width: usize = elements(&part.column.shape);
        if part.column.dtype != DType::Float32 || width != bounds.width() {
            return Err(Error::Contract(format!(
                "the bounds are for actions of {} float32, but the policy gives {} of shape {}; {}",
                bounds.width(),
                part.column.dtype,
                shape_text(&part.column.shape),
                if part.column.dtype == DType::Float32 {
                    format!("give as many lower and upper bounds as an action has elements, {width}")
                } else {
                    "leave the bounds out, or export the model in float32".to_owned()
                }
            )));
        }
        part.squashes = bounds.kind() == BoundsKind::Tanh;
        Ok(Some((index, bounds.clone())))
    }
}

/// Whether an output is an action, and of which nature.
fn nature(output: &OutputContract) -> Option<Nature> {
    match output.role {
        OutputRole::Action | OutputRole::DeterministicAction if output.spec.dtype.is_float() => {
            Some(Nature::Continuous)
        }
        OutputRole::Mean | OutputRole::MeanAndLogStd => Some(Nature::Continuous),
        OutputRole::Action
        | OutputRole::DeterministicAction
        | OutputRole::Logits
        | OutputRole::Probabilities
        | OutputRole::ActionValues => Some(Nature::Discrete),
        _ => None,
    }
}

/// The choices of each branch in an output of logits: one branch, or one for each row of `[branches, choices]`.
fn choices(kind: HeadKind, output: &OutputContract) -> Result<Vec<usize>> {
    match output.row_shape[..] {
        [branches, choices] if branches > 0 && choices > 0 && output.spec.dtype.is_float() => {
            Ok(vec![choices; branches])
        }
        _ => float_width(kind, output).map(|width| vec![width]),
    }
}

fn float_width(kind: HeadKind, output: &OutputContract) -> Result<usize> {
    match (&output.row_shape[..], output.spec.dtype.is_float()) {
        ([width] | [1, width], true) if *width > 0 => Ok(*width),
        (shape, _) => Err(Error::Contract(format!(
            "the head `{kind}` reads rows of floats of shape (n,), but output `{}` gives {} of shape {}",
            output.spec.name,
            output.spec.dtype,
            shape_text(shape)
        ))),
    }
}
