//! What an ONNX file declares, read from the file's bytes without ONNX Runtime.

use std::collections::{BTreeMap, HashSet};

use ort::sys::ONNXTensorElementDataType;
use prost::Message;
use relevo_core::{
    policy::names_next_value,
    spec::{DType, Dim, TensorSpec},
};

use crate::{
    beside::known_name,
    mixing::{self, Meeting},
    proto::{AttributeProto, DimProto, GraphProto, InitializerProto, ModelProto, NodeProto, ValueInfoProto},
    widths::{self, Told},
};

/// Operators that draw random numbers, and take an attribute `seed`.
pub(crate) const RANDOM_OPS: [&str; 6] =
    ["RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"];

/// The element type of texts in ONNX files.
const STRING: i32 = 8;
/// The key under which `relevo.export` writes what it knows of a policy.
const DECLARED: &str = "relevo.json";

/// Operators that take a way, or go on, by a number.
const STEERING_OPS: [&str; 2] = ["If", "Loop"];

/// The element types that Relevo takes. ONNX Runtime numbers them as ONNX files do.
const ELEMENT_TYPES: [(ONNXTensorElementDataType, DType); 12] = [
    (ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL, DType::Bool),
    (ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, DType::UInt8),
    (ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8, DType::Int8),
    (ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16, DType::UInt16),
    (ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16, DType::Int16),
    (ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32, DType::UInt32),
    (ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, DType::Int32),
    (ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64, DType::UInt64),
    (ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, DType::Int64),
    (ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, DType::Float16),
    (ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, DType::Float32),
    (ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, DType::Float64),
];

/// What a file declares of itself.
#[derive(Debug)]
pub(crate) struct Declaration {
    /// Inputs that a caller must give: those without a default value, and memory, which may begin with one.
    pub(crate) inputs: Vec<TensorSpec>,
    /// Outputs, in the file's order; what is no tensor of numbers is left out where others are.
    pub(crate) outputs: Vec<TensorSpec>,
    /// What a user may miss of it, in sentences.
    pub(crate) notes: Vec<String>,
    /// The tool that wrote the file, with its version.
    pub(crate) producer: String,
    /// What `relevo.export` wrote into it.
    pub(crate) declared: String,
    /// Random operators inside, subgraphs and functions included, each once.
    pub(crate) random_ops: Vec<String>,
    /// Why made-up inputs cannot show that the graph keeps the rows of a batch apart.
    pub(crate) batch_obstacle: Option<String>,
    /// The operator, where a branch or a loop is steered by the numbers that come: by those of all rows at once.
    pub(crate) steered: Option<String>,
    /// Tensors in which rows of a batch may meet.
    pub(crate) meetings: Vec<Meeting>,
    /// Whether it holds a loop, which may have no end.
    pub(crate) loops: bool,
    /// Sizes of inputs that weights tell.
    pub(crate) widths: Vec<Told>,
    /// Files beside this one that hold weights, each with the bytes that it must have at least.
    pub(crate) weight_files: BTreeMap<String, u64>,
}

