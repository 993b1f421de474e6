//! Graphs that are declared for any batch, and have an operator in which rows may meet: reductions, sorting, gathering and the
//! like, along an axis that may be the batch's.
//!
//! What such nodes make of a batch is held against what they make of its rows alone. So rows that meet are found out even where a
//! threshold behind hides that from the outputs. Layers and activations, in which rows cannot meet, cost nothing here.

use std::collections::HashSet;

use relevo_core::{
    spec::{DType, Dim, TensorSpec},
    tensor::Tensor,
};

use crate::{
    agreement::{self, Disagreement, Tolerance},
    fixed_batch::{Build, is_too_large, run},
    proto::{AttributeProto, GraphProto, NodeProto},
    rewrite,
};

/// Operators on single elements.
const ELEMENT_OPS: [&str; 48] = [
    "Abs",
    "Add",
    "And",
    "Cast",
    "Ceil",
    "Celu",
    "Clip",
    "Cos",
    "DequantizeLinear",
    "Div",
    "Dropout",
    "Elu",
    "Equal",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "Greater",
    "GreaterOrEqual",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "LeakyRelu",
    "Less",
    "LessOrEqual",
    "Log",
    "Max",
    "Min",
    "Mish",
    "Mod",
    "Mul",
    "Neg",
    "Not",
    "Or",
    "PRelu",
    "Pow",
    "QuantizeLinear",
    "Reciprocal",
    "Relu",
    "Selu",
    "Sigmoid",
    "Sign",
    "Sin",
    "Softplus",
    "Sqrt",
    "Sub",
    "Tanh",
    "Where",
];

/// Operators that multiply their first input by weights.
const WEIGHT_OPS: [&str; 3] = ["Conv", "Gemm", "MatMul"];

/// Operators that tell how many there are, or which: what follows differs with the batch without mixing it.
const COUNTING_OPS: [&str; 3] = ["NonZero", "Shape", "Size"];

/// A tensor in which rows may have met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Meeting {
    /// Its name.
    name: String,
    /// Whether sizes or positions go into it, which a batch has more of.
    counts: bool,
}

/// The tensors in which rows of `inputs` may have met, and on which an output depends.
pub(crate) fn meetings(graph: &GraphProto, inputs: &[TensorSpec]) -> Vec<Meeting> {
    let mut known: HashSet<&str> = inputs.iter().map(|input| input.name.as_str()).collect();
    let mut counts: HashSet<&str> = HashSet::new();
    let mut found = Vec::new();
    for node in &graph.nodes {
        let op = node.op_type.as_str();
        let outputs = || node.outputs.iter().map(String::as_str).filter(|output| !output.is_empty());
        let holds_graph = node.attributes.iter().any(AttributeProto::holds_graph);
        if holds_graph || COUNTING_OPS.contains(&op) || node.inputs.iter().any(|name| counts.contains(name.as_str())) {
            counts.extend(outputs());
        }
        let is_known = holds_graph || node.inputs.iter().any(|name| known.contains(name.as_str()));
        if matches!(op, "Shape" | "Size") || !is_known {
            continue;
        }
        if !keeps_rows_apart(node, &known) {
            found.extend(outputs().map(|name| Meeting { name: name.into(), counts: counts.contains(name) }));
        }
        known.extend(outputs());
    }
    let felt = felt(graph);
    found.retain(|meeting| felt.contains(meeting.name.as_str()));
    found
}

/// Whether rows cannot meet in a node: at worst they come out in a wrong shape.
fn keeps_rows_apart(node: &NodeProto, known: &HashSet<&str>) -> bool {
    let number = |name: &str| node.attribute(name).map(|attribute| attribute.int);
    if !matches!(node.domain.as_str(), "" | "ai.onnx") {
        return false;
    }
    match node.op_type.as_str() {
        op if ELEMENT_OPS.contains(&op) => true,
        op if WEIGHT_OPS.contains(&op) => {
            let mut weights = node.inputs.iter().skip(1);
            number("transA").unwrap_or(0) == 0 && !weights.any(|name| known.contains(name.as_str()))
        }
        "BatchNormalization" => number("training_mode").unwrap_or(0) == 0,
        "Concat" => number("axis") != Some(0),
        "Flatten" => number("axis").unwrap_or(1) == 1,
        _ => false,
    }
}

/// The names of all tensors on which an output of the graph depends. Names that subgraphs take from around them are not told
/// apart: with one of these, everything counts.
fn felt(graph: &GraphProto) -> HashSet<&str> {
    let mut felt: HashSet<&str> = graph.outputs.iter().map(|output| output.name.as_str()).collect();
    for node in graph.nodes.iter().rev() {
        if node.attributes.iter().any(AttributeProto::holds_graph) {
            return graph.nodes.iter().flat_map(|node| &node.outputs).map(String::as_str).collect();
        }
        if node.outputs.iter().any(|output| felt.contains(output.as_str())) {
            felt.extend(node.inputs.iter().map(String::as_str));
        }
    }
    felt
}

