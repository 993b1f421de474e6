//! Heads: from a model's raw outputs to actions, log-probabilities and values, for all rows of a batch at a time.

use std::{fmt, str::FromStr};

use smallvec::SmallVec;

use super::{
    ActionBounds,
    contract::{Contract, OutputContract},
    convention::OutputRole,
    head_builder::Builder,
    head_part::Part,
    options::PolicyOptions,
    random::Stream,
    sampling::{Scratch, first_nan_row, first_wild_row},
};
use crate::{
    error::{Error, Result},
    spec::DType,
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

impl HeadKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Argmax, Self::Categorical, Self::Gaussian, Self::Raw];
}

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
    /// One byte for each row and choice, 0 where the choice is not allowed.
    pub mask: Option<&'a [u8]>,
}

/// Where a head writes, one row for each actor.
#[derive(Debug)]
pub struct HeadRows<'a> {
    /// The bytes of each column of [`Head::actions`].
    pub actions: SmallVec<[&'a mut [u8]; 2]>,
    /// Log-probabilities; given exactly where [`Head::gives_log_prob`].
    pub log_probs: Option<&'a mut [f32]>,
    /// Values; given exactly where [`Head::gives_value`].
    pub values: Option<&'a mut [f32]>,
}

/// A head that knows which outputs of one contract to read.
#[derive(Debug, Clone, PartialEq)]
pub struct Head {
    /// One for each action column.
    parts: Vec<Part>,
    wanted: Vec<usize>,
    value: Option<usize>,
    columns: Vec<ColumnSpec>,
    bounds: Option<(usize, ActionBounds)>,
}

impl Head {
    /// The head that `options` ask for on `contract`, or the contract's own where they name none: for discrete and for
    /// continuous actions a deterministic action output if there is one, else `categorical` on logits or probabilities, `argmax`
    /// on action values, `gaussian` on a mean with its standard deviation, else `raw`. `random_graph` says that the model draws random numbers.
    ///
    /// # Errors
    /// [`Error::Contract`] where the contract has nothing that the head could read, or the options do not fit it.
    pub fn new(options: &PolicyOptions, contract: &Contract, random_graph: bool) -> Result<Self> {
        let mut builder = Builder::new(contract, options, random_graph);
        let mut parts = builder.parts()?;
        let bounds = builder.bounds(&mut parts)?;
        let value = contract
            .output(OutputRole::Value)
            .filter(|index| is_float_column(&contract.outputs[*index]))
            .map(|index| builder.want(index));
        Ok(Self {
            columns: parts.iter().map(|part| part.column.clone()).collect(),
            parts,
            wanted: builder.wanted,
            value,
            bounds,
        })
    }

    /// How each action column comes about.
    pub fn kinds(&self) -> impl Iterator<Item = HeadKind> {
        self.parts.iter().map(|part| part.kind)
    }

    /// How the actions come about, in words: `categorical`, or `raw (move), categorical (jump)` for several columns.
    pub fn describe(&self) -> String {
        match &self.parts[..] {
            [only] => only.kind.to_string(),
            parts => {
                parts.iter().map(|part| format!("{} ({})", part.kind, part.column.key)).collect::<Vec<_>>().join(", ")
            }
        }
    }

    /// The outputs that the model must compute, by their position in the contract.
    pub fn wanted(&self) -> &[usize] {
        &self.wanted
    }

    /// Type and row shape of the actions, a column for each kind of action.
    pub fn actions(&self) -> &[ColumnSpec] {
        &self.columns
    }

    /// Numbers of choices of each branch of discrete actions that the head picks from logits; empty where it picks none.
    pub fn branches(&self) -> &[usize] {
        self.parts.iter().map(Part::branches).find(|branches| !branches.is_empty()).unwrap_or(&[])
    }

    /// Names of outputs that an action could be made of, and that the head leaves out.
    pub fn unused_actions(&self, contract: &Contract) -> Vec<String> {
        let read: Vec<_> = self.parts.iter().flat_map(Part::outputs).map(|at| self.wanted[at]).collect();
        let outputs = contract.outputs.iter().enumerate();
        let unused = outputs.filter(|(index, output)| output.role.is_action() && !read.contains(index));
        unused.map(|(_, output)| output.spec.name.clone()).collect()
    }

    /// Whether the head tells log-probabilities: those of the whole action, summed over its columns.
    pub fn gives_log_prob(&self) -> bool {
        self.parts.iter().all(Part::gives_log_prob)
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
        let HeadRows { actions, mut log_probs, values } = rows;
        for (index, (part, actions)) in self.parts.iter().zip(actions).enumerate() {
            if index == 0 {
                part.run(outputs, request, actions, log_probs.as_deref_mut(), scratch)?;
                continue;
            }
            // The actions of a row are drawn independently: their log-probabilities add up.
            let mut more = std::mem::take(&mut scratch.log_probs);
            more.resize(request.streams.len(), 0.0);
            part.run(outputs, request, actions, log_probs.is_some().then_some(&mut more[..]), scratch)?;
            if let Some(log_probs) = &mut log_probs {
                log_probs.iter_mut().zip(&more).for_each(|(sum, log_prob)| *sum += log_prob);
            }
            scratch.log_probs = more;
        }
        if let (Some(at), Some(values)) = (self.value, values) {
            let given = floats(&outputs[at], &mut scratch.floats);
            refuse_nan(given, 1)?;
            values.copy_from_slice(given);
        }
        Ok(())
    }

    /// The bounds that continuous actions are brought into after they are recorded, and the action column of these.
    pub fn bounds(&self) -> Option<&(usize, ActionBounds)> {
        self.bounds.as_ref()
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
    pub(super) floats: Vec<f32>,
    pub(super) more_floats: Vec<f32>,
    pub(super) log_probs: Vec<f32>,
    pub(super) branch: BranchScratch,
    pub(super) sampling: Scratch,
}

/// One branch of a multi-discrete action, taken out of rows that hold several.
#[derive(Debug, Default)]
pub(super) struct BranchScratch {
    pub(super) logits: Vec<f32>,
    pub(super) mask: Vec<u8>,
    pub(super) actions: Vec<i64>,
    pub(super) log_probs: Vec<f32>,
}

pub(super) fn refuse_nan(values: &[f32], width: usize) -> Result<(), HeadError> {
    match first_nan_row(values, width) {
        None => Ok(()),
        Some(row) => Err(HeadError::Row { row, what: "gave NaN for".into() }),
    }
}

pub(super) fn refuse_wild(what: &str, values: &[f32], width: usize) -> Result<(), HeadError> {
    match first_wild_row(values, width) {
        None => Ok(()),
        Some(row) => Err(HeadError::Row { row, what: what.into() }),
    }
}

/// The tensor as float32; copied only where it has another type.
pub(super) fn floats<'a>(tensor: &'a Tensor, scratch: &'a mut Vec<f32>) -> &'a [f32] {
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

pub(super) fn is_float_column(output: &OutputContract) -> bool {
    output.rows_come_first() && output.row_len() == 1 && output.spec.dtype.is_float()
}
