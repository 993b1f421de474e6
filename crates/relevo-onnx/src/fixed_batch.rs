//! Graphs for a batch of 1: rewritten for any number of rows, where that provably gives the same.
//!
//! The proof is by running: the rewritten graph gets batches of made-up rows, the original one the rows alone. Not only the
//! outputs must agree but everything that one node hands to another. So a node that mixes rows is found out even where a
//! threshold behind it hides that from the outputs; what a single node does inside is all that made-up numbers have to show.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher},
};

use relevo_core::{
    policy::Session as _,
    spec::{DType, Dim, TensorSpec},
    tensor::Tensor,
};

use crate::{
    agreement::{self, Tolerance},
    rewrite::{self, BATCH, Plan, Targets},
    session::OnnxSession,
    stretch::Shapes,
};

/// Sizes of the batches that are tried; the largest is what [`agreement::rows`] gives.
const BATCHES: [usize; 4] = [1, 2, 3, 7];

/// A row of an input or output with more bytes than this is not tried: many copies of it are made.
const MOST_ROW_BYTES: usize = 32 << 20;

/// Sets of made-up inputs that the outputs must agree on.
const SETS: u64 = 3;

/// Inputs whose batch axis may be either of two are tried one by one up to this number of them.
const MOST_APART: usize = 3;

/// What came of a graph with a batch of 1.
pub(crate) enum Outcome {
    /// It takes any number of rows now.
    Rewritten(Box<Rewritten>),
    /// It takes one row, for this reason.
    Kept(String),
}

/// A rewritten graph.
pub(crate) struct Rewritten {
    /// The file.
    pub(crate) bytes: Vec<u8>,
    /// The input's declarations, with the batch axis dynamic.
    pub(crate) inputs: Vec<TensorSpec>,
    /// The same of the outputs.
    pub(crate) outputs: Vec<TensorSpec>,
}

/// What is known of a graph before it is rewritten.
pub(crate) struct Original<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) inputs: &'a [TensorSpec],
    pub(crate) outputs: &'a [TensorSpec],
    /// Why no batch of it can be trusted, whatever made-up inputs show.
    pub(crate) obstacle: Option<String>,
}

/// Makes a session for a file, which may be one that ONNX Runtime refuses.
pub(crate) type Build<'a> = &'a dyn Fn(&[u8]) -> Result<OnnxSession, String>;

/// Rewrites a graph for a batch of 1; `None` where it is none. `session` is the original's.
///
/// Inputs that are declared with a batch of 1 show it. A graph may also be declared for any batch, and hold a batch of 1 in its
/// constants, as tracing exporters write them: then a batch fails.
pub(crate) fn rewritten(original: &Original<'_>, session: &mut OnnxSession, build: Build<'_>) -> Option<Outcome> {
    let plans = plans(original.inputs)?;
    let declared = plans.iter().any(|plan| !plan.axes.is_empty());
    // Of a graph that is declared for any batch, whoever tries one finds out what is wrong with it.
    let kept = |reason: String| declared.then_some(Outcome::Kept(reason));
    if let Some(obstacle) = &original.obstacle {
        return kept(obstacle.clone());
    }
    if is_too_large(original.inputs) || is_too_large(original.outputs) {
        return kept("its rows are too large to be tried".into());
    }
    if !declared {
        let rows = agreement::rows(original.inputs, 0);
        let axes: Vec<_> = original.inputs.iter().map(|spec| plans[0].axis(spec)).collect();
        if run(session, &agreement::stacked(&rows, 2, &axes)).is_ok() {
            return None;
        }
    }
    let mut trial = match Trial::new(original, session, build) {
        Ok(trial) => trial,
        Err(reason) => return kept(reason),
    };
    let (mut tried, mut first_reason) = (HashSet::new(), None);
    for plan in &plans {
        let attempt = rewrite::rewrite(original.bytes, plan, &trial.targets, &trial.shapes).and_then(|bytes| {
            // Where no constant may be read in two ways, two plans give one file.
            let new = tried.insert(BuildHasherDefault::<DefaultHasher>::new().hash_one(&bytes));
            if new { Ok(Some((trial.outputs(plan, &bytes)?, bytes))) } else { Ok(None) }
        });
        match attempt {
            Ok(Some((outputs, bytes))) => {
                let inputs = original.inputs.iter().map(|spec| with_batch(spec, plan.axes.get(&spec.name))).collect();
                return Some(Outcome::Rewritten(Box::new(Rewritten { bytes, inputs, outputs })));
            }
            Ok(None) => {}
            Err(reason) => first_reason = first_reason.or(Some(reason)),
        }
    }
    kept(first_reason.unwrap_or_default())
}

/// Whether rows are so large that copies of them take too much.
pub(crate) fn is_too_large(specs: &[TensorSpec]) -> bool {
    specs.iter().any(|spec| agreement::row_bytes(spec) > MOST_ROW_BYTES)
}

