//! Functions that a file defines, written out where they are called: what looks at the graph then sees what they do.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
};

use crate::{
    rewrite::tag,
    wire::{self, Field, messages, text},
};

/// Functions within functions are followed this deep.
const MOST_DEPTH: usize = 32;

/// What is written in place of calls may not be longer than this: functions that call functions grow fast.
const MOST_BYTES: usize = 64 << 20;

/// The file with every call of a function of its own written out; `None` where it defines none.
///
/// # Errors
/// Why that cannot be done. The file may be good all the same.
pub(crate) fn inlined(bytes: &[u8]) -> Result<Option<Vec<u8>>, String> {
    let mut functions = HashMap::new();
    for function in messages(bytes, 0..bytes.len(), tag::MODEL_FUNCTION)? {
        let function = Function::read(bytes, &function)?;
        functions.insert(function.id, function);
    }
    if functions.is_empty() {
        return Ok(None);
    }
    let opsets = opsets(bytes, 0..bytes.len(), tag::MODEL_OPSET)?;
    let mut writer = Writer { bytes, functions, opsets, added: Vec::new(), calls: 0, written: 0 };
    let mut model = Vec::with_capacity(bytes.len());
    for field in wire::fields(bytes, 0..bytes.len())? {
        match field.number {
            tag::MODEL_FUNCTION => {}
            tag::MODEL_GRAPH if field.has_length() => {
                let graph = writer.graph(&bytes[field.body], &Scope::default())?;
                model.extend(wire::message(tag::MODEL_GRAPH, &graph));
            }
            _ => model.extend_from_slice(&bytes[field.whole]),
        }
    }
    model.extend(writer.added);
    Ok(Some(model))
}

/// Domain, name and overload: what a node calls a function by.
type Id<'a> = (&'a str, &'a str, &'a str);

struct Function<'a> {
    id: Id<'a>,
    inputs: Vec<&'a str>,
    outputs: Vec<&'a str>,
    nodes: Vec<Field>,
    /// Attributes that a call may leave out, by name.
    defaults: HashMap<&'a str, &'a [u8]>,
    opsets: BTreeMap<&'a str, i64>,
}

impl<'a> Function<'a> {
    fn read(bytes: &'a [u8], function: &Field) -> Result<Self, String> {
        let of = |number| text(bytes, function.body.clone(), number);
        Ok(Self {
            id: (of(tag::FUNCTION_DOMAIN)?, of(tag::FUNCTION_NAME)?, of(tag::FUNCTION_OVERLOAD)?),
            inputs: texts(bytes, function.body.clone(), tag::FUNCTION_INPUT)?,
            outputs: texts(bytes, function.body.clone(), tag::FUNCTION_OUTPUT)?,
            nodes: messages(bytes, function.body.clone(), tag::FUNCTION_NODE)?,
            defaults: attributes(bytes, function.body.clone(), tag::FUNCTION_DEFAULT)?,
            opsets: opsets(bytes, function.body.clone(), tag::FUNCTION_OPSET)?,
        })
    }
}

/// What names and attributes in a function's nodes stand for. Without a prefix: the graph itself, where all names stay.
#[derive(Default)]
struct Scope<'s> {
    prefix: Option<String>,
    names: HashMap<&'s str, &'s str>,
    attributes: HashMap<&'s str, &'s [u8]>,
}

impl Scope<'_> {
    fn name(&self, name: &[u8]) -> Vec<u8> {
        let Some(prefix) = self.prefix.as_ref().filter(|_| !name.is_empty()) else { return name.into() };
        match std::str::from_utf8(name).ok().and_then(|name| self.names.get(name)) {
            Some(name) => name.as_bytes().into(),
            None => [prefix.as_bytes(), name].concat(),
        }
    }
}

struct Writer<'a> {
    bytes: &'a [u8],
    functions: HashMap<Id<'a>, Function<'a>>,
    /// Versions of the operators that the file takes, by domain.
    opsets: BTreeMap<&'a str, i64>,
    /// Those that functions take beside them, as fields of the model.
    added: Vec<u8>,
    calls: usize,
    written: usize,
}

impl<'a> Writer<'a> {
    /// A graph with its names as `scope` has them, and without calls.
    fn graph(&mut self, graph: &[u8], scope: &Scope<'_>) -> Result<Vec<u8>, String> {
        let mut written = Vec::with_capacity(graph.len());
        for field in wire::fields(graph, 0..graph.len())? {
            let renamed = |number| renamed(graph, &field, number, scope);
            match field.number {
                tag::GRAPH_NODE if field.has_length() => self.node(&graph[field.body], scope, 0, &mut written)?,
                tag::GRAPH_INITIALIZER => written.extend(renamed(tag::TENSOR_NAME)?),
                tag::GRAPH_INPUT | tag::GRAPH_OUTPUT | tag::GRAPH_VALUE_INFO => {
                    written.extend(renamed(tag::VALUE_NAME)?);
                }
                _ => written.extend_from_slice(&graph[field.whole]),
            }
        }
        Ok(written)
    }

