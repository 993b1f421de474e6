//! Widths that a file leaves open, as the weights tell them: a matrix that an input is multiplied by has a row for each of its numbers.
//!
//! A graph is followed from each input through operators that keep its shape to the weights that it meets there.

use std::collections::{BTreeSet, HashMap};

use relevo_core::spec::{Dim, TensorSpec, shape_text};

use crate::proto::{GraphProto, NodeProto};

/// Operators whose first output has the shape of their first input.
const KEEPING_OPS: [&str; 19] = [
    "Identity",
    "Cast",
    "Clip",
    "Dropout",
    "Relu",
    "Tanh",
    "Sigmoid",
    "Elu",
    "Neg",
    "Abs",
    "Sign",
    "Sqrt",
    "Exp",
    "Log",
    "QuantizeLinear",
    "DequantizeLinear",
    "LayerNormalization",
    "BatchNormalization",
    "InstanceNormalization",
];

/// Operators on two tensors, element by element.
const PAIRING_OPS: [&str; 7] = ["Add", "Sub", "Mul", "Div", "Pow", "Min", "Max"];

/// A size of an input that a weight tells: the axis, the size, and the weight's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Told {
    /// The input's name.
    pub(crate) input: String,
    /// Its axis.
    pub(crate) axis: usize,
    /// The size.
    pub(crate) size: usize,
    /// The weight.
    pub(crate) weight: String,
}

/// The sizes of `inputs` that the weights of a graph tell. An axis that is told several sizes has all of them.
pub(crate) fn told(graph: &GraphProto, inputs: &[TensorSpec]) -> Vec<Told> {
    let mut weights: HashMap<&str, Vec<usize>> = HashMap::new();
    for initializer in &graph.initializers {
        weights.insert(&initializer.name, initializer.sizes());
    }
    // Which input a tensor has the shape of.
    let mut of_input: HashMap<&str, usize> =
        inputs.iter().enumerate().map(|(at, spec)| (spec.name.as_str(), at)).collect();
    let mut told = Vec::new();
    for node in graph.nodes.iter().filter(|node| matches!(node.domain.as_str(), "" | "ai.onnx")) {
        let Some(output) = node.outputs.first() else { continue };
        if let Some(sizes) = made_weight(node, &weights) {
            weights.insert(output, sizes);
            continue;
        }
        for (place, name) in node.inputs.iter().enumerate() {
            let Some(&at) = of_input.get(name.as_str()) else { continue };
            let rank = inputs[at].shape.len();
            if let Some((axis, size, weight)) = meeting(node, place, rank, &weights) {
                let (input, weight) = (inputs[at].name.clone(), weight.to_owned());
                told.push(Told { input, axis, size, weight });
            }
            if keeps_shape(node, place, rank, &weights, |other| of_input.get(other) == Some(&at)) {
                of_input.insert(output, at);
            }
        }
    }
    told
}

/// Fills sizes that `inputs` leave open, but for the first axis, with those that weights tell without contradiction. Sizes of one
/// symbol are one size. Gives sentences that tell of it.
pub(crate) fn fill(inputs: &mut [TensorSpec], told: &[Told]) -> Vec<String> {
    let rows: BTreeSet<String> = inputs.iter().filter_map(|input| symbol(input.shape.first()?)).collect();
    let mut symbols: HashMap<String, usize> = HashMap::new();
    let mut notes = Vec::new();
    for input in inputs.iter_mut() {
        let mut weights = BTreeSet::new();
        for axis in 1..input.shape.len() {
            let Dim::Dynamic(name) = input.shape[axis].clone() else { continue };
            let of_axis = || told.iter().filter(|told| told.input == input.name && told.axis == axis);
            let sizes: BTreeSet<_> = of_axis().map(|told| told.size).collect();
            if sizes.len() != 1 || rows.contains(&name) {
                continue;
            }
            let Some(told) = of_axis().next() else { continue };
            input.shape[axis] = Dim::Fixed(told.size);
            weights.insert(format!("`{}`", told.weight));
            if !name.is_empty() {
                symbols.insert(name, told.size);
            }
        }
        if !weights.is_empty() {
            notes.push((input.name.clone(), weights.into_iter().collect::<Vec<_>>().join(" and ")));
        }
    }
    for input in inputs.iter_mut() {
        for dim in input.shape.iter_mut().skip(1) {
            if let Some(&size) = symbol(dim).and_then(|name| symbols.get(&name)) {
                *dim = Dim::Fixed(size);
            }
        }
    }
    let sentence = |(name, weights): (String, String)| {
        let input = inputs.iter().find(|input| input.name == name)?;
        let row: Option<Vec<_>> = input.shape[1..].iter().map(fixed).collect();
        let row = row.map_or_else(String::new, |row| format!(": a row of shape {}", shape_text(&row)));
        Some(format!("the file leaves sizes of `{name}` open, which its weight {weights} tells{row}"))
    };
    notes.into_iter().filter_map(sentence).collect()
}

