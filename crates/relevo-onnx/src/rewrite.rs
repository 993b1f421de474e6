//! The rewriter of fixed batches: makes the axis of size 1 that counts the rows symbolic, in the bytes of an ONNX file.
//!
//! It only proposes. Whether the proposal computes the same is found out by running it (`agreement`).

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
};

use crate::{
    stretch::{self, Shapes},
    wire::{self, Field, MALFORMED, Patch, messages, text},
};

/// Numbers of the fields of ONNX's messages that are edited here, in `noise`, `beside` or `inline`, or read in `weights`.
pub(crate) mod tag {
    pub(crate) const MODEL_GRAPH: u64 = 7;
    pub(crate) const MODEL_OPSET: u64 = 8;
    pub(crate) const MODEL_FUNCTION: u64 = 25;
    pub(crate) const OPSET_DOMAIN: u64 = 1;
    pub(crate) const OPSET_VERSION: u64 = 2;
    pub(crate) const FUNCTION_NAME: u64 = 1;
    pub(crate) const FUNCTION_INPUT: u64 = 4;
    pub(crate) const FUNCTION_OUTPUT: u64 = 5;
    pub(crate) const FUNCTION_NODE: u64 = 7;
    pub(crate) const FUNCTION_OPSET: u64 = 9;
    pub(crate) const FUNCTION_DOMAIN: u64 = 10;
    pub(crate) const FUNCTION_DEFAULT: u64 = 11;
    pub(crate) const FUNCTION_OVERLOAD: u64 = 13;
    pub(crate) const GRAPH_NODE: u64 = 1;
    pub(crate) const GRAPH_INITIALIZER: u64 = 5;
    pub(crate) const GRAPH_INPUT: u64 = 11;
    pub(crate) const GRAPH_OUTPUT: u64 = 12;
    pub(crate) const GRAPH_VALUE_INFO: u64 = 13;
    pub(crate) const GRAPH_SPARSE_INITIALIZER: u64 = 15;
    pub(crate) const SPARSE_VALUES: u64 = 1;
    pub(crate) const NODE_INPUT: u64 = 1;
    pub(crate) const NODE_OUTPUT: u64 = 2;
    pub(crate) const NODE_OP_TYPE: u64 = 4;
    pub(crate) const NODE_ATTRIBUTE: u64 = 5;
    pub(crate) const NODE_DOMAIN: u64 = 7;
    pub(crate) const NODE_OVERLOAD: u64 = 8;
    pub(crate) const ATTRIBUTE_NAME: u64 = 1;
    pub(crate) const ATTRIBUTE_FLOAT: u64 = 2;
    pub(crate) const ATTRIBUTE_INT: u64 = 3;
    pub(crate) const ATTRIBUTE_TENSOR: u64 = 5;
    pub(crate) const ATTRIBUTE_GRAPH: u64 = 6;
    pub(crate) const ATTRIBUTE_INTS: u64 = 8;
    pub(crate) const ATTRIBUTE_GRAPHS: u64 = 11;
    pub(crate) const ATTRIBUTE_TYPE: u64 = 20;
    pub(crate) const ATTRIBUTE_REFERENCE: u64 = 21;
    pub(crate) const TENSOR_DIMS: u64 = 1;
    pub(crate) const TENSOR_DATA_TYPE: u64 = 2;
    pub(crate) const TENSOR_FLOAT_DATA: u64 = 4;
    pub(crate) const TENSOR_INT32_DATA: u64 = 5;
    pub(crate) const TENSOR_INT64_DATA: u64 = 7;
    pub(crate) const TENSOR_NAME: u64 = 8;
    pub(crate) const TENSOR_RAW_DATA: u64 = 9;
    pub(crate) const TENSOR_DOUBLE_DATA: u64 = 10;
    pub(crate) const TENSOR_EXTERNAL_DATA: u64 = 13;
    pub(crate) const TENSOR_DATA_LOCATION: u64 = 14;
    pub(crate) const ENTRY_KEY: u64 = 1;
    pub(crate) const ENTRY_VALUE: u64 = 2;
    pub(crate) const VALUE_NAME: u64 = 1;
    pub(crate) const VALUE_TYPE: u64 = 2;
    pub(crate) const TYPE_TENSOR: u64 = 1;
    pub(crate) const TENSOR_TYPE_SHAPE: u64 = 2;
    pub(crate) const SHAPE_DIM: u64 = 1;
    pub(crate) const DIM_VALUE: u64 = 1;
    pub(crate) const DIM_NAME: u64 = 2;
}