impl Plan {
    /// The axis of an input that counts the rows. In an input that the plan does not name it is dynamic already.
    fn axis(&self, spec: &TensorSpec) -> usize {
        let dynamic = || spec.shape.iter().position(|dim| matches!(dim, Dim::Dynamic(_)));
        self.axes.get(&spec.name).copied().or_else(dynamic).unwrap_or(0)
    }
}

/// Ways to read the declarations, the likeliest first; `None` where they have another batch than 1, or none.
fn plans(inputs: &[TensorSpec]) -> Option<Vec<Plan>> {
    let fixed = |spec: &&TensorSpec| spec.shape.iter().all(|dim| matches!(dim, Dim::Fixed(_)));
    let one = Dim::Fixed(1);
    let mut axes = HashMap::new();
    let mut either = Vec::new();
    for spec in inputs.iter().filter(fixed) {
        let axis = match &spec.shape[..] {
            // A state of [layers, batch, width], or [batch, 1, width].
            [first, second, _] if *first == one && *second == one => {
                either.push(spec.name.clone());
                0
            }
            [first, ..] if *first == one => 0,
            [_, second, _] if *second == one => 1,
            _ => return None,
        };
        axes.insert(spec.name.clone(), axis);
    }
    if inputs.iter().any(|spec| spec.shape.is_empty()) {
        return None;
    }
    let all = (1_usize << either.len().min(usize::BITS as usize - 1)) - 1;
    let mut subsets = vec![0, all];
    if either.len() <= MOST_APART {
        subsets.extend(1..all);
    }
    subsets.dedup();
    let plan = |(subset, reshape_axis): (usize, usize)| {
        let mut axes = axes.clone();
        let second = either.iter().enumerate().filter(|(index, _)| subset >> index & 1 == 1);
        axes.extend(second.map(|(_, name)| (name.clone(), 1)));
        let mut plan = Plan { axes, reshape_axis, source: (String::new(), 0) };
        if let Some(first) = inputs.first() {
            plan.source = (first.name.clone(), plan.axis(first));
        }
        plan
    };
    Some(subsets.into_iter().flat_map(|subset| [(subset, 0), (subset, 1)]).map(plan).collect())
}

/// The declaration with this axis dynamic.
fn with_batch(spec: &TensorSpec, axis: Option<&usize>) -> TensorSpec {
    let mut spec = spec.clone();
    if let Some(dim) = axis.and_then(|&axis| spec.shape.get_mut(axis)) {
        *dim = Dim::Dynamic(BATCH.into());
    }
    spec
}

/// The declaration, or where it has another number of axes than the output, the output's shape.
fn with_rank(spec: &TensorSpec, output: &Tensor) -> TensorSpec {
    let mut spec = spec.clone();
    if spec.shape.len() != output.shape().len() {
        spec.shape = output.shape().iter().map(|&size| Dim::Fixed(size)).collect();
    }
    spec
}

/// What the original graph gives, row by row, for rewritten ones to be held against.
struct Trial<'a> {
    original: &'a Original<'a>,
    build: Build<'a>,
    sets: Vec<Answers>,
    /// The first set again, with everything that the nodes hand to each other.
    inside: Answers,
    names: Vec<String>,
    targets: Targets,
    shapes: Shapes,
}

/// Rows and what the original graph makes of each.
struct Answers {
    rows: Vec<Vec<Tensor>>,
    /// By row, then by output.
    outputs: Vec<Vec<Tensor>>,
}

impl Answers {
    fn new(inputs: &[TensorSpec], seed: u64, session: &mut OnnxSession) -> Result<Self, String> {
        let rows = agreement::rows(inputs, seed);
        let outputs = rows.iter().map(|row| run(session, row)).collect::<Result<_, _>>()?;
        Ok(Self { rows, outputs })
    }

    /// Runs a batch of the first `count` rows, and holds it against them: the axis of the rows in each output.
    fn held_against(
        &self,
        session: &mut OnnxSession,
        count: usize,
        axes: &[usize],
        agree: impl Fn(usize, &[&Tensor], &Tensor) -> Result<Option<usize>, String>,
    ) -> Result<Vec<Option<usize>>, String> {
        let batch = run(session, &agreement::stacked(&self.rows, count, axes))
            .map_err(|reason| format!("a batch of {count} failed: {reason}"))?;
        let axis = |(output, batch): (usize, &Tensor)| {
            let singles: Vec<_> = self.outputs[..count].iter().map(|outputs| &outputs[output]).collect();
            agree(output, &singles, batch)
        };
        batch.iter().enumerate().map(axis).collect()
    }
}

