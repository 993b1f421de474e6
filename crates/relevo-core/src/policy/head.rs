//! Heads: from a model's raw outputs to actions, log-probabilities and values, for all rows of a batch at a time.

use std::{fmt, str::FromStr};

use super::{
    contract::{Contract, OutputContract},
    convention::OutputRole,
    random::Stream,
    sampling::{Pick, Scratch, first_nan_row, first_wild_row, pick_discrete, pick_gaussian},
};
use crate::{
    error::{Error, Result},
    spec::{DType, shape_text},
    tensor::Tensor,
    trajectory::ColumnSpec,
};

/// How actions come from outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HeadKind {
    /// The discrete action with the largest logit.
    Argmax,
    /// A discrete action drawn by softmax of the logits.
    Categorical,
    /// A continuous action drawn from a diagonal Gaussian.
    Gaussian,
    /// The action output as it is.
    Raw,
}

const KINDS: [(HeadKind, &str); 4] = [
    (HeadKind::Argmax, "argmax"),
    (HeadKind::Categorical, "categorical"),
    (HeadKind::Gaussian, "gaussian"),
    (HeadKind::Raw, "raw"),
];

impl FromStr for HeadKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        KINDS.iter().find(|(_, name)| *name == text).map(|(kind, _)| *kind).ok_or_else(|| {
            Error::Config(format!("`{text}` is no head; the heads are argmax, categorical, gaussian, raw"))
        })
    }
}

impl fmt::Display for HeadKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(KINDS.iter().find(|(kind, _)| kind == self).map_or("", |(_, name)| name))
    }
}

/// What a head is asked for, for `streams.len()` rows.
#[derive(Debug, Clone, Copy)]
pub struct HeadRequest<'a> {
    /// The run's seed.
    pub seed: u64,
    /// Each row's place in its actor's random stream.
    pub streams: &'a [Stream],
    /// Whether to act without randomness; `None` leaves it to the head.
    pub deterministic: Option<bool>,
    /// One byte for each row and action, 0 where the action is not allowed.
    pub mask: Option<&'a [u8]>,
}

/// Where a head writes, one row for each actor.
#[derive(Debug)]
pub struct HeadRows<'a> {
    /// Actions of [`Head::action`]'s type and shape.
    pub actions: &'a mut [u8],
    /// Log-probabilities; given exactly where [`Head::gives_log_prob`].
    pub log_probs: Option<&'a mut [f32]>,
    /// Values; given exactly where [`Head::gives_value`].
    pub values: Option<&'a mut [f32]>,
}

/// Positions are those in [`Head::wanted`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reads {
    Logits { at: usize, width: usize },
    Gaussian { mean: usize, log_std: LogStd, width: usize },
    Raw { deterministic: Option<usize>, drawn: Option<usize>, log_prob: Option<usize> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LogStd {
    /// An output of its own: a row for each actor, or one for all.
    At(usize),
    /// The second half of every row of the mean's output.
    SecondHalf,
}

/// A head that knows which outputs of one contract to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    kind: HeadKind,
    wanted: Vec<usize>,
    reads: Reads,
    value: Option<usize>,
    action: ColumnSpec,
    random_graph: bool,
}

impl Head {
    /// The head `kind` on `contract`, or the contract's own where no kind is given: a deterministic action output if
    /// there is one, else `categorical` on logits, `gaussian` on a mean with its standard deviation, else `raw`. With
    /// `all_outputs` the model computes every output, not only those that the head reads.
    ///
    /// # Errors
    /// [`Error::Contract`] where the contract has nothing that the head could read.
    pub fn new(kind: Option<HeadKind>, contract: &Contract, random_graph: bool, all_outputs: bool) -> Result<Self> {
        let has = |role| contract.output(role).is_some();
        let kind = kind.unwrap_or_else(|| {
            if has(OutputRole::DeterministicAction) {
                HeadKind::Raw
            } else if has(OutputRole::Logits) {
                HeadKind::Categorical
            } else if has(OutputRole::MeanAndLogStd) || (has(OutputRole::Mean) && has(OutputRole::LogStd)) {
                HeadKind::Gaussian
            } else {
                HeadKind::Raw
            }
        });
        let mut builder = Builder { kind, contract, wanted: Vec::new() };
        if all_outputs {
            builder.wanted.extend(0..contract.outputs.len());
        }
        let (reads, action) = match kind {
            HeadKind::Argmax | HeadKind::Categorical => builder.logits()?,
            HeadKind::Gaussian => builder.gaussian()?,
            HeadKind::Raw => builder.raw()?,
        };
        let value = contract
            .output(OutputRole::Value)
            .filter(|index| is_float_column(&contract.outputs[*index]))
            .map(|index| builder.want(index));
        Ok(Self { kind, wanted: builder.wanted, reads, value, action, random_graph })
    }