/// The name of the batch axis in a rewritten graph.
pub(crate) const BATCH: &str = "batch";

/// Element type number of int64 in ONNX files.
const INT64: i64 = 7;

/// What is taken for the batch axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The axis of each input that is to be made symbolic, by the input's name.
    pub(crate) axes: HashMap<String, usize>,
    /// Which axis counts the rows where the target of a Reshape, or a constant, begins with two ones: 0 or 1.
    pub(crate) reshape_axis: usize,
    /// An input, and the axis of it that counts the rows.
    pub(crate) source: (String, usize),
}

/// What the targets of Reshape nodes come to for one row, by the target's name.
pub(crate) type Targets = HashMap<String, Vec<i64>>;

/// The file with every axis of the plan symbolic, and so whatever names the batch of 1 in declarations and in the constants
/// that Reshape nodes take as their target, and with constants stretched where they meet the batch. Weights are copied once.
pub(crate) fn rewrite(bytes: &[u8], plan: &Plan, targets: &Targets, shapes: &Shapes) -> Result<Vec<u8>, String> {
    let graph = graph(bytes)?;
    let reshape_axis = plan.reshape_axis;
    let mut patch = Patch::new(bytes);
    patch.inside(&graph, |patch| {
        for field in wire::fields(bytes, graph.body.clone())?.iter().filter(|field| field.has_length()) {
            match field.number {
                tag::GRAPH_VALUE_INFO => patch.replace(field.whole.clone(), Vec::new()),
                tag::GRAPH_INPUT => {
                    if let Some(&axis) = plan.axes.get(text(bytes, field.body.clone(), tag::VALUE_NAME)?) {
                        edit_dims(patch, bytes, field, |index, _| {
                            (index == axis).then(|| wire::message(tag::DIM_NAME, BATCH.as_bytes()))
                        })?;
                    }
                }
                // An output's batch axis is known only once the graph has run: every 1 may be it.
                tag::GRAPH_OUTPUT => edit_dims(patch, bytes, field, |_, size| (size == Some(1)).then(Vec::new))?,
                tag::GRAPH_INITIALIZER => {
                    if let Some(target) = targets.get(text(bytes, field.body.clone(), tag::TENSOR_NAME)?) {
                        let loosen = |written: &[i64]| loosened(written, target, reshape_axis);
                        patch.inside(field, |patch| edit_tensor(patch, bytes, field.body.clone(), &loosen))?;
                    }
                }
                tag::GRAPH_NODE => {
                    if standard_operator(bytes, field.body.clone())? == Some("Constant")
                        && let Some(target) = targets.get(text(bytes, field.body.clone(), tag::NODE_OUTPUT)?)
                    {
                        let loosen = |written: &[i64]| loosened(written, target, reshape_axis);
                        edit_constant(patch, bytes, field, &loosen)?;
                    }
                }
                _ => {}
            }
        }
        stretch::stretch(patch, bytes, &graph, plan, shapes)
    })?;
    Ok(patch.finish())
}

/// The file with what its nodes make, constants aside, as outputs of the graph, behind those that it declares.
pub(crate) fn with_all_outputs(bytes: &[u8]) -> Result<Vec<u8>, String> {
    with_outputs(bytes, |name| !name.starts_with(stretch::PREFIX))
}

/// The same with only those that are wanted, by name.
pub(crate) fn with_outputs(bytes: &[u8], is_wanted: impl Fn(&str) -> bool) -> Result<Vec<u8>, String> {
    let graph = graph(bytes)?;
    let mut known = HashSet::new();
    for output in messages(bytes, graph.body.clone(), tag::GRAPH_OUTPUT)? {
        known.insert(text(bytes, output.body, tag::VALUE_NAME)?);
    }
    let mut added = Vec::new();
    for node in messages(bytes, graph.body.clone(), tag::GRAPH_NODE)? {
        if standard_operator(bytes, node.body.clone())? == Some("Constant") {
            continue;
        }
        for output in messages(bytes, node.body, tag::NODE_OUTPUT)? {
            let name = std::str::from_utf8(&bytes[output.body]).map_err(|_| MALFORMED)?;
            if !name.is_empty() && is_wanted(name) && known.insert(name) {
                added.extend(wire::message(tag::GRAPH_OUTPUT, &wire::message(tag::VALUE_NAME, name.as_bytes())));
            }
        }
    }
    let mut patch = Patch::new(bytes);
    patch.inside(&graph, |patch| {
        patch.replace(graph.body.end..graph.body.end, added);
        Ok(())
    })?;
    Ok(patch.finish())
}