impl Declaration {
    /// Reads the bytes of an ONNX file. The error says what is wrong with it and what to do.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, String> {
        if bytes.is_empty() {
            return Err("the file is empty; export the model again".into());
        }
        if let Some(other) = other_format(bytes) {
            return Err(other.into());
        }
        let model = ModelProto::decode(bytes).map_err(|error| {
            format!("it is not an ONNX file, or is cut short ({error}); copy the file or export the model again")
        })?;
        let graph = model.graph.ok_or("it is not an ONNX model: it holds no graph; export the model again")?;
        graph.check_outputs()?;
        let mut random_ops = Vec::new();
        graph.collect_random_ops(&mut random_ops);
        model.functions.iter().for_each(|function| collect_random_ops(&function.nodes, &mut random_ops));
        let batch_obstacle = if let Some(op) = random_ops.first() {
            Some(format!("it draws random numbers ({op}), so no two runs can be compared"))
        } else {
            let mut nodes = graph.nodes.iter();
            let node = nodes.find(|node| node.attributes.iter().any(AttributeProto::holds_graph));
            node.map(|node| format!("it holds control flow ({}), which decides for all rows at once", node.op_type))
        };
        let mut tensors = Vec::new();
        graph.tensors(&mut tensors);
        model.functions.iter().for_each(|function| tensors_of(&function.nodes, &mut tensors));
        let defaults = graph.initializer_names();
        let given = graph.inputs.iter().filter(|input| !defaults.contains(&*input.name) || graph.is_memory(input));
        let in_function = || {
            let nodes = model.functions.iter().flat_map(|function| &function.nodes);
            nodes.map(|node| &*node.op_type).find(|op| STEERING_OPS.contains(op))
        };
        let names = given.clone().map(|input| input.name.as_str());
        let steered = graph.steered(&mut names.collect()).or_else(in_function).map(str::to_owned);
        let inputs = given.map(|input| input.spec("input")).collect::<Result<Vec<_>, _>>()?;
        let is_numbers = |output: &&ValueInfoProto| output.is_no_numbers().is_none();
        let has_numbers = graph.outputs.iter().any(|output| is_numbers(&output));
        let outputs = graph.outputs.iter().filter(|output| !has_numbers || is_numbers(output));
        let outputs = outputs.map(|output| output.spec("output")).collect::<Result<_, _>>()?;
        let left_out = graph.outputs.iter().filter_map(|output| Some((&output.name, output.is_no_numbers()?)));
        let notes = left_out.map(|(name, what)| format!("the output `{name}` is left out: it is {what}")).collect();
        Ok(Self {
            loops: has_loop(&graph.nodes) || model.functions.iter().any(|function| has_loop(&function.nodes)),
            meetings: mixing::meetings(&graph, &inputs),
            widths: widths::told(&graph, &inputs),
            inputs,
            outputs,
            notes,
            declared: model
                .metadata
                .iter()
                .find(|entry| entry.key == DECLARED)
                .map(|entry| entry.value.clone())
                .unwrap_or_default(),
            producer: format!("{} {}", model.producer_name, model.producer_version).trim().into(),
            random_ops,
            batch_obstacle,
            steered,
            weight_files: weight_files(&tensors),
        })
    }
}

/// What a file is that begins like one of another format that people keep policies in, and what to do with it.
fn other_format(bytes: &[u8]) -> Option<&'static str> {
    let holds = |name: &[u8]| bytes.windows(name.len()).any(|window| window == name);
    match bytes {
        [b'P', b'K', 3, 4, ..] if holds(b"/code/") && holds(b"/data.pkl") => {
            Some("it is a TorchScript archive, not an ONNX file; name it .pt, so that relevo[torch] loads it")
        }
        [b'P', b'K', 3, 4, ..] if holds(b"/data.pkl") => Some(
            "it was written by torch.save, so it is a pickle, which is not read; export the module by relevo.export.to_onnx",
        ),
        [b'P', b'K', 3, 4, ..] => Some(
            "it is a zip archive, not an ONNX file; a model of Stable-Baselines3 is loaded by its own class, such as PPO.load, \
             and exported by relevo.export.to_onnx",
        ),
        [0x80, 2..=5, ..] => Some(
            "it is a pickle, which may run any code when it is read, and is not read; export the model by \
             relevo.export.to_onnx",
        ),
        [0x89, b'H', b'D', b'F', ..] => {
            Some("it is an HDF5 file, as Keras writes them, not an ONNX file; export the model by tf2onnx")
        }
        _ => None,
    }
}

/// ONNX Runtime's name for an element type.
pub(crate) fn element_type(dtype: DType) -> ONNXTensorElementDataType {
    let known = ELEMENT_TYPES.iter().find(|(_, known)| *known == dtype);
    known.map_or(ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED, |(element, _)| *element)
}

/// The element type that a file writes as `number`.
pub(crate) fn dtype(number: i32) -> Option<DType> {
    ELEMENT_TYPES.iter().find(|(element, _)| *element as i32 == number).map(|(_, dtype)| *dtype)
}

impl GraphProto {
    fn initializer_names(&self) -> HashSet<&str> {
        let sparse = self.sparse_initializers.iter().filter_map(|initializer| initializer.values.as_ref());
        self.initializers.iter().chain(sparse).map(|initializer| initializer.name.as_str()).collect()
    }

    /// Whether an input with a default value is memory: an output of its shape is called its next value.
    fn is_memory(&self, input: &ValueInfoProto) -> bool {
        let Ok(state) = input.spec("input") else { return false };
        let is_next = |output: &ValueInfoProto| {
            names_next_value(&input.name, &output.name)
                && output.spec("output").is_ok_and(|next| may_be_next(&state, &next))
        };
        self.outputs.iter().any(is_next)
    }