/// The name of a size that is left open.
fn symbol(dim: &Dim) -> Option<String> {
    match dim {
        Dim::Dynamic(name) if !name.is_empty() => Some(name.clone()),
        _ => None,
    }
}

fn fixed(dim: &Dim) -> Option<usize> {
    match dim {
        Dim::Fixed(size) => Some(*size),
        Dim::Dynamic(_) => None,
    }
}

/// The sizes of a constant that this node makes of nothing, or of other weights.
fn made_weight(node: &NodeProto, weights: &HashMap<&str, Vec<usize>>) -> Option<Vec<usize>> {
    let first = || weights.get(node.inputs.first()?.as_str());
    match node.op_type.as_str() {
        "Constant" => Some(node.attribute("value")?.tensor.as_ref()?.sizes()),
        "Identity" | "Cast" | "DequantizeLinear" => first().cloned(),
        "Transpose" => {
            let sizes = first()?;
            match node.attribute("perm").map(|perm| &perm.ints[..]) {
                None | Some([]) => Some(sizes.iter().rev().copied().collect()),
                Some(perm) => perm.iter().map(|axis| sizes.get(usize::try_from(*axis).ok()?).copied()).collect(),
            }
        }
        _ => None,
    }
}

/// What a node tells of the tensor that it takes at `place`, which has `rank` axes: an axis, its size, and by which weight.
fn meeting<'a>(
    node: &'a NodeProto,
    place: usize,
    rank: usize,
    weights: &HashMap<&str, Vec<usize>>,
) -> Option<(usize, usize, &'a str)> {
    let weight = |at: usize| {
        let name = node.inputs.get(at)?.as_str();
        Some((name, weights.get(name)?))
    };
    let last = rank.checked_sub(1)?;
    let flag = |name: &str| node.attribute(name).map(|attribute| attribute.int);
    match (node.op_type.as_str(), place) {
        ("MatMul", 0) => {
            let (name, sizes) = weight(1)?;
            let axis = sizes.len().saturating_sub(2);
            Some((last, *sizes.get(axis)?, name))
        }
        ("Gemm", 0) if flag("transA").unwrap_or(0) == 0 => {
            let (name, sizes) = weight(1)?;
            Some((last, *sizes.get(usize::from(flag("transB").unwrap_or(0) != 0))?, name))
        }
        ("Conv", 0) => {
            let (name, sizes) = weight(1)?;
            let groups = usize::try_from(flag("group").unwrap_or(1)).ok()?;
            Some((1, sizes.get(1)?.checked_mul(groups)?, name))
        }
        ("LSTM" | "GRU" | "RNN", 0) => {
            let (name, sizes) = weight(1)?;
            Some((last, *sizes.get(2)?, name))
        }
        ("BatchNormalization" | "InstanceNormalization", 0) => {
            let (name, sizes) = weight(1)?;
            Some((1, *sizes.first()?, name))
        }
        ("LayerNormalization", 0) => {
            let (name, sizes) = weight(1)?;
            Some((last, *sizes.last()?, name))
        }
        (op, 0 | 1) if PAIRING_OPS.contains(&op) => {
            // One number for all is stretched, and tells nothing.
            let (name, sizes) = weight(1 - place)?;
            Some((last, *sizes.last().filter(|size| **size > 1)?, name))
        }
        _ => None,
    }
}

/// Whether what a node makes has the shape of the tensor that it takes at `place`.
fn keeps_shape(
    node: &NodeProto,
    place: usize,
    rank: usize,
    weights: &HashMap<&str, Vec<usize>>,
    is_like_it: impl Fn(&str) -> bool,
) -> bool {
    let op = node.op_type.as_str();
    match op {
        "Flatten" => {
            let axis = node.attribute("axis").map_or(1, |axis| axis.int);
            rank == 2 && axis == 1
        }
        _ if PAIRING_OPS.contains(&op) => node.inputs.iter().enumerate().all(|(at, other)| {
            let is_small = |sizes: &Vec<usize>| sizes.len() <= rank;
            at == place || is_like_it(other) || weights.get(other.as_str()).is_some_and(is_small)
        }),
        _ => place == 0 && KEEPING_OPS.contains(&op),
    }
}

#[cfg(test)]
mod tests {
    use relevo_core::spec::DType;

    use super::*;
    use crate::proto::{AttributeProto, InitializerProto};