/// The file's graph. Two of them would be merged by a reader of protobuf; no exporter writes such a file.
fn graph(bytes: &[u8]) -> Result<Field, String> {
    let mut graphs = messages(bytes, 0..bytes.len(), tag::MODEL_GRAPH)?;
    match (graphs.pop(), graphs.is_empty()) {
        (Some(graph), true) => Ok(graph),
        _ => Err(MALFORMED.into()),
    }
}

/// A node's operator, where it is one of the ONNX standard.
pub(crate) fn standard_operator(bytes: &[u8], node: Range<usize>) -> Result<Option<&str>, String> {
    let domain = text(bytes, node.clone(), tag::NODE_DOMAIN)?;
    let op_type = text(bytes, node, tag::NODE_OP_TYPE)?;
    Ok(matches!(domain, "" | "ai.onnx").then_some(op_type))
}

/// Tensors whose only use is to be the target shape of Reshape nodes that take a 0 as "the size that is there": by their
/// name, what these nodes make.
pub(crate) fn reshapes(bytes: &[u8]) -> Result<HashMap<&str, Vec<&str>>, String> {
    let graph = graph(bytes)?;
    let (mut targets, mut others) = (HashMap::<_, Vec<_>>::new(), HashSet::new());
    for output in messages(bytes, graph.body.clone(), tag::GRAPH_OUTPUT)? {
        others.insert(text(bytes, output.body, tag::VALUE_NAME)?);
    }
    for node in messages(bytes, graph.body, tag::GRAPH_NODE)? {
        let reshapes = standard_operator(bytes, node.body.clone())? == Some("Reshape")
            && !has_allow_zero(bytes, node.body.clone())?;
        for (position, input) in messages(bytes, node.body.clone(), tag::NODE_INPUT)?.into_iter().enumerate() {
            let name = std::str::from_utf8(&bytes[input.body]).map_err(|_| MALFORMED)?;
            if reshapes && position == 1 {
                targets.entry(name).or_default().push(text(bytes, node.body.clone(), tag::NODE_OUTPUT)?);
            } else {
                others.insert(name);
            }
        }
    }
    targets.retain(|name, _| !others.contains(name));
    Ok(targets)
}

fn has_allow_zero(bytes: &[u8], node: Range<usize>) -> Result<bool, String> {
    for attribute in messages(bytes, node, tag::NODE_ATTRIBUTE)? {
        if text(bytes, attribute.body.clone(), tag::ATTRIBUTE_NAME)? == "allowzero" {
            return Ok(wire::numbers(bytes, attribute.body, tag::ATTRIBUTE_INT)?
                .last()
                .is_some_and(|&value| value != 0));
        }
    }
    Ok(false)
}

/// Edits the dimensions that an input or output declares: `edit` is given each one's position and size, and gives the new
/// body of its message.
fn edit_dims(
    patch: &mut Patch<'_>,
    bytes: &[u8],
    value: &Field,
    edit: impl Fn(usize, Option<i64>) -> Option<Vec<u8>>,
) -> Result<(), String> {
    let only = |range: Range<usize>, number| -> Result<Option<Field>, String> {
        Ok(messages(bytes, range, number)?.into_iter().next())
    };
    let Some(kind) = only(value.body.clone(), tag::VALUE_TYPE)? else { return Ok(()) };
    let Some(tensor) = only(kind.body.clone(), tag::TYPE_TENSOR)? else { return Ok(()) };
    let Some(shape) = only(tensor.body.clone(), tag::TENSOR_TYPE_SHAPE)? else { return Ok(()) };
    patch.inside(value, |patch| {
        patch.inside(&kind, |patch| {
            patch.inside(&tensor, |patch| {
                patch.inside(&shape, |patch| {
                    for (index, dim) in messages(bytes, shape.body.clone(), tag::SHAPE_DIM)?.iter().enumerate() {
                        let size = wire::numbers(bytes, dim.body.clone(), tag::DIM_VALUE)?.last().copied();
                        if let Some(body) = edit(index, size) {
                            patch.replace(dim.whole.clone(), wire::message(tag::SHAPE_DIM, &body));
                        }
                    }
                    Ok(())
                })
            })
        })
    })
}

/// What to write in place of the numbers that are written: `None` to leave them.
type Loosen<'a> = &'a dyn Fn(&[i64]) -> Option<Vec<i64>>;