    /// Which head it is.
    pub fn kind(&self) -> HeadKind {
        self.kind
    }

    /// The outputs that the model must compute, by their position in the contract.
    pub fn wanted(&self) -> &[usize] {
        &self.wanted
    }

    /// Type and row shape of the actions.
    pub fn action(&self) -> &ColumnSpec {
        &self.action
    }

    /// Number of discrete actions to choose from, for heads on logits.
    pub fn choices(&self) -> Option<usize> {
        match self.reads {
            Reads::Logits { width, .. } => Some(width),
            _ => None,
        }
    }

    /// Names of action outputs that the head leaves out: one head gives one tensor.
    pub fn unused_actions(&self, contract: &Contract) -> Vec<String> {
        let unused = contract.outputs.iter().enumerate().filter(|(index, output)| {
            matches!(output.role, OutputRole::Action | OutputRole::DeterministicAction) && !self.wanted.contains(index)
        });
        unused.map(|(_, output)| output.spec.name.clone()).collect()
    }

    /// Whether the head tells log-probabilities.
    pub fn gives_log_prob(&self) -> bool {
        match self.reads {
            Reads::Logits { .. } => self.kind == HeadKind::Categorical,
            Reads::Gaussian { .. } => true,
            Reads::Raw { log_prob, .. } => log_prob.is_some(),
        }
    }

    /// Whether the model tells values.
    pub fn gives_value(&self) -> bool {
        self.value.is_some()
    }

    /// Turns the model's outputs (those of [`Head::wanted`], in that order) into actions.
    ///
    /// # Errors
    /// The first row that cannot be used and what is wrong with it, or a request that this head cannot fulfil.
    pub fn run(
        &self,
        outputs: &[Tensor],
        request: &HeadRequest<'_>,
        rows: HeadRows<'_>,
        scratch: &mut HeadScratch,
    ) -> Result<(), HeadError> {
        match self.reads {
            Reads::Logits { at, width } => {
                let logits = match outputs[at].dtype() {
                    DType::Float64 => below_largest(outputs[at].values(), request.mask, width, &mut scratch.floats),
                    _ => floats(&outputs[at], &mut scratch.floats),
                };
                refuse_nan(logits, width)?;
                let draws = self.kind == HeadKind::Categorical && request.deterministic != Some(true);
                let pick =
                    if draws { Pick::Draw { seed: request.seed, streams: request.streams } } else { Pick::Largest };
                let actions = bytemuck::cast_slice_mut(rows.actions);
                pick_discrete(logits, request.mask, width, pick, actions, rows.log_probs, &mut scratch.sampling)
                    .map_err(|row| HeadError::Row {
                        row,
                        what: "gave logits without one finite, largest value for".into(),
                    })?;
            }
            Reads::Gaussian { mean, log_std, width } => {
                let means = floats(&outputs[mean], &mut scratch.floats);
                refuse_nan(means, outputs[mean].len() / request.streams.len())?;
                let actions: &mut [f32] = bytemuck::cast_slice_mut(rows.actions);
                let log_std = match log_std {
                    LogStd::At(at) => {
                        actions.copy_from_slice(means);
                        let log_std = floats(&outputs[at], &mut scratch.more_floats);
                        refuse_nan(log_std, width)?;
                        log_std
                    }
                    LogStd::SecondHalf => {
                        scratch.more_floats.clear();
                        for (row, action) in means.chunks_exact(2 * width).zip(actions.chunks_exact_mut(width)) {
                            action.copy_from_slice(&row[..width]);
                            scratch.more_floats.extend_from_slice(&row[width..]);
                        }
                        &scratch.more_floats
                    }
                };
                let draw = (request.deterministic != Some(true)).then_some((request.seed, request.streams));
                let log_probs = rows.log_probs.unwrap_or(&mut []);
                pick_gaussian(actions, log_std, width, draw, log_probs, &mut scratch.sampling);
                refuse_wild("gave an infinite action to", actions, width)?;
                refuse_wild("gave an action without a finite density to", log_probs, 1)?;
            }
            Reads::Raw { deterministic, drawn, log_prob } => {
                let at = self.raw_source(deterministic, drawn, request.deterministic)?;
                if outputs[at].dtype().is_float() {
                    let values = floats(&outputs[at], &mut scratch.floats);
                    let width = values.len() / request.streams.len();
                    refuse_nan(values, width)?;
                    refuse_wild("gave an infinite action to", values, width)?;
                }
                rows.actions.copy_from_slice(outputs[at].bytes());
                if let (Some(at), Some(log_probs)) = (log_prob, rows.log_probs) {
                    let given = floats(&outputs[at], &mut scratch.floats);
                    refuse_nan(given, 1)?;
                    log_probs.copy_from_slice(given);
                }
            }
        }
        if let (Some(at), Some(values)) = (self.value, rows.values) {
            let given = floats(&outputs[at], &mut scratch.floats);
            refuse_nan(given, 1)?;
            values.copy_from_slice(given);
        }
        Ok(())
    }

