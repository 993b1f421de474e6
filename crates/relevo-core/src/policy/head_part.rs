//! One column of a head's actions: which outputs it reads, and what it makes of them.

use super::{
    HeadError, HeadKind, HeadRequest, HeadScratch,
    bounds::squash,
    head::{BranchScratch, floats, refuse_nan, refuse_wild},
    sampling::{Pick, Scratch, pick_discrete, pick_gaussian},
};
use crate::{spec::DType, tensor::Tensor, trajectory::ColumnSpec};

/// One column of a head's actions.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Part {
    pub(super) kind: HeadKind,
    pub(super) reads: Reads,
    pub(super) column: ColumnSpec,
    /// Whether its actions are squashed by tanh.
    pub(super) squashes: bool,
    /// Where its random bits begin among those of the whole action.
    pub(super) block: u32,
}

/// What a part reads. Positions are those in [`Head::wanted`](super::Head::wanted).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reads {
    /// Logits of one branch, or of several one behind the other, in one output or in several.
    Logits {
        at: Vec<usize>,
        branches: Vec<usize>,
        /// Whether probabilities stand there, of which the logits are the logarithms.
        are_probabilities: bool,
    },
    Gaussian {
        mean: usize,
        log_std: LogStd,
        width: usize,
    },
    Raw {
        deterministic: Option<usize>,
        drawn: Option<usize>,
        log_prob: Option<usize>,
        random_graph: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogStd {
    /// An output of its own: a row for each actor, or one for all.
    At {
        at: usize,
        /// How many elements of the action each of its numbers is for: 1, or all.
        repeats: usize,
        /// Whether it is the standard deviation itself.
        is_std: bool,
    },
    /// The second half of every row of the mean's output.
    SecondHalf,
}

impl Part {
    /// Numbers of choices of the branches that it picks from logits.
    pub(super) fn branches(&self) -> &[usize] {
        match &self.reads {
            Reads::Logits { branches, .. } => branches,
            _ => &[],
        }
    }

    fn reads_probabilities(&self) -> bool {
        matches!(self.reads, Reads::Logits { are_probabilities: true, .. })
    }

    fn refuse_logits(&self, logits: &[f32], width: usize) -> Result<(), HeadError> {
        refuse_nan(logits, width).map_err(|error| match error {
            HeadError::Row { row, .. } if self.reads_probabilities() => {
                HeadError::Row { row, what: "gave a probability below zero, or NaN, for".into() }
            }
            other => other,
        })
    }

    /// How many blocks of random bits it takes for an action.
    pub(super) fn blocks(&self) -> u32 {
        match &self.reads {
            Reads::Logits { branches, .. } => branches.len() as u32,
            Reads::Gaussian { width, .. } => width.div_ceil(2) as u32,
            Reads::Raw { .. } => 0,
        }
    }

    /// The outputs that it reads.
    pub(super) fn outputs(&self) -> Vec<usize> {
        match &self.reads {
            Reads::Logits { at, .. } => at.clone(),
            Reads::Gaussian { mean, log_std, .. } => match log_std {
                LogStd::At { at, .. } => vec![*mean, *at],
                LogStd::SecondHalf => vec![*mean],
            },
            Reads::Raw { deterministic, drawn, log_prob, .. } => {
                [deterministic, drawn, log_prob].into_iter().filter_map(|at| *at).collect()
            }
        }
    }

    pub(super) fn gives_log_prob(&self) -> bool {
        match &self.reads {
            Reads::Logits { .. } => self.kind == HeadKind::Categorical,
            Reads::Gaussian { .. } => true,
            Reads::Raw { log_prob, .. } => log_prob.is_some(),
        }
    }

    /// Writes the column's actions, and where asked their log-probabilities.
    pub(super) fn run(
        &self,
        outputs: &[Tensor],
        request: &HeadRequest<'_>,
        actions: &mut [u8],
        log_probs: Option<&mut [f32]>,
        scratch: &mut HeadScratch,
    ) -> Result<(), HeadError> {
        match &self.reads {
            Reads::Logits { at, branches, .. } => {
                self.pick(outputs, at, branches, request, bytemuck::cast_slice_mut(actions), log_probs, scratch)
            }
            Reads::Gaussian { mean, log_std, width } => {
                let actions: &mut [f32] = bytemuck::cast_slice_mut(actions);
                let log_std = match log_std {
                    LogStd::At { at, repeats, is_std } => Some((&outputs[*at], *repeats, *is_std)),
                    LogStd::SecondHalf => None,
                };
                self.draw(&outputs[*mean], log_std, *width, request, actions, log_probs, scratch)
            }
            Reads::Raw { deterministic, drawn, log_prob, random_graph } => {
                let at = raw_source(*deterministic, *drawn, *random_graph, request.deterministic)?;
                let dtype = outputs[at].dtype();
                if dtype.is_float() {
                    let values = floats(&outputs[at], &mut scratch.floats);
                    let width = values.len() / request.streams.len();
                    refuse_nan(values, width)?;
                    refuse_wild("gave an infinite action to", values, width)?;
                }
                actions.copy_from_slice(outputs[at].bytes());
                let mut log_probs = log_probs;
                if let (Some(at), Some(log_probs)) = (log_prob, log_probs.as_deref_mut()) {
                    let given = floats(&outputs[*at], &mut scratch.floats);
                    refuse_nan(given, 1)?;
                    log_probs.copy_from_slice(given);
                }
                if self.squashes {
                    let width = self.column.shape.iter().product::<usize>().max(1);
                    squash(bytemuck::cast_slice_mut(actions), width, log_probs.unwrap_or(&mut []));
                }
                Ok(())
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what discrete actions are picked from, and where they go")]
    fn pick(
        &self,
        outputs: &[Tensor],
        at: &[usize],
        branches: &[usize],
        request: &HeadRequest<'_>,
        actions: &mut [i64],
        log_probs: Option<&mut [f32]>,
        scratch: &mut HeadScratch,
    ) -> Result<(), HeadError> {
        let HeadScratch { floats: converted, more_floats: joined, branch, sampling, .. } = scratch;
        let draws = self.kind == HeadKind::Categorical && request.deterministic != Some(true);
        let HeadRequest { seed, streams, .. } = *request;
        let draw = |block| Pick::Draw { seed, streams, block: self.block + block };
        let pick = |block| if draws { draw(block) } else { Pick::Largest };
        let no_choice = |row| HeadError::Row { row, what: "gave logits without one finite, largest value for".into() };
        if let ([width], [at]) = (branches, at) {
            let (width, logits) = (*width, &outputs[*at]);
            let logits = match logits.dtype() {
                _ if self.reads_probabilities() => logarithms(logits, converted),
                DType::Float64 => below_largest(logits.values(), request.mask, width, converted),
                _ => floats(logits, converted),
            };
            self.refuse_logits(logits, width)?;
            return pick_discrete(logits, request.mask, width, pick(0), actions, log_probs, sampling)
                .map_err(no_choice);
        }
        let width = branches.iter().sum();
        let logits = match at {
            [at] if self.reads_probabilities() => logarithms(&outputs[*at], converted),
            [at] => floats(&outputs[*at], converted),
            several => {
                let numbers = if self.reads_probabilities() { logarithms } else { floats };
                join_rows(several.iter().map(|at| &outputs[*at]), numbers, width, streams.len(), converted, joined)
            }
        };
        self.refuse_logits(logits, width)?;
        let mut log_probs = log_probs;
        if let Some(log_probs) = &mut log_probs {
            log_probs.fill(0.0);
        }
        let mut first = 0;
        for (index, choices) in branches.iter().enumerate() {
            branch.take(logits, request.mask, width, first..first + choices);
            branch.pick(request, *choices, pick(index as u32), log_probs.is_some(), sampling).map_err(no_choice)?;
            for (action, picked) in actions.chunks_exact_mut(branches.len()).zip(&branch.actions) {
                action[index] = *picked;
            }
            // Branches are drawn independently of each other.
            if let Some(log_probs) = &mut log_probs {
                log_probs.iter_mut().zip(&branch.log_probs).for_each(|(sum, log_prob)| *sum += log_prob);
            }
            first += choices;
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "what a Gaussian is made of, and where it goes")]
    fn draw(
        &self,
        mean: &Tensor,
        log_std: Option<(&Tensor, usize, bool)>,
        width: usize,
        request: &HeadRequest<'_>,
        actions: &mut [f32],
        log_probs: Option<&mut [f32]>,
        scratch: &mut HeadScratch,
    ) -> Result<(), HeadError> {
        let means = floats(mean, &mut scratch.floats);
        refuse_nan(means, means.len() / request.streams.len())?;
        let log_std = if let Some((log_std, repeats, is_std)) = log_std {
            actions.copy_from_slice(means);
            let given = if is_std {
                let given = logarithms(log_std, &mut scratch.more_floats);
                refuse_wild("gave a standard deviation that is not a number above zero to", given, width / repeats)?;
                given
            } else {
                floats(log_std, &mut scratch.more_floats)
            };
            refuse_nan(given, width / repeats)?;
            if repeats == 1 {
                given
            } else {
                // The means are read, and their room is free.
                scratch.floats.clear();
                scratch.floats.extend(given.iter().flat_map(|value| std::iter::repeat_n(*value, repeats)));
                &scratch.floats
            }
        } else {
            scratch.more_floats.clear();
            for (row, action) in means.chunks_exact(2 * width).zip(actions.chunks_exact_mut(width)) {
                action.copy_from_slice(&row[..width]);
                scratch.more_floats.extend_from_slice(&row[width..]);
            }
            &scratch.more_floats
        };
        let draw = (request.deterministic != Some(true)).then_some((request.seed, request.streams, self.block));
        // Without room for the densities no row would be drawn.
        let log_probs = log_probs.unwrap_or_else(|| {
            scratch.branch.log_probs.resize(request.streams.len(), 0.0);
            &mut scratch.branch.log_probs
        });
        pick_gaussian(actions, log_std, width, draw, log_probs, &mut scratch.sampling);
        refuse_wild("gave an infinite action to", actions, width)?;
        if self.squashes {
            squash(actions, width, log_probs);
        }
        refuse_wild("gave an action without a finite density to", log_probs, 1)
    }
}

impl BranchScratch {
    /// Takes the logits `columns` out of rows that are `width` wide, and their masks.
    fn take(&mut self, logits: &[f32], mask: Option<&[u8]>, width: usize, columns: std::ops::Range<usize>) {
        self.logits.clear();
        self.logits.extend(logits.chunks_exact(width).flat_map(|row| &row[columns.clone()]));
        self.mask.clear();
        if let Some(mask) = mask {
            self.mask.extend(mask.chunks_exact(width).flat_map(|row| &row[columns.clone()]));
        }
    }

    fn pick(
        &mut self,
        request: &HeadRequest<'_>,
        choices: usize,
        pick: Pick<'_>,
        log_prob: bool,
        sampling: &mut Scratch,
    ) -> Result<(), usize> {
        let rows = request.streams.len();
        self.actions.resize(rows, 0);
        self.log_probs.resize(rows, 0.0);
        let mask = request.mask.map(|_| &self.mask[..]);
        let log_probs = log_prob.then_some(&mut self.log_probs[..]);
        pick_discrete(&self.logits, mask, choices, pick, &mut self.actions, log_probs, sampling)
    }
}

fn raw_source(
    fixed: Option<usize>,
    drawn: Option<usize>,
    random_graph: bool,
    asked: Option<bool>,
) -> Result<usize, HeadError> {
    match (asked, fixed, drawn) {
        (Some(true), None, _) if random_graph => Err(HeadError::Request(
            "deterministic=True was asked for, but the model draws its action inside the graph and has no \
             deterministic output; leave it out, or export one"
                .into(),
        )),
        (Some(false), _, Some(drawn)) => Ok(drawn),
        (_, Some(at), _) | (_, None, Some(at)) => Ok(at),
        (_, None, None) => Err(HeadError::Request("the model has no action output".into())),
    }
}

/// The logarithms of a tensor's numbers; NaN where one is below zero.
fn logarithms<'a>(tensor: &'a Tensor, scratch: &'a mut Vec<f32>) -> &'a [f32] {
    if tensor.dtype() == DType::Float64 {
        scratch.clear();
        scratch.extend(tensor.values::<f64>().iter().map(|value| value.ln() as f32));
        return scratch;
    }
    // Only where it has another type than float32 are the numbers there already.
    if floats(tensor, scratch).len() != scratch.len() {
        scratch.extend_from_slice(tensor.values());
    }
    for value in scratch.iter_mut() {
        *value = value.ln();
    }
    scratch
}

/// The rows of several outputs, each one's columns behind those of the one before.
fn join_rows<'a, 's>(
    outputs: impl Iterator<Item = &'a Tensor>,
    numbers: for<'n> fn(&'n Tensor, &'n mut Vec<f32>) -> &'n [f32],
    width: usize,
    rows: usize,
    converted: &mut Vec<f32>,
    joined: &'s mut Vec<f32>,
) -> &'s [f32] {
    joined.resize(rows * width, 0.0);
    let mut first = 0;
    for output in outputs {
        let values = numbers(output, converted);
        let columns = values.len() / rows;
        for (row, values) in joined.chunks_exact_mut(width).zip(values.chunks_exact(columns)) {
            row[first..first + columns].copy_from_slice(values);
        }
        first += columns;
    }
    joined
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