impl<'a> Trial<'a> {
    fn new(original: &'a Original<'a>, session: &mut OnnxSession, build: Build<'a>) -> Result<Self, String> {
        let fails = |reason: String| format!("the graph fails on made-up inputs: {reason}");
        let answers = |seed| Answers::new(original.inputs, seed, session).map_err(fails);
        let sets = (0..SETS).map(answers).collect::<Result<Vec<_>, _>>()?;
        let again = Answers::new(original.inputs, 0, session).map_err(fails)?;
        for (index, spec) in original.outputs.iter().enumerate() {
            let all = || sets.iter().flat_map(|set| set.outputs.iter().map(|outputs| &outputs[index]));
            let repeated = sets[0].outputs.iter().zip(&again.outputs);
            if repeated.into_iter().any(|(once, twice)| once[index].bytes() != twice[index].bytes()) {
                return Err(format!("its output `{}` differs from call to call", spec.name));
            }
            if !all().any(agreement::is_finite) {
                return Err(format!(
                    "its output `{}` is not finite on made-up inputs, so it proves nothing",
                    spec.name
                ));
            }
        }
        let cannot = |reason| format!("what its nodes hand to each other cannot be looked at: {reason}");
        let mut inside = rewrite::with_all_outputs(original.bytes).and_then(|bytes| build(&bytes)).map_err(cannot)?;
        let names = names(&inside);
        let inside = Answers::new(original.inputs, 0, &mut inside).map_err(cannot)?;
        let sizes = |output: &Tensor| output.shape().iter().map(|&size| size as i64).collect();
        let shapes: Shapes = names.iter().cloned().zip(inside.outputs[0].iter().map(sizes)).collect();
        let mut targets = Targets::new();
        for (target, outputs) in rewrite::reshapes(original.bytes)? {
            let made: Vec<_> = outputs.iter().filter_map(|output| shapes.get(*output)).collect();
            if let [first, rest @ ..] = &made[..]
                && rest.iter().all(|other| other == first)
            {
                targets.insert(target.to_owned(), (*first).clone());
            }
        }
        Ok(Self { original, build, sets, inside, names, targets, shapes })
    }

    /// The declarations of the rewritten graph's outputs, if it gives a batch what the original gives its rows.
    fn outputs(&mut self, plan: &Plan, bytes: &[u8]) -> Result<Vec<TensorSpec>, String> {
        let axes: Vec<_> = self.original.inputs.iter().map(|spec| plan.axis(spec)).collect();
        let mut session = (self.build)(bytes)?;
        let specs = &self.original.outputs;
        let mut found: Vec<Option<usize>> = vec![None; specs.len()];
        for (set, count) in self.sets.iter().flat_map(|set| BATCHES.map(|count| (set, count))) {
            let agree = |output: usize, singles: &[&Tensor], batch: &Tensor| {
                agreement::batch_axis(singles, batch, Tolerance::of_outputs)
                    .map_err(|reason| format!("its output `{}`: {reason}", specs[output].name))
            };
            let axes = set.held_against(&mut session, count, &axes, agree)?;
            if count == 2 {
                found = axes;
            } else if count > 2 && found != axes {
                return Err("the axis of the rows depends on their number".into());
            }
        }
        let apart = |(axis, output): (&Option<usize>, &Tensor)| axis.is_none_or(|axis| output.shape()[axis] == 1);
        if !found.iter().zip(&self.sets[0].outputs[0]).all(apart) {
            return Err("an output has the rows of a batch in one with other things".into());
        }
        if found.iter().all(Option::is_none) {
            return Err("no output follows the batch".into());
        }
        drop(session);
        self.look_inside(bytes, &axes)?;
        let specs = specs.iter().zip(&self.sets[0].outputs[0]).zip(&found);
        Ok(specs.map(|((spec, output), axis)| with_batch(&with_rank(spec, output), axis.as_ref())).collect())
    }

    /// Holds everything that the nodes of the rewritten graph hand to each other against the rows.
    fn look_inside(&self, bytes: &[u8], axes: &[usize]) -> Result<(), String> {
        let mut session = (self.build)(&rewrite::with_all_outputs(bytes)?)?;
        if names(&session) != self.names {
            return Err("its nodes hand other things to each other".into());
        }
        for count in BATCHES {
            self.inside.held_against(
                &mut session,
                count,
                axes,
                |output, singles, batch| match agreement::batch_axis(singles, batch, Tolerance::of_tensors_inside) {
                    Err(_) if agreement::counts_rows(singles[0], batch, count) => Ok(None),
                    Err(reason) => Err(format!("its tensor `{}`: {reason}", self.names[output])),
                    Ok(axis) => Ok(axis),
                },
            )?;
        }
        Ok(())
    }
}

fn names(session: &OnnxSession) -> Vec<String> {
    session.outputs().iter().map(|output| output.name.clone()).collect()
}

/// Runs every output of a session.
pub(crate) fn run(session: &mut OnnxSession, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
    let views: Vec<_> = inputs.iter().map(Tensor::view).collect();
    let wanted: Vec<_> = (0..session.outputs().len()).collect();
    let mut outputs: Vec<_> = wanted.iter().map(|_| Tensor::zeros(DType::Float32, &[0])).collect();
    session.forward(&views, &wanted, &mut outputs).map_err(|error| error.to_string())?;
    Ok(outputs)
}