    fn raw_source(&self, fixed: Option<usize>, drawn: Option<usize>, asked: Option<bool>) -> Result<usize, HeadError> {
        match (asked, fixed, drawn) {
            (Some(true), None, _) if self.random_graph => Err(HeadError::Request(
                "deterministic=True was asked for, but the model draws its action inside the graph and has no \
                 deterministic output; leave it out, or export one"
                    .into(),
            )),
            (Some(false), _, Some(drawn)) => Ok(drawn),
            (_, Some(at), _) | (_, None, Some(at)) => Ok(at),
            (_, None, None) => Err(HeadError::Request("the model has no action output".into())),
        }
    }
}

/// Why a head gave no actions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeadError {
    /// The model's numbers for this row cannot be used.
    Row {
        /// Row of the batch.
        row: usize,
        /// What the model did, to be followed by the actor.
        what: String,
    },
    /// The head cannot do what was asked.
    Request(String),
}

/// Buffers that a head reuses from call to call.
#[derive(Debug, Default)]
pub struct HeadScratch {
    floats: Vec<f32>,
    more_floats: Vec<f32>,
    sampling: Scratch,
}

fn refuse_nan(values: &[f32], width: usize) -> Result<(), HeadError> {
    match first_nan_row(values, width) {
        None => Ok(()),
        Some(row) => Err(HeadError::Row { row, what: "gave NaN for".into() }),
    }
}

fn refuse_wild(what: &str, values: &[f32], width: usize) -> Result<(), HeadError> {
    match first_wild_row(values, width) {
        None => Ok(()),
        Some(row) => Err(HeadError::Row { row, what: what.into() }),
    }
}

/// The tensor as float32; copied only where it has another type.
fn floats<'a>(tensor: &'a Tensor, scratch: &'a mut Vec<f32>) -> &'a [f32] {
    scratch.clear();
    match tensor.dtype() {
        DType::Float64 => scratch.extend(tensor.values::<f64>().iter().map(|value| *value as f32)),
        DType::Float16 => {
            scratch.extend(tensor.values::<u16>().iter().map(|bits| half::f16::from_bits(*bits).to_f32()));
        }
        _ => return tensor.values(),
    }
    scratch
}

/// Float64 logits as float32, relative to the largest allowed one of their row: the same distribution, and no difference
/// that float32 cannot hold gets lost.
fn below_largest<'a>(logits: &[f64], mask: Option<&[u8]>, width: usize, scratch: &'a mut Vec<f32>) -> &'a [f32] {
    scratch.clear();
    for (row, logits) in logits.chunks_exact(width).enumerate() {
        let allowed = |choice: usize| mask.is_none_or(|mask| mask[row * width + choice] != 0);
        let largest = (0..width).filter(|choice| allowed(*choice)).map(|choice| logits[choice]);
        let largest = largest.fold(f64::NEG_INFINITY, f64::max);
        scratch.extend(logits.iter().map(|logit| (logit - largest) as f32));
    }
    scratch
}

fn is_float_column(output: &OutputContract) -> bool {
    output.batch_axis == Some(0) && output.row_len() == 1 && output.spec.dtype.is_float()
}

struct Builder<'a> {
    kind: HeadKind,
    contract: &'a Contract,
    wanted: Vec<usize>,
}