    /// All tensors in it, and in graphs inside it.
    fn tensors<'a>(&'a self, found: &mut Vec<&'a InitializerProto>) {
        found.extend(&self.initializers);
        tensors_of(&self.nodes, found);
    }

    /// Fails where nothing in the graph makes a declared output.
    fn check_outputs(&self) -> Result<(), String> {
        let mut made = self.initializer_names();
        made.extend(self.inputs.iter().map(|input| input.name.as_str()));
        made.extend(self.nodes.iter().flat_map(|node| &node.outputs).map(String::as_str));
        match self.outputs.iter().find(|output| !made.contains(output.name.as_str())) {
            None => Ok(()),
            Some(output) => Err(format!(
                "the graph output `{}` is not produced by any node of the file; re-export the model with a newer exporter, \
                 or take this output out of the file",
                output.name
            )),
        }
    }

    /// The first operator that is steered by a number that comes from outside. `known` are the names of what comes from outside;
    /// what is worked out from it is added. Shapes are none of it: batches of some sizes show what follows from those.
    fn steered<'a>(&'a self, known: &mut HashSet<&'a str>) -> Option<&'a str> {
        for node in &self.nodes {
            let op = node.op_type.as_str();
            let steers = if op == "If" { 1 } else { 2 };
            if STEERING_OPS.contains(&op) && node.inputs.iter().take(steers).any(|name| known.contains(name.as_str())) {
                return Some(op);
            }
            let mut comes_from_outside = RANDOM_OPS.contains(&op)
                || (!matches!(op, "Shape" | "Size") && node.inputs.iter().any(|name| known.contains(name.as_str())));
            for graph in node.attributes.iter().flat_map(|attribute| attribute.graph.iter().chain(&attribute.graphs)) {
                let mut inside = known.clone();
                // A loop's first inputs count and go on; the others change from turn to turn.
                let counters = if op == "Loop" { 2 } else { 0 };
                inside.extend(graph.inputs.iter().skip(counters).map(|input| input.name.as_str()));
                if let Some(op) = graph.steered(&mut inside) {
                    return Some(op);
                }
                let mut outputs = graph.outputs.iter().map(|output| inside.contains(output.name.as_str()));
                if op == "Loop" && outputs.next() == Some(true) {
                    return Some(op);
                }
                comes_from_outside |= outputs.any(|is_known| is_known);
            }
            if comes_from_outside {
                known.extend(node.outputs.iter().map(String::as_str));
            }
        }
        None
    }

    fn collect_random_ops(&self, found: &mut Vec<String>) {
        collect_random_ops(&self.nodes, found);
    }
}

impl NodeProto {
    pub(crate) fn attribute(&self, name: &str) -> Option<&AttributeProto> {
        self.attributes.iter().find(|attribute| attribute.name == name)
    }
}

impl InitializerProto {
    pub(crate) fn sizes(&self) -> Vec<usize> {
        self.dims.iter().map(|size| usize::try_from(*size).unwrap_or(0)).collect()
    }
}

impl AttributeProto {
    pub(crate) fn holds_graph(&self) -> bool {
        self.graph.is_some() || !self.graphs.is_empty()
    }
}

/// Whether an output may be a state's next value by what both are declared as: rows of one type and shape.
pub(crate) fn may_be_next(state: &TensorSpec, next: &TensorSpec) -> bool {
    let alike = |(one, other): (&Dim, &Dim)| match (one, other) {
        (Dim::Fixed(one), Dim::Fixed(other)) => one == other,
        _ => true,
    };
    state.dtype == next.dtype
        && state.shape.len() == next.shape.len()
        && state.shape.len() > 1
        && state.shape.iter().any(|dim| matches!(dim, Dim::Dynamic(_) | Dim::Fixed(1)))
        && state.shape.iter().zip(&next.shape).all(alike)
}

fn tensors_of<'a>(nodes: &'a [NodeProto], found: &mut Vec<&'a InitializerProto>) {
    for attribute in nodes.iter().flat_map(|node| &node.attributes) {
        found.extend(&attribute.tensor);
        attribute.graph.iter().chain(&attribute.graphs).for_each(|graph| graph.tensors(found));
    }
}

/// The files that hold numbers of these tensors, each with the bytes that it must have at least.
fn weight_files(tensors: &[&InitializerProto]) -> BTreeMap<String, u64> {
    let mut files = BTreeMap::new();
    for tensor in tensors.iter().filter(|tensor| tensor.data_location == 1) {
        let entry = |key| tensor.external_data.iter().find(|entry| entry.key == key).map(|entry| &*entry.value);
        let number = |key| entry(key).and_then(|value| value.parse().ok()).unwrap_or(0_u64);
        let end = number("offset").saturating_add(number("length"));
        let name = known_name(entry("location").unwrap_or_default());
        let known = files.entry(name.to_owned()).or_insert(end);
        *known = end.max(*known);
    }
    files
}