    /// Writes a node, or what the function does that it calls, as fields of a graph.
    fn node(&mut self, node: &[u8], scope: &Scope<'_>, depth: usize, written: &mut Vec<u8>) -> Result<(), String> {
        let mut made = Vec::with_capacity(node.len());
        for field in wire::fields(node, 0..node.len())? {
            match field.number {
                tag::NODE_INPUT | tag::NODE_OUTPUT => {
                    made.extend(wire::message(field.number, &scope.name(&node[field.body])));
                }
                tag::NODE_ATTRIBUTE if field.has_length() => {
                    if let Some(attribute) = self.attribute(&node[field.body], scope)? {
                        made.extend(wire::message(tag::NODE_ATTRIBUTE, &attribute));
                    }
                }
                _ => made.extend_from_slice(&node[field.whole]),
            }
        }
        let of = |number| text(&made, 0..made.len(), number);
        let id = (of(tag::NODE_DOMAIN)?, of(tag::NODE_OP_TYPE)?, of(tag::NODE_OVERLOAD)?);
        if self.functions.contains_key(&id) {
            return self.call(id, &made, depth + 1, written);
        }
        self.written += made.len();
        if scope.prefix.is_some() && self.written > MOST_BYTES {
            return Err("its functions come to too much when they are written out".into());
        }
        written.extend(wire::message(tag::GRAPH_NODE, &made));
        Ok(())
    }

    /// An attribute of a node; one that stands for an attribute of the call is that one, under its own name. `None` where the call
    /// leaves it out.
    fn attribute(&mut self, attribute: &[u8], scope: &Scope<'_>) -> Result<Option<Vec<u8>>, String> {
        let all = 0..attribute.len();
        let referred = text(attribute, all.clone(), tag::ATTRIBUTE_REFERENCE)?;
        if !referred.is_empty() && scope.prefix.is_some() {
            let Some(given) = scope.attributes.get(referred) else { return Ok(None) };
            let name = text(attribute, all, tag::ATTRIBUTE_NAME)?;
            let mut made = wire::message(tag::ATTRIBUTE_NAME, name.as_bytes());
            for field in wire::fields(given, 0..given.len())? {
                if field.number != tag::ATTRIBUTE_NAME {
                    made.extend_from_slice(&given[field.whole]);
                }
            }
            return Ok(Some(made));
        }
        let mut made = Vec::with_capacity(attribute.len());
        for field in wire::fields(attribute, all)? {
            match field.number {
                tag::ATTRIBUTE_GRAPH | tag::ATTRIBUTE_GRAPHS if field.has_length() => {
                    made.extend(wire::message(field.number, &self.graph(&attribute[field.body], scope)?));
                }
                _ => made.extend_from_slice(&attribute[field.whole]),
            }
        }
        Ok(Some(made))
    }

    /// Writes what the function `id` does for the node `call`.
    fn call(&mut self, id: Id<'_>, call: &[u8], depth: usize, written: &mut Vec<u8>) -> Result<(), String> {
        let (domain, name, overload) = id;
        let Some((_, function)) = self.functions.get_key_value(&(domain, name, overload)) else { return Ok(()) };
        if depth > MOST_DEPTH {
            return Err(format!("its function `{name}` calls itself, or too many others"));
        }
        let (inputs, outputs) =
            (texts(call, 0..call.len(), tag::NODE_INPUT)?, texts(call, 0..call.len(), tag::NODE_OUTPUT)?);
        let missing = std::iter::repeat("");
        let mut scope = Scope { prefix: Some(format!("{name}#{}/", self.calls)), ..Scope::default() };
        scope.names.extend(function.inputs.iter().copied().zip(inputs.into_iter().chain(missing)));
        for (formal, actual) in function.outputs.iter().zip(outputs).filter(|(_, actual)| !actual.is_empty()) {
            if scope.names.insert(formal, actual).is_some() {
                return Err(format!("its function `{name}` hands an input on as an output"));
            }
        }
        scope.attributes.extend(function.defaults.iter().map(|(name, attribute)| (*name, *attribute)));
        scope.attributes.extend(attributes(call, 0..call.len(), tag::NODE_ATTRIBUTE)?);
        for (domain, version) in &function.opsets {
            match self.opsets.get(domain) {
                Some(known) if known != version => {
                    return Err(format!(
                        "its function `{name}` is written for other versions of operators than the file"
                    ));
                }
                Some(_) => {}
                None => {
                    self.opsets.insert(domain, *version);
                    let domain = wire::message(tag::OPSET_DOMAIN, domain.as_bytes());
                    let opset = [domain, wire::number(tag::OPSET_VERSION, *version as u64)].concat();
                    self.added.extend(wire::message(tag::MODEL_OPSET, &opset));
                }
            }
        }
        self.calls += 1;
        let nodes: Vec<_> = function.nodes.iter().map(|node| node.body.clone()).collect();
        let bytes: &'a [u8] = self.bytes;
        nodes.into_iter().try_for_each(|node| self.node(&bytes[node], &scope, depth, written))
    }
}