impl Builder<'_> {
    fn want(&mut self, index: usize) -> usize {
        self.wanted.iter().position(|known| *known == index).unwrap_or_else(|| {
            self.wanted.push(index);
            self.wanted.len() - 1
        })
    }

    /// The first output with one of `roles`, in the order of the roles.
    fn find(&self, roles: &[OutputRole]) -> Result<(usize, &OutputContract)> {
        let found = roles.iter().find_map(|role| self.contract.output(*role));
        let index = found.ok_or_else(|| {
            let outputs = &self.contract.outputs;
            let has: Vec<_> = outputs.iter().map(|output| format!("{} ({})", output.spec.name, output.role)).collect();
            let wants: Vec<_> = roles.iter().map(ToString::to_string).collect();
            Error::Contract(format!(
                "the head `{}` reads an output of role {}, but the model has {}; choose another head, or name the \
                 output by roles={{…}}",
                self.kind,
                wants.join(" or "),
                has.join(", ")
            ))
        })?;
        let output = &self.contract.outputs[index];
        if output.batch_axis == Some(0) {
            return Ok((index, output));
        }
        Err(Error::Contract(format!(
            "output `{}` has no rows for actors: its batch axis is not the first",
            output.spec.name
        )))
    }

    fn float_width(&self, output: &OutputContract) -> Result<usize> {
        match (&output.row_shape[..], output.spec.dtype.is_float()) {
            ([width], true) if *width > 0 => Ok(*width),
            (shape, _) => Err(Error::Contract(format!(
                "the head `{}` reads rows of floats of shape (n,), but output `{}` gives {} of shape {}",
                self.kind,
                output.spec.name,
                output.spec.dtype,
                shape_text(shape)
            ))),
        }
    }

    fn logits(&mut self) -> Result<(Reads, ColumnSpec)> {
        let (index, output) = self.find(&[OutputRole::Logits, OutputRole::Action])?;
        let width = self.float_width(output)?;
        let action = ColumnSpec { key: String::new(), dtype: DType::Int64, shape: Vec::new() };
        Ok((Reads::Logits { at: self.want(index), width }, action))
    }

    fn gaussian(&mut self) -> Result<(Reads, ColumnSpec)> {
        let (index, output) = self.find(&[OutputRole::Mean, OutputRole::MeanAndLogStd, OutputRole::Action])?;
        let mean_width = self.float_width(output)?;
        let (log_std, width) = match self.contract.output(OutputRole::LogStd) {
            Some(log_std) if output.role != OutputRole::MeanAndLogStd => {
                let found = &self.contract.outputs[log_std];
                // One row for all actors may come as [n] or [1, n].
                let len = found.row_len();
                if len != mean_width || !found.spec.dtype.is_float() {
                    return Err(Error::Contract(format!(
                        "the mean `{}` has {mean_width} columns, but the log standard deviation `{}` has {len}",
                        output.spec.name, found.spec.name
                    )));
                }
                (LogStd::At(self.want(log_std)), mean_width)
            }
            _ if mean_width % 2 == 0 => (LogStd::SecondHalf, mean_width / 2),
            _ => {
                return Err(Error::Contract(format!(
                    "the head `gaussian` needs a log standard deviation: either an output of role log_std, or the second \
                     half of `{}`, which has an odd number of columns ({mean_width})",
                    output.spec.name
                )));
            }
        };
        let action = ColumnSpec { key: String::new(), dtype: DType::Float32, shape: vec![width] };
        Ok((Reads::Gaussian { mean: self.want(index), log_std, width }, action))
    }

    fn raw(&mut self) -> Result<(Reads, ColumnSpec)> {
        let roles = [OutputRole::DeterministicAction, OutputRole::Action, OutputRole::Mean, OutputRole::Logits];
        let (first, output) = self.find(&roles)?;
        let action = ColumnSpec { key: String::new(), dtype: output.spec.dtype, shape: output.row_shape.clone() };
        let deterministic = self.contract.output(OutputRole::DeterministicAction);
        let twin = |index: &usize| {
            let twin = &self.contract.outputs[*index];
            twin.row_shape == output.row_shape && twin.spec.dtype == output.spec.dtype && twin.batch_axis == Some(0)
        };
        let drawn = match deterministic {
            Some(_) => self.contract.output(OutputRole::Action).filter(twin),
            None => Some(first),
        };
        let log_prob = self
            .contract
            .output(OutputRole::LogProb)
            .filter(|index| deterministic.is_none() && is_float_column(&self.contract.outputs[*index]));
        let reads = Reads::Raw {
            deterministic: deterministic.map(|index| self.want(index)),
            drawn: drawn.map(|index| self.want(index)),
            log_prob: log_prob.map(|index| self.want(index)),
        };
        Ok((reads, action))
    }
}
