//! Constants that hold a batch of 1, where they meet what follows the batch: a learned token that is joined to the observation, the
//! zeros that a recurrent layer begins with. They are stretched to the batch by an Expand in between.
//!
//! Operators that stretch by themselves (`Add`, `MatMul`, `Where` …) need nothing of it.

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
};

use crate::{
    rewrite::{Plan, standard_operator, tag},
    wire::{self, Field, MALFORMED, Patch, messages, text},
};

/// What names of added tensors begin with.
pub(crate) const PREFIX: &str = "relevo.stretched.";

/// Operators of recurrent layers, whose inputs 4, 5 and 6 are the length of sequences `[batch]` and states `[directions, batch, width]`.
const RECURRENT_OPS: [&str; 3] = ["LSTM", "GRU", "RNN"];
const LENGTHS: usize = 4;
const STATES: [usize; 2] = [5, 6];

/// Shapes of what nodes make for one row, by name.
pub(crate) type Shapes = HashMap<String, Vec<i64>>;

/// Puts an Expand before each input that is a constant with a batch of 1, and has `Flatten(axis=0)`, which puts all rows in one, begin
/// behind the batch.
pub(crate) fn stretch(
    patch: &mut Patch<'_>,
    bytes: &[u8],
    graph: &Field,
    plan: &Plan,
    shapes: &Shapes,
) -> Result<(), String> {
    let mut constants = constants(bytes, graph)?;
    let (mut ranks, mut count) = (HashSet::new(), 0);
    for node in messages(bytes, graph.body.clone(), tag::GRAPH_NODE)? {
        let outputs = names(bytes, &node, tag::NODE_OUTPUT)?;
        if outputs.iter().any(|(name, _)| name.starts_with(PREFIX)) {
            // They would not be looked at.
            return Err(format!("it has tensors whose names begin with `{PREFIX}`"));
        }
        let Some(op) = standard_operator(bytes, node.body.clone())? else { continue };
        let inputs = names(bytes, &node, tag::NODE_INPUT)?;
        if inputs.iter().all(|(name, _)| name.is_empty() || constants.contains_key(name)) && op != "Constant" {
            // What is made of constants alone is one. Its shape shows when it runs.
            for (name, _) in outputs {
                constants.insert(name, shapes.get(name).cloned().unwrap_or_default());
            }
            continue;
        }
        if op == "Flatten" {
            patch.inside(&node, |patch| flatten_behind_the_batch(patch, bytes, &node))?;
            continue;
        }
        let attribute = axis(bytes, node.body.clone())?;
        let mut exchanged = Vec::new();
        for (place, (name, field)) in inputs.into_iter().enumerate() {
            let Some(shape) = constants.get(name) else { continue };
            let Some(axis) = stretched_axis(op, place, shape, attribute, plan.reshape_axis) else { continue };
            let made = format!("{PREFIX}{count}");
            count += 1;
            ranks.insert((axis, shape.len()));
            let target = target_name(axis, shape.len());
            patch.replace(node.whole.start..node.whole.start, written_node("Expand", &[name, &target], &made, &[]));
            exchanged.push((field, made));
        }
        patch.inside(&node, |patch| {
            for (field, made) in exchanged {
                patch.replace(field.whole, wire::message(tag::NODE_INPUT, made.as_bytes()));
            }
            Ok(())
        })?;
    }
    if !ranks.is_empty() {
        patch.replace(graph.body.start..graph.body.start, targets(plan, ranks));
    }
    Ok(())
}