fn has_loop(nodes: &[NodeProto]) -> bool {
    let inside = |node: &NodeProto| {
        let mut graphs = node.attributes.iter().flat_map(|attribute| attribute.graph.iter().chain(&attribute.graphs));
        graphs.any(|graph| has_loop(&graph.nodes))
    };
    nodes.iter().any(|node| node.op_type == "Loop" || inside(node))
}

fn collect_random_ops(nodes: &[NodeProto], found: &mut Vec<String>) {
    for node in nodes {
        let standard = matches!(node.domain.as_str(), "" | "ai.onnx");
        if standard && RANDOM_OPS.contains(&node.op_type.as_str()) && !found.contains(&node.op_type) {
            found.push(node.op_type.clone());
        }
        for graph in node.attributes.iter().flat_map(|attribute| attribute.graph.iter().chain(&attribute.graphs)) {
            graph.collect_random_ops(found);
        }
    }
}

impl ValueInfoProto {
    /// The declaration as a spec; `role` is `"input"` or `"output"`.
    fn spec(&self, role: &str) -> Result<TensorSpec, String> {
        let name = &self.name;
        let tensor = self.kind.as_ref().and_then(|kind| kind.tensor.as_ref()).ok_or_else(|| {
            format!("its {role} `{name}` is not declared as a dense tensor; export the model with plain tensors")
        })?;
        let dtype = dtype(tensor.element_type).ok_or_else(|| {
            format!(
                "its {role} `{name}` has ONNX element type {} ({}), which Relevo does not take; export it as a number type \
                 such as float32",
                tensor.element_type,
                element_type_name(tensor.element_type)
            )
        })?;
        let dims = tensor.shape.iter().flat_map(|shape| &shape.dims);
        Ok(TensorSpec { name: name.clone(), dtype, shape: dims.map(DimProto::dim).collect() })
    }

    /// What the value is, where no tensor of numbers can hold it.
    fn is_no_numbers(&self) -> Option<&'static str> {
        match self.kind.as_ref().map(|kind| kind.tensor.as_ref()) {
            Some(Some(tensor)) => (tensor.element_type == STRING).then_some("texts"),
            Some(None) => Some("no tensor, but a sequence or a map"),
            None => None,
        }
    }
}

/// A word for the commonest element types that are refused.
fn element_type_name(number: i32) -> &'static str {
    match number {
        0 => "undefined",
        8 => "string",
        14 => "complex64",
        15 => "complex128",
        16 => "bfloat16",
        17..=20 => "an 8-bit float",
        _ => "another type",
    }
}