/// Why rows of a batch are not kept apart: one of the `meetings` has, for a batch, other numbers than its rows have alone. `None`
/// where no such thing shows, or where the graph cannot be looked into.
pub(crate) fn reason(bytes: &[u8], inputs: &[TensorSpec], meetings: &[Meeting], build: Build<'_>) -> Option<String> {
    let axis = |spec: &TensorSpec| spec.shape.iter().position(|dim| matches!(dim, Dim::Dynamic(_)));
    let axes: Vec<_> = inputs.iter().map(axis).collect::<Option<_>>()?;
    if meetings.is_empty() || is_too_large(inputs) {
        return None;
    }
    let is_meeting = |name: &str| meetings.iter().any(|meeting| meeting.name == name);
    let mut session = build(&rewrite::with_outputs(bytes, is_meeting).ok()?).ok()?;
    let rows = agreement::rows(inputs, 0);
    let alone: Vec<_> = rows.iter().map(|row| run(&mut session, row)).collect::<Result<_, _>>().ok()?;
    let all = run(&mut session, &agreement::stacked(&rows, rows.len(), &axes)).ok()?;
    let outputs: Vec<_> = session.outputs().iter().map(|output| output.name.clone()).collect();
    let again = run(&mut session, &rows[0]).ok()?;
    for meeting in meetings {
        let at = outputs.iter().position(|name| *name == meeting.name)?;
        let of_rows: Vec<_> = alone.iter().map(|outputs| &outputs[at]).collect();
        // What differs from call to call shows nothing.
        if again[at].bytes() == of_rows[0].bytes()
            && let Some(disagreement) = mixed(meeting, &of_rows, &all[at])
        {
            return Some(format!("its tensor `{}`: {disagreement}", meeting.name));
        }
    }
    None
}

/// How a tensor of a batch differs from those of its rows, where that means that they met.
fn mixed(meeting: &Meeting, rows: &[&Tensor], batch: &Tensor) -> Option<Disagreement> {
    // Positions are other ones in a batch; and half floats are coarser than any tolerance.
    if (meeting.counts && !batch.dtype().is_float()) || batch.dtype() == DType::Float16 {
        return None;
    }
    match agreement::batch_axis(rows, batch, Tolerance::of_tensors_inside) {
        Err(Disagreement::Shape) if meeting.counts => None,
        other => other.err(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::ValueInfoProto;

    /// The tensors in which rows may meet, of nodes as `operator, inputs, output`; the input is `x`, and the output `y`.
    fn found(nodes: &[(&str, &str, &str)]) -> Vec<(String, bool)> {
        let node = |(op, inputs, output): &(&str, &str, &str)| NodeProto {
            inputs: inputs.split_whitespace().map(str::to_owned).collect(),
            outputs: vec![(*output).to_owned()],
            op_type: (*op).to_owned(),
            ..NodeProto::default()
        };
        let graph = GraphProto {
            nodes: nodes.iter().map(node).collect(),
            outputs: vec![ValueInfoProto { name: "y".into(), kind: None }],
            ..GraphProto::default()
        };
        let input = TensorSpec { name: "x".into(), dtype: DType::Float32, shape: vec![Dim::Dynamic(String::new())] };
        meetings(&graph, &[input]).into_iter().map(|meeting| (meeting.name, meeting.counts)).collect()
    }

    #[test]
    fn layers_and_activations_keep_rows_apart() {
        assert_eq!(
            found(&[("Gemm", "x w b", "h"), ("Tanh", "h", "t"), ("MatMul", "t v", "u"), ("Add", "u c", "y")]),
            []
        );
        assert_eq!(found(&[("Conv", "x w", "c"), ("Relu", "c", "r"), ("Flatten", "r", "f"), ("Elu", "f", "y")]), []);
    }

    #[test]
    fn what_may_mix_and_is_felt_is_looked_at() {
        let named = |name: &str, counts| (name.to_owned(), counts);
        let largest = ("ReduceMax", "x", "m");
        assert_eq!(found(&[largest, ("Sub", "x m", "y")]), [named("m", false)]);
        assert_eq!(found(&[largest, ("Neg", "x", "y")]), []);
        assert_eq!(found(&[("ReduceMax", "w", "m"), ("Sub", "x m", "y")]), []);
        assert_eq!(found(&[("MatMul", "x x", "y")]), [named("y", false)]);
        assert_eq!(found(&[("Shape", "x", "s"), ("Range", "a s b", "r"), ("Gather", "x r", "y")]), [named("y", true)]);
    }
}