/// Names of tensors that initializers and Constant nodes make, with their shapes.
fn constants<'a>(bytes: &'a [u8], graph: &Field) -> Result<HashMap<&'a str, Vec<i64>>, String> {
    let mut constants = HashMap::new();
    for tensor in messages(bytes, graph.body.clone(), tag::GRAPH_INITIALIZER)? {
        let name = text(bytes, tensor.body.clone(), tag::TENSOR_NAME)?;
        constants.insert(name, wire::numbers(bytes, tensor.body, tag::TENSOR_DIMS)?);
    }
    for input in messages(bytes, graph.body.clone(), tag::GRAPH_INPUT)? {
        // An initializer of an input's name is its default, which a caller may replace.
        constants.remove(text(bytes, input.body, tag::VALUE_NAME)?);
    }
    for node in messages(bytes, graph.body.clone(), tag::GRAPH_NODE)? {
        if standard_operator(bytes, node.body.clone())? != Some("Constant") {
            continue;
        }
        let mut shape = Vec::new();
        for attribute in messages(bytes, node.body.clone(), tag::NODE_ATTRIBUTE)? {
            for tensor in messages(bytes, attribute.body, tag::ATTRIBUTE_TENSOR)? {
                shape = wire::numbers(bytes, tensor.body, tag::TENSOR_DIMS)?;
            }
        }
        constants.insert(text(bytes, node.body, tag::NODE_OUTPUT)?, shape);
    }
    Ok(constants)
}

/// Names in the fields with this number, and the fields.
fn names<'a>(bytes: &'a [u8], node: &Field, number: u64) -> Result<Vec<(&'a str, Field)>, String> {
    let name = |field: Field| {
        let name = std::str::from_utf8(&bytes[field.body.clone()]).map_err(|_| MALFORMED)?;
        Ok((name, field))
    };
    messages(bytes, node.body.clone(), number)?.into_iter().map(name).collect()
}

/// The axis of 1 of a constant that counts rows, where the operator takes it at `place` and does not stretch it itself.
fn stretched_axis(op: &str, place: usize, shape: &[i64], attribute: Option<i64>, second: usize) -> Option<usize> {
    let is_one = |axis: usize| shape.get(axis) == Some(&1);
    match op {
        "Concat" => {
            let rank = shape.len() as i64;
            let joined = attribute.map(|axis| if axis < 0 { axis + rank } else { axis })?;
            let mut axes = (0..shape.len().min(2)).filter(|axis| is_one(*axis) && *axis as i64 != joined);
            let first = axes.next()?;
            // Where either may count them, the plan says which.
            Some(axes.next().filter(|_| second == 1).unwrap_or(first))
        }
        _ if RECURRENT_OPS.contains(&op) && place == LENGTHS => is_one(0).then_some(0),
        _ if RECURRENT_OPS.contains(&op) && STATES.contains(&place) => (shape.len() == 3 && is_one(1)).then_some(1),
        _ => None,
    }
}

/// A node's attribute `axis`.
fn axis(bytes: &[u8], node: Range<usize>) -> Result<Option<i64>, String> {
    for attribute in messages(bytes, node, tag::NODE_ATTRIBUTE)? {
        if text(bytes, attribute.body.clone(), tag::ATTRIBUTE_NAME)? == "axis" {
            return Ok(Some(wire::numbers(bytes, attribute.body, tag::ATTRIBUTE_INT)?.last().copied().unwrap_or(0)));
        }
    }
    Ok(None)
}

fn flatten_behind_the_batch(patch: &mut Patch<'_>, bytes: &[u8], node: &Field) -> Result<(), String> {
    for attribute in messages(bytes, node.body.clone(), tag::NODE_ATTRIBUTE)? {
        if axis(bytes, node.body.clone())? == Some(0)
            && text(bytes, attribute.body.clone(), tag::ATTRIBUTE_NAME)? == "axis"
        {
            patch.inside(&attribute, |patch| {
                for field in wire::fields(bytes, attribute.body.clone())? {
                    if field.number == tag::ATTRIBUTE_INT {
                        patch.replace(field.whole, Vec::new());
                    }
                }
                patch.replace(attribute.body.end..attribute.body.end, wire::number(tag::ATTRIBUTE_INT, 1));
                Ok(())
            })?;
        }
    }
    Ok(())
}

fn target_name(axis: usize, rank: usize) -> String {
    format!("{PREFIX}{axis}.of.{rank}")
}