impl DimProto {
    fn dim(&self) -> Dim {
        // Some exporters write -1 for "any size".
        match self.value.map(usize::try_from) {
            Some(Ok(size)) => Dim::Fixed(size),
            _ => Dim::Dynamic(self.name.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{EntryProto, FunctionProto, ShapeProto, TensorTypeProto, TypeProto};

    fn node(op_type: &str, outputs: &[&str], attributes: Vec<AttributeProto>) -> NodeProto {
        let outputs = outputs.iter().map(ToString::to_string).collect();
        NodeProto { inputs: vec![], outputs, op_type: op_type.into(), attributes, domain: String::new() }
    }

    fn value(name: &str) -> ValueInfoProto {
        let dims = vec![
            DimProto { value: None, name: "batch".into() },
            DimProto { value: Some(-1), name: String::new() },
            DimProto { value: Some(3), name: String::new() },
        ];
        let tensor = TensorTypeProto { element_type: 1, shape: Some(ShapeProto { dims }) };
        ValueInfoProto { name: name.into(), kind: Some(TypeProto { tensor: Some(tensor) }) }
    }

    fn read(graph: GraphProto, functions: Vec<FunctionProto>) -> Result<Declaration, String> {
        let (producer_name, producer_version) = ("tool".into(), String::new());
        let entry = EntryProto { key: DECLARED.into(), value: "{}".into() };
        let metadata = vec![EntryProto::default(), entry];
        let model = ModelProto { producer_name, producer_version, graph: Some(graph), functions, metadata };
        Declaration::read(&model.encode_to_vec())
    }

    #[test]
    fn inputs_with_a_default_are_not_asked_for() {
        let graph = GraphProto {
            nodes: vec![node("Add", &["y"], vec![])],
            initializers: vec![InitializerProto { name: "w".into(), ..InitializerProto::default() }],
            inputs: vec![value("x"), value("w")],
            outputs: vec![value("y"), value("w")],
            ..GraphProto::default()
        };
        let declaration = read(graph, vec![]).unwrap();
        let names = |specs: &[TensorSpec]| specs.iter().map(|spec| spec.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&declaration.inputs), ["x"]);
        assert_eq!(names(&declaration.outputs), ["y", "w"]);
        assert_eq!((&*declaration.producer, &*declaration.declared), ("tool", "{}"));
        let shape = [Dim::Dynamic("batch".into()), Dim::Dynamic(String::new()), Dim::Fixed(3)];
        assert_eq!(declaration.inputs[0].shape, shape);
    }

    #[test]
    fn random_operators_are_found_in_subgraphs_and_functions() {
        let inner = GraphProto { nodes: vec![node("Multinomial", &["a"], vec![])], ..GraphProto::default() };
        let branch = AttributeProto { graph: Some(inner), ..AttributeProto::default() };
        let other = GraphProto { nodes: vec![node("RandomUniform", &["b"], vec![])], ..GraphProto::default() };
        let list = AttributeProto { graphs: vec![other], ..AttributeProto::default() };
        let foreign = NodeProto { domain: "my.domain".into(), ..node("RandomNormal", &["c"], vec![]) };
        let graph = GraphProto {
            nodes: vec![node("If", &["d"], vec![branch, list]), node("Multinomial", &["e"], vec![]), foreign],
            ..GraphProto::default()
        };
        let function = FunctionProto { nodes: vec![node("Bernoulli", &["f"], vec![])] };
        let declaration = read(graph, vec![function]).unwrap();
        assert_eq!(declaration.random_ops, ["Multinomial", "RandomUniform", "Bernoulli"]);
    }

    /// The operator that is steered, in a graph of these nodes that takes `x`, and has a weight `w`.
    fn steered(nodes: &[(&str, &str, &str)], inside: &[(&str, &str, &str)]) -> Option<String> {
        let make = |(op, inputs, output): &(&str, &str, &str), attributes| {
            let inputs = inputs.split_whitespace().map(str::to_owned).collect();
            NodeProto { inputs, ..node(op, &[output], attributes) }
        };
        let last = |nodes: &[(&str, &str, &str)]| vec![value(nodes.last().map_or("y", |node| node.2))];
        let branch = || GraphProto {
            nodes: inside.iter().map(|node| make(node, vec![])).collect(),
            inputs: if nodes.iter().any(|node| node.0 == "Loop") {
                ["turn", "on", "carried"].map(value).into()
            } else {
                vec![]
            },
            outputs: last(inside),
            ..GraphProto::default()
        };
        let attribute = |op: &str| match op {
            "If" | "Loop" => vec![AttributeProto { graph: Some(branch()), ..AttributeProto::default() }],
            _ => vec![],
        };
        let graph = GraphProto {
            nodes: nodes.iter().map(|node| make(node, attribute(node.0))).collect(),
            initializers: vec![InitializerProto { name: "w".into(), ..InitializerProto::default() }],
            inputs: vec![value("x"), value("w")],
            outputs: last(nodes),
            ..GraphProto::default()
        };
        read(graph, vec![]).unwrap().steered
    }

    #[test]
    fn branches_and_loops_on_numbers_that_come_are_told_from_others() {
        let free = [("Identity", "w", "r")];
        let found = |op: &str| Some(op.to_owned());
        assert_eq!(steered(&[("ReduceMax", "x", "m"), ("Greater", "m w", "c"), ("If", "c", "y")], &free), found("If"));
        assert_eq!(steered(&[("Greater", "w w", "c"), ("If", "c", "y")], &free), None);
        // As torch writes a squeeze of a dynamic axis.
        assert_eq!(steered(&[("Shape", "x", "s"), ("Equal", "s w", "c"), ("If", "c", "y")], &free), None);
        assert_eq!(steered(&[("Loop", "w w x", "y")], &[("Identity", "on", "r")]), None);
        assert_eq!(steered(&[("Cast", "x", "n"), ("Loop", "n w x", "y")], &free), found("Loop"));
        assert_eq!(steered(&[("Loop", "w w x", "y")], &[("Less", "carried w", "r")]), found("Loop"));
        assert_eq!(steered(&[("Bernoulli", "w", "c"), ("If", "c", "y")], &free), found("If"));
        // What a branch gives comes from outside where it looks at that.
        let seen = [("If", "w", "b"), ("If", "b", "y")];
        assert_eq!(steered(&seen, &[("Neg", "x", "r")]), found("If"));
        assert_eq!(steered(&seen, &[("Neg", "w", "r")]), None);
    }

    #[test]
    fn an_output_that_nothing_makes_is_named() {
        let graph = GraphProto { outputs: vec![value("lost")], ..GraphProto::default() };
        assert!(read(graph, vec![]).unwrap_err().contains("`lost` is not produced"));
    }
}