/// A message with the text in its field `number` renamed, as the field that it is.
fn renamed(bytes: &[u8], message: &Field, number: u64, scope: &Scope<'_>) -> Result<Vec<u8>, String> {
    let mut made = Vec::with_capacity(message.body.len());
    for field in wire::fields(bytes, message.body.clone())? {
        if field.number == number && field.has_length() {
            made.extend(wire::message(number, &scope.name(&bytes[field.body])));
        } else {
            made.extend_from_slice(&bytes[field.whole]);
        }
    }
    Ok(wire::message(message.number, &made))
}

fn texts(bytes: &[u8], message: Range<usize>, number: u64) -> Result<Vec<&str>, String> {
    let text = |field: Field| std::str::from_utf8(&bytes[field.body]).map_err(|_| wire::MALFORMED.into());
    messages(bytes, message, number)?.into_iter().map(text).collect()
}

fn attributes(bytes: &[u8], message: Range<usize>, number: u64) -> Result<HashMap<&str, &[u8]>, String> {
    let named = |field: Field| Ok((text(bytes, field.body.clone(), tag::ATTRIBUTE_NAME)?, &bytes[field.body]));
    messages(bytes, message, number)?.into_iter().map(named).collect()
}

/// Versions by domain; ONNX's own has no name.
fn opsets(bytes: &[u8], message: Range<usize>, number: u64) -> Result<BTreeMap<&str, i64>, String> {
    let opset = |field: Field| {
        let version = wire::numbers(bytes, field.body.clone(), tag::OPSET_VERSION)?.last().copied().unwrap_or(0);
        let domain = text(bytes, field.body, tag::OPSET_DOMAIN)?;
        Ok((if domain == "ai.onnx" { "" } else { domain }, version))
    };
    messages(bytes, message, number)?.into_iter().map(opset).collect()
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::{
        proto::ModelProto,
        wire::{message, number},
    };

    fn node(domain: &str, op: &str, inputs: &[&str], outputs: &[&str], rest: &[u8]) -> Vec<u8> {
        let names = |number, names: &[&str]| names.iter().flat_map(|name| message(number, name.as_bytes())).collect();
        let parts: [Vec<u8>; 4] = [
            names(tag::NODE_INPUT, inputs),
            names(tag::NODE_OUTPUT, outputs),
            message(tag::NODE_OP_TYPE, op.as_bytes()),
            message(tag::NODE_DOMAIN, domain.as_bytes()),
        ];
        [&parts.concat(), rest].concat()
    }

    fn function(name: &str, inputs: &[&str], outputs: &[&str], nodes: &[Vec<u8>], rest: &[u8]) -> Vec<u8> {
        let names = |number, names: &[&str]| names.iter().flat_map(|name| message(number, name.as_bytes())).collect();
        let parts: [Vec<u8>; 5] = [
            message(tag::FUNCTION_NAME, name.as_bytes()),
            message(tag::FUNCTION_DOMAIN, b"my"),
            names(tag::FUNCTION_INPUT, inputs),
            names(tag::FUNCTION_OUTPUT, outputs),
            nodes.iter().flat_map(|node| message(tag::FUNCTION_NODE, node)).collect(),
        ];
        message(tag::MODEL_FUNCTION, &[&parts.concat(), rest].concat())
    }

    fn opset(field: u64, version: u64) -> Vec<u8> {
        message(field, &number(tag::OPSET_VERSION, version))
    }

    fn file(nodes: &[Vec<u8>], functions: &[Vec<u8>]) -> Vec<u8> {
        let graph: Vec<u8> = nodes.iter().flat_map(|node| message(tag::GRAPH_NODE, node)).collect();
        [opset(tag::MODEL_OPSET, 17), message(tag::MODEL_GRAPH, &graph), functions.concat()].concat()
    }

    fn written_out(bytes: &[u8]) -> Vec<String> {
        let bytes = inlined(bytes).unwrap().unwrap();
        let model = ModelProto::decode(&*bytes).unwrap();
        assert!(model.functions.is_empty());
        let words = |node: &crate::proto::NodeProto| {
            format!("{} {} -> {}", node.op_type, node.inputs.join(" "), node.outputs.join(" "))
        };
        model.graph.unwrap().nodes.iter().map(words).collect()
    }

    #[test]
    fn calls_are_written_out_however_deep() {
        let inner = function(
            "Twice",
            &["a"],
            &["b"],
            &[node("", "Add", &["a", "a"], &["sum"], &[]), node("", "Neg", &["sum"], &["b"], &[])],
            &[],
        );
        let outer = function(
            "Four",
            &["x", "unused"],
            &["y"],
            &[node("my", "Twice", &["x"], &["half"], &[]), node("my", "Twice", &["half"], &["y"], &[])],
            &opset(tag::FUNCTION_OPSET, 17),
        );
        let bytes = file(&[node("my", "Four", &["obs"], &["action"], &[])], &[inner, outer]);
        assert_eq!(
            written_out(&bytes),
            [
                "Add obs obs -> Twice#1/sum",
                "Neg Twice#1/sum -> Four#0/half",
                "Add Four#0/half Four#0/half -> Twice#2/sum",
                "Neg Twice#2/sum -> action",
            ]
        );
    }

    #[test]
    fn attributes_are_those_of_the_call_or_the_defaults() {
        let named = |name: &str, rest: Vec<u8>| [message(tag::ATTRIBUTE_NAME, name.as_bytes()), rest].concat();
        let refers = |name: &str, to: &str| {
            message(tag::NODE_ATTRIBUTE, &named(name, message(tag::ATTRIBUTE_REFERENCE, to.as_bytes())))
        };
        let attributes = [refers("axis", "along"), refers("keepdims", "keep"), refers("other", "none")].concat();
        let body = node("", "ReduceMax", &["a"], &["b"], &attributes);
        let default = message(tag::FUNCTION_DEFAULT, &named("keep", number(tag::ATTRIBUTE_INT, 1)));
        let call = message(tag::NODE_ATTRIBUTE, &named("along", number(tag::ATTRIBUTE_INT, 3)));
        let bytes =
            file(&[node("my", "Max", &["x"], &["y"], &call)], &[function("Max", &["a"], &["b"], &[body], &default)]);
        let model = ModelProto::decode(&*inlined(&bytes).unwrap().unwrap()).unwrap();
        let node = &model.graph.unwrap().nodes[0];
        let found: Vec<_> = node.attributes.iter().map(|attribute| (&*attribute.name, attribute.int)).collect();
        assert_eq!(found, [("axis", 3), ("keepdims", 1)]);
    }

    #[test]
    fn names_inside_branches_are_followed() {
        let branch = message(tag::GRAPH_NODE, &node("", "Neg", &["a"], &["out"], &[]));
        let branch = [branch, message(tag::GRAPH_OUTPUT, &message(tag::VALUE_NAME, b"out"))].concat();
        let attribute = message(tag::NODE_ATTRIBUTE, &message(tag::ATTRIBUTE_GRAPH, &branch));
        let body = node("", "If", &["c"], &["b"], &attribute);
        let bytes =
            file(&[node("my", "F", &["x", "is"], &["y"], &[])], &[function("F", &["a", "c"], &["b"], &[body], &[])]);
        let model = ModelProto::decode(&*inlined(&bytes).unwrap().unwrap()).unwrap();
        let nodes = model.graph.unwrap().nodes;
        let inside = nodes[0].attributes[0].graph.as_ref().unwrap();
        assert_eq!((&*nodes[0].inputs[0], &*inside.nodes[0].inputs[0]), ("is", "x"));
        assert_eq!((&*inside.nodes[0].outputs[0], &*inside.outputs[0].name), ("F#0/out", "F#0/out"));
    }

    #[test]
    fn what_cannot_be_written_out_is_told() {
        let call = |name: &str| [node("my", name, &["x"], &["y"], &[])];
        let refused = |functions: &[Vec<u8>], name: &str| inlined(&file(&call(name), functions)).unwrap_err();
        let endless = function("F", &["a"], &["b"], &[node("my", "F", &["a"], &["b"], &[])], &[]);
        assert!(refused(&[endless], "F").contains("calls itself"));
        let old =
            function("F", &["a"], &["b"], &[node("", "Neg", &["a"], &["b"], &[])], &opset(tag::FUNCTION_OPSET, 9));
        assert!(refused(&[old], "F").contains("other versions"));
        let doubled = |depth: usize| {
            let to = format!("F{}", depth + 1);
            let nodes = ["b", "c"].map(|out| node("my", &to, &["a"], &[out], &[]));
            function(&format!("F{depth}"), &["a"], &["b"], &nodes, &[])
        };
        let mut functions: Vec<_> = (0..28).map(doubled).collect();
        functions.push(function("F28", &["a"], &["b"], &[node("", "Neg", &["a"], &["b"], &[])], &[]));
        assert!(refused(&functions, "F0").contains("too much"));
        assert_eq!(inlined(&file(&[node("", "Neg", &["x"], &["y"], &[])], &[])), Ok(None));
    }
}