/// What makes the targets of Expand nodes, `[1, batch, 1]` for the axis 1 of 3: of the shape of the plan's first input.
fn targets(plan: &Plan, mut ranks: HashSet<(usize, usize)>) -> Vec<u8> {
    let name = |what: &str| format!("{PREFIX}{what}");
    let (shape, batch, index, one) = (name("shape"), name("batch"), name("axis"), name("one"));
    let (input, axis) = &plan.source;
    let mut nodes = [
        written_tensor(&index, *axis as i64),
        written_tensor(&one, 1),
        written_node("Shape", &[input], &shape, &[]),
        written_node("Gather", &[&shape, &index], &batch, &[("axis", 0)]),
    ]
    .concat();
    let mut ranks: Vec<_> = ranks.drain().collect();
    ranks.sort_unstable();
    for (axis, rank) in ranks {
        let sizes: Vec<_> = (0..rank).map(|at| if at == axis { &*batch } else { &*one }).collect();
        nodes.extend(written_node("Concat", &sizes, &target_name(axis, rank), &[("axis", 0)]));
    }
    nodes
}

/// A node of the graph, written.
fn written_node(op: &str, inputs: &[&str], output: &str, attributes: &[(&str, u64)]) -> Vec<u8> {
    /// Number of an attribute that is one whole number.
    const INT: u64 = 2;
    let mut node: Vec<u8> = inputs.iter().flat_map(|name| wire::message(tag::NODE_INPUT, name.as_bytes())).collect();
    node.extend(wire::message(tag::NODE_OUTPUT, output.as_bytes()));
    node.extend(wire::message(tag::NODE_OP_TYPE, op.as_bytes()));
    for (name, value) in attributes {
        let attribute = [
            wire::message(tag::ATTRIBUTE_NAME, name.as_bytes()),
            wire::number(tag::ATTRIBUTE_INT, *value),
            wire::number(tag::ATTRIBUTE_TYPE, INT),
        ];
        node.extend(wire::message(tag::NODE_ATTRIBUTE, &attribute.concat()));
    }
    wire::message(tag::GRAPH_NODE, &node)
}

/// An initializer `[value]` of int64, written.
fn written_tensor(name: &str, value: i64) -> Vec<u8> {
    /// Element type number of int64.
    const INT64: u64 = 7;
    let tensor = [
        wire::number(tag::TENSOR_DIMS, 1),
        wire::number(tag::TENSOR_DATA_TYPE, INT64),
        wire::message(tag::TENSOR_NAME, name.as_bytes()),
        wire::message(tag::TENSOR_RAW_DATA, &value.to_le_bytes()),
    ];
    wire::message(tag::GRAPH_INITIALIZER, &tensor.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_that_counts_rows_is_a_one_that_is_not_joined() {
        for (op, place, shape, attribute, second, expected) in [
            ("Concat", 0, &[1, 1, 8][..], Some(1), 0, Some(0)),
            ("Concat", 1, &[1, 1, 8], Some(-2), 1, Some(0)),
            ("Concat", 1, &[1, 1, 8], Some(2), 0, Some(0)),
            ("Concat", 1, &[1, 1, 8], Some(2), 1, Some(1)),
            ("Concat", 1, &[1, 8], Some(1), 1, Some(0)),
            ("Concat", 1, &[1], Some(0), 0, None),
            ("Concat", 1, &[3, 8], Some(1), 0, None),
            ("LSTM", 5, &[1, 1, 8], None, 0, Some(1)),
            ("GRU", 5, &[2, 3, 8], None, 0, None),
            ("LSTM", 4, &[1], None, 0, Some(0)),
            ("LSTM", 1, &[1, 1, 8], None, 0, None),
            ("Add", 1, &[1, 8], None, 0, None),
        ] {
            assert_eq!(stretched_axis(op, place, shape, attribute, second), expected, "{op} {place} {shape:?}");
        }
    }
}