/// Edits the numbers that a Constant node makes.
fn edit_constant(patch: &mut Patch<'_>, bytes: &[u8], node: &Field, loosen: Loosen<'_>) -> Result<(), String> {
    patch.inside(node, |patch| {
        for attribute in &messages(bytes, node.body.clone(), tag::NODE_ATTRIBUTE)? {
            match text(bytes, attribute.body.clone(), tag::ATTRIBUTE_NAME)? {
                "value" => patch.inside(attribute, |patch| {
                    for tensor in &messages(bytes, attribute.body.clone(), tag::ATTRIBUTE_TENSOR)? {
                        patch.inside(tensor, |patch| edit_tensor(patch, bytes, tensor.body.clone(), loosen))?;
                    }
                    Ok(())
                })?,
                "value_ints" => patch.inside(attribute, |patch| {
                    edit_numbers(patch, bytes, attribute.body.clone(), tag::ATTRIBUTE_INTS, loosen)
                })?,
                _ => {}
            }
        }
        Ok(())
    })
}

/// Edits the numbers in the int64 tensor at `range`.
fn edit_tensor(patch: &mut Patch<'_>, bytes: &[u8], range: Range<usize>, loosen: Loosen<'_>) -> Result<(), String> {
    if wire::numbers(bytes, range.clone(), tag::TENSOR_DATA_TYPE)?.last() != Some(&INT64) {
        return Ok(());
    }
    edit_numbers(patch, bytes, range.clone(), tag::TENSOR_INT64_DATA, loosen)?;
    if let [raw] = &messages(bytes, range, tag::TENSOR_RAW_DATA)?[..] {
        let (values, []) = bytes[raw.body.clone()].as_chunks::<8>() else { return Ok(()) };
        let values: Vec<_> = values.iter().map(|value| i64::from_le_bytes(*value)).collect();
        if let Some(values) = loosen(&values) {
            patch.replace(raw.body.clone(), values.into_iter().flat_map(i64::to_le_bytes).collect());
        }
    }
    Ok(())
}

/// Edits the numbers that stand in the fields with this number.
fn edit_numbers(
    patch: &mut Patch<'_>,
    bytes: &[u8],
    range: Range<usize>,
    number: u64,
    loosen: Loosen<'_>,
) -> Result<(), String> {
    let Some(values) = loosen(&wire::numbers(bytes, range.clone(), number)?) else { return Ok(()) };
    for field in wire::fields(bytes, range.clone())?.into_iter().filter(|field| field.number == number) {
        patch.replace(field.whole, Vec::new());
    }
    let packed: Vec<_> = values.into_iter().flat_map(|value| wire::written(value as u64)).collect();
    patch.replace(range.end..range.end, wire::message(number, &packed));
    Ok(())
}

/// The target of a Reshape with its batch of 1 loosened to "whatever is left" (-1), and all other sizes as they come to for one
/// row. `None` where no axis looks like a batch, or where the batch is left open already.
fn loosened(written: &[i64], target: &[i64], reshape_axis: usize) -> Option<Vec<i64>> {
    let axis = match target {
        [1, 1, ..] => reshape_axis,
        [1, ..] => 0,
        // States of recurrent layers: [layers, batch, width].
        [_, 1, _, ..] => 1,
        _ => return None,
    };
    let open = written.iter().zip(target).any(|(&written, &target)| written < 0 && target == 1);
    if open || written.len() != target.len() {
        return None;
    }
    let mut target = target.to_vec();
    target[axis] = -1;
    Some(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_loosened_where_they_hold_a_batch_of_one() {
        for (written, target, axis, expected) in [
            (&[1, 48][..], &[1, 48][..], 0, Some(&[-1, 48][..])),
            (&[1, -1], &[1, 48], 0, Some(&[-1, 48])),
            (&[0, -1], &[1, 48], 0, Some(&[-1, 48])),
            (&[1, 1, 64], &[1, 1, 64], 0, Some(&[-1, 1, 64])),
            (&[1, 1, -1], &[1, 1, 64], 1, Some(&[1, -1, 64])),
            (&[2, 1, 64], &[2, 1, 64], 0, Some(&[2, -1, 64])),
            (&[1], &[1], 0, Some(&[-1])),
            (&[-1, 1], &[1, 1], 0, None),
            (&[-1, 1, 64], &[1, 1, 64], 1, None),
            (&[12, 1], &[12, 1], 0, None),
            (&[48], &[48], 0, None),
            (&[], &[], 0, None),
            (&[1, 2, 3], &[1, 6], 0, None),
        ] {
            assert_eq!(loosened(written, target, axis).as_deref(), expected, "{written:?}");
        }
    }
}