    fn node(op_type: &str, inputs: &str, output: &str, attributes: &[(&str, i64)]) -> NodeProto {
        let attribute =
            |(name, int): &(&str, i64)| AttributeProto { name: (*name).into(), int: *int, ..AttributeProto::default() };
        NodeProto {
            inputs: inputs.split_whitespace().map(str::to_owned).collect(),
            outputs: vec![output.into()],
            op_type: op_type.into(),
            attributes: attributes.iter().map(attribute).collect(),
            domain: String::new(),
        }
    }

    fn input(name: &str, shape: &[&str]) -> TensorSpec {
        let dim = |size: &&str| size.parse().map_or_else(|_| Dim::Dynamic((*size).into()), Dim::Fixed);
        TensorSpec { name: name.into(), dtype: DType::Float32, shape: shape.iter().map(dim).collect() }
    }

    /// The shapes of inputs, with what weights of these sizes tell.
    fn filled(nodes: Vec<NodeProto>, weights: &[(&str, &[i64])], inputs: &[(&str, &[&str])]) -> Vec<String> {
        let initializer = |(name, dims): &(&str, &[i64])| InitializerProto {
            name: (*name).into(),
            dims: dims.to_vec(),
            ..InitializerProto::default()
        };
        let graph =
            GraphProto { nodes, initializers: weights.iter().map(initializer).collect(), ..GraphProto::default() };
        let mut inputs: Vec<_> = inputs.iter().map(|(name, shape)| input(name, shape)).collect();
        let told = told(&graph, &inputs);
        fill(&mut inputs, &told);
        let text = |input: &TensorSpec| input.shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        inputs.iter().map(text).collect()
    }

    #[test]
    fn weights_tell_widths() {
        let open: &[(&str, &[&str])] = &[("x", &["n", "d"])];
        for (nodes, weights) in [
            (vec![node("MatMul", "x w", "y", &[])], ("w", &[6, 3][..])),
            (vec![node("Gemm", "x w", "y", &[])], ("w", &[6, 3])),
            (vec![node("Gemm", "x w", "y", &[("transB", 1)])], ("w", &[3, 6])),
            (vec![node("Transpose", "w", "t", &[]), node("MatMul", "x t", "y", &[])], ("w", &[3, 6])),
            (vec![node("Sub", "x w", "y", &[])], ("w", &[6])),
            (vec![node("Mul", "w x", "y", &[])], ("w", &[1, 6])),
            (vec![node("LayerNormalization", "x w", "y", &[])], ("w", &[6])),
            (
                vec![
                    node("Cast", "x", "a", &[]),
                    node("Clip", "a low high", "b", &[]),
                    node("Flatten", "b", "c", &[]),
                    node("Mul", "c c", "d", &[]),
                    node("MatMul", "d w", "y", &[]),
                ],
                ("w", &[6, 3]),
            ),
        ] {
            let text = format!("{nodes:?}");
            assert_eq!(filled(nodes, &[weights], open), ["n 6"], "{text}");
        }
        let recurrent = node("LSTM", "x w r", "y", &[]);
        assert_eq!(filled(vec![recurrent], &[("w", &[1, 32, 6])], &[("x", &["1", "n", "d"])]), ["1 n 6"]);
    }

    #[test]
    fn images_have_their_channels_told() {
        let convolution = node("Conv", "x w", "y", &[("group", 2)]);
        assert_eq!(filled(vec![convolution], &[("w", &[8, 2, 3, 3])], &[("x", &["n", "c", "9", "9"])]), ["n 4 9 9"]);
    }

    #[test]
    fn a_symbol_has_one_size() {
        let nodes = vec![node("MatMul", "x w", "y", &[])];
        let inputs: &[(&str, &[&str])] = &[("x", &["n", "d"]), ("goal", &["n", "d"])];
        assert_eq!(filled(nodes, &[("w", &[6, 3])], inputs), ["n 6", "n 6"]);
    }

    #[test]
    fn what_is_not_clear_stays_open() {
        let open: &[(&str, &[&str])] = &[("x", &["n", "d"])];
        let two = vec![node("MatMul", "x v", "a", &[]), node("MatMul", "x w", "b", &[])];
        assert_eq!(filled(two, &[("v", &[5, 3]), ("w", &[6, 3])], open), ["n d"]);
        let joined = vec![node("Concat", "x x", "a", &[]), node("MatMul", "a w", "y", &[])];
        assert_eq!(filled(joined, &[("w", &[6, 3])], open), ["n d"]);
        let one_for_all = vec![node("Add", "x w", "y", &[])];
        assert_eq!(filled(one_for_all, &[("w", &[1])], open), ["n d"]);
        let product = || vec![node("MatMul", "x w", "y", &[])];
        assert_eq!(filled(product(), &[("w", &[6, 3])], &[("x", &["d"])]), ["d"]);
        assert_eq!(filled(product(), &[("w", &[6, 3])], &[("x", &["n", "t", "d"])]), ["n t 6"]);
    }
}
