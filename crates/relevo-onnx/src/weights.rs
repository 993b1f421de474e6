//! Weights that a training which went astray leaves: NaN, and infinite numbers.
//!
//! NaN in a tensor of several numbers is a fault. An infinite number may be meant, as minus infinity is in a mask, and so may a
//! single NaN, as the other side of a `Where`: these are suspects, of which forward passes show what they are.

use std::ops::Range;

use crate::{
    beside::Beside,
    rewrite::tag,
    wire::{self, Field, MALFORMED, messages, text},
};

/// A tensor whose numbers may be meant or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Suspect {
    /// Its name in the file.
    pub(crate) name: String,
    /// `NaN`, or `infinite numbers`.
    pub(crate) holds: &'static str,
}

/// Looks through the float tensors of a file, subgraphs and functions included, and files beside it.
///
/// # Errors
/// For a tensor of several numbers with NaN among them, by its name.
pub(crate) fn suspects(bytes: &[u8], beside: &Beside) -> Result<Vec<Suspect>, String> {
    let mut search = Search { bytes, beside, suspects: Vec::new() };
    for field in wire::fields(bytes, 0..bytes.len())?.into_iter().filter(wire::Field::has_length) {
        match field.number {
            tag::MODEL_GRAPH => search.graph(field.body)?,
            tag::MODEL_FUNCTION => {
                for node in messages(bytes, field.body, tag::FUNCTION_NODE)? {
                    search.node(node.body)?;
                }
            }
            _ => {}
        }
    }
    Ok(search.suspects)
}

/// The float types, as ONNX numbers them.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Float,
    Half,
    Double,
    Brain,
}

impl Kind {
    fn numbered(number: i64) -> Option<Self> {
        match number {
            1 => Some(Self::Float),
            10 => Some(Self::Half),
            11 => Some(Self::Double),
            16 => Some(Self::Brain),
            _ => None,
        }
    }

    const fn size(self) -> usize {
        match self {
            Self::Half | Self::Brain => 2,
            Self::Float => 4,
            Self::Double => 8,
        }
    }
}

/// How many numbers there are, and of which kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Count {
    all: usize,
    nan: usize,
    infinite: usize,
}

impl Count {
    /// Adds numbers as ONNX files lay them out: the lowest byte first.
    fn add(&mut self, kind: Kind, bytes: &[u8]) {
        self.all += bytes.len() / kind.size();
        match kind {
            Kind::Float => bytes.as_chunks().0.iter().for_each(|bytes| {
                let size = u32::from_le_bytes(*bytes) & (u32::MAX >> 1);
                self.nan += usize::from(size > 0x7F80_0000);
                self.infinite += usize::from(size == 0x7F80_0000);
            }),
            Kind::Double => bytes.as_chunks().0.iter().for_each(|bytes| {
                let size = u64::from_le_bytes(*bytes) & (u64::MAX >> 1);
                self.nan += usize::from(size > 0x7FF0_0000_0000_0000);
                self.infinite += usize::from(size == 0x7FF0_0000_0000_0000);
            }),
            Kind::Half | Kind::Brain => {
                let infinity = if matches!(kind, Kind::Half) { 0x7C00 } else { 0x7F80 };
                bytes.as_chunks().0.iter().for_each(|bytes| {
                    let size = u16::from_le_bytes(*bytes) & (u16::MAX >> 1);
                    self.nan += usize::from(size > infinity);
                    self.infinite += usize::from(size == infinity);
                });
            }
        }
    }
}

struct Search<'a> {
    bytes: &'a [u8],
    beside: &'a Beside,
    suspects: Vec<Suspect>,
}

impl Search<'_> {
    fn graph(&mut self, graph: Range<usize>) -> Result<(), String> {
        for field in wire::fields(self.bytes, graph)?.into_iter().filter(wire::Field::has_length) {
            match field.number {
                tag::GRAPH_INITIALIZER => self.tensor(field.body, "")?,
                tag::GRAPH_SPARSE_INITIALIZER => {
                    for values in messages(self.bytes, field.body, tag::SPARSE_VALUES)? {
                        self.tensor(values.body, "")?;
                    }
                }
                tag::GRAPH_NODE => self.node(field.body)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Looks through the tensors and graphs that a node holds.
    fn node(&mut self, node: Range<usize>) -> Result<(), String> {
        let bytes = self.bytes;
        for attribute in messages(bytes, node.clone(), tag::NODE_ATTRIBUTE)? {
            for field in wire::fields(bytes, attribute.body)?.into_iter().filter(wire::Field::has_length) {
                match field.number {
                    tag::ATTRIBUTE_TENSOR => self.tensor(field.body, text(bytes, node.clone(), tag::NODE_OUTPUT)?)?,
                    tag::ATTRIBUTE_GRAPH | tag::ATTRIBUTE_GRAPHS => self.graph(field.body)?,
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Looks through a tensor; one that a node makes is called by what it makes.
    fn tensor(&mut self, tensor: Range<usize>, made: &str) -> Result<(), String> {
        let bytes = self.bytes;
        let numbers = wire::numbers(bytes, tensor.clone(), tag::TENSOR_DATA_TYPE)?;
        let Some(kind) = numbers.last().copied().and_then(Kind::numbered) else { return Ok(()) };
        let (mut name, mut count) = (made, Count::default());
        for field in wire::fields(bytes, tensor.clone())? {
            let body = &bytes[field.body.clone()];
            match field.number {
                tag::TENSOR_NAME if made.is_empty() => name = std::str::from_utf8(body).map_err(|_| MALFORMED)?,
                tag::TENSOR_RAW_DATA | tag::TENSOR_FLOAT_DATA | tag::TENSOR_DOUBLE_DATA => count.add(kind, body),
                _ => {}
            }
        }
        // Numbers of two bytes, where they are not raw, are written as whole numbers.
        for number in wire::numbers(bytes, tensor.clone(), tag::TENSOR_INT32_DATA)? {
            count.add(kind, &number.to_le_bytes()[..kind.size()]);
        }
        if let Some(numbers) = self.beside.numbers(bytes, tensor)? {
            count.add(kind, numbers);
        }
        match count {
            Count { nan: 0, infinite: 0, .. } => {}
            // What no node takes harms nobody.
            _ if !is_used(bytes, name)? => {}
            Count { all: 2.., nan: nan @ 1.., .. } => {
                return Err(format!(
                    "its weight `{name}` holds NaN ({nan} of {} numbers), as a training that went astray leaves it; export an \
                     earlier checkpoint",
                    count.all
                ));
            }
            Count { nan, .. } => {
                let holds = if nan > 0 { "NaN" } else { "infinite numbers" };
                self.suspects.push(Suspect { name: name.into(), holds });
            }
        }
        Ok(())
    }
}

/// Whether a tensor of this name is taken by a node of the file, or is an output of a graph.
fn is_used(bytes: &[u8], name: &str) -> Result<bool, String> {
    for field in wire::fields(bytes, 0..bytes.len())?.into_iter().filter(wire::Field::has_length) {
        let used = match field.number {
            tag::MODEL_GRAPH => is_used_in_graph(bytes, field.body, name)?,
            tag::MODEL_FUNCTION => {
                any(messages(bytes, field.body, tag::FUNCTION_NODE)?, |node| is_used_by_node(bytes, node, name))?
            }
            _ => false,
        };
        if used {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_used_in_graph(bytes: &[u8], graph: Range<usize>, name: &str) -> Result<bool, String> {
    any(wire::fields(bytes, graph)?, |field| match field.number {
        tag::GRAPH_NODE if field.has_length() => is_used_by_node(bytes, field, name),
        tag::GRAPH_OUTPUT if field.has_length() => Ok(text(bytes, field.body, tag::VALUE_NAME)? == name),
        _ => Ok(false),
    })
}

/// Graphs inside the node count: they take names from around them.
fn is_used_by_node(bytes: &[u8], node: Field, name: &str) -> Result<bool, String> {
    any(wire::fields(bytes, node.body)?, |field| match field.number {
        tag::NODE_INPUT if field.has_length() => Ok(bytes[field.body] == *name.as_bytes()),
        tag::NODE_ATTRIBUTE if field.has_length() => {
            any(wire::fields(bytes, field.body)?, |field| match field.number {
                tag::ATTRIBUTE_GRAPH | tag::ATTRIBUTE_GRAPHS if field.has_length() => {
                    is_used_in_graph(bytes, field.body, name)
                }
                _ => Ok(false),
            })
        }
        _ => Ok(false),
    })
}

fn any(fields: Vec<Field>, mut is_it: impl FnMut(Field) -> Result<bool, String>) -> Result<bool, String> {
    for field in fields {
        if is_it(field)? {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{message, number};

    /// A tensor of this type, called `w`, and what else it holds.
    fn tensor(kind: u64, data: &[u8]) -> Vec<u8> {
        [&number(tag::TENSOR_DATA_TYPE, kind)[..], &message(tag::TENSOR_NAME, b"w"), data].concat()
    }

    /// A file of a graph, with a node that takes what is called `w` or `made`.
    fn file(graph: &[u8]) -> Vec<u8> {
        let node = [message(tag::NODE_INPUT, b"w"), message(tag::NODE_INPUT, b"made")].concat();
        message(tag::MODEL_GRAPH, &[graph, &message(tag::GRAPH_NODE, &node)].concat())
    }

    fn of_tensor(kind: u64, data: &[u8]) -> Result<Vec<Suspect>, String> {
        suspects(&file(&message(tag::GRAPH_INITIALIZER, &tensor(kind, data))), &Beside::default())
    }

    fn raw(numbers: &[f32]) -> Vec<u8> {
        message(tag::TENSOR_RAW_DATA, &numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>())
    }

    #[test]
    fn nan_is_found_however_numbers_are_written() {
        let floats = raw(&[1.0, f32::NAN, -f32::NAN]);
        let listed = message(tag::TENSOR_FLOAT_DATA, &[1_f32.to_le_bytes(), f32::NAN.to_le_bytes()].concat());
        let doubles = [1_f64.to_le_bytes(), f64::NAN.to_le_bytes()].concat();
        let halves = [0x3C00_u16.to_le_bytes(), 0x7E00_u16.to_le_bytes()].concat();
        let brains = [0x3F80_u16.to_le_bytes(), 0xFFC0_u16.to_le_bytes()].concat();
        let whole = [number(tag::TENSOR_INT32_DATA, 0x3C00), number(tag::TENSOR_INT32_DATA, 0x7E00)].concat();
        for (kind, data) in [
            (1, floats),
            (1, listed),
            (11, message(tag::TENSOR_RAW_DATA, &doubles)),
            (11, message(tag::TENSOR_DOUBLE_DATA, &doubles)),
            (10, message(tag::TENSOR_RAW_DATA, &halves)),
            (10, whole),
            (16, message(tag::TENSOR_RAW_DATA, &brains)),
        ] {
            let told = of_tensor(kind, &data).unwrap_err();
            assert!(told.starts_with("its weight `w` holds NaN (") && told.contains("earlier checkpoint"), "{told}");
        }
        // The same bytes, as whole numbers.
        assert_eq!(of_tensor(6, &raw(&[1.0, f32::NAN])), Ok(vec![]));
        assert_eq!(of_tensor(1, &raw(&[1.0, f32::MAX, f32::MIN_POSITIVE / 2.0])), Ok(vec![]));
    }

    #[test]
    fn nan_that_no_node_takes_is_left_alone() {
        let lost = message(tag::GRAPH_INITIALIZER, &tensor(1, &raw(&[1.0, f32::NAN])));
        let of_graph = |rest: Vec<u8>| {
            suspects(&message(tag::MODEL_GRAPH, &[lost.clone(), rest].concat()), &Beside::default())
                .map_err(|_| "refused")
        };
        assert_eq!(of_graph(vec![]), Ok(vec![]));
        assert_eq!(of_graph(message(tag::GRAPH_NODE, &message(tag::NODE_INPUT, b"v"))), Ok(vec![]));
        assert_eq!(of_graph(message(tag::GRAPH_OUTPUT, &message(tag::VALUE_NAME, b"w"))), Err("refused"));
        let node = message(tag::GRAPH_NODE, &message(tag::NODE_INPUT, b"w"));
        assert_eq!(of_graph(node.clone()), Err("refused"));
        let branch = message(tag::NODE_ATTRIBUTE, &message(tag::ATTRIBUTE_GRAPH, &node));
        assert_eq!(of_graph(message(tag::GRAPH_NODE, &branch)), Err("refused"));
    }

    #[test]
    fn what_may_be_meant_is_a_suspect() {
        let infinite = Suspect { name: "w".into(), holds: "infinite numbers" };
        assert_eq!(of_tensor(1, &raw(&[0.0, f32::NEG_INFINITY])), Ok(vec![infinite]));
        let halves = message(tag::TENSOR_RAW_DATA, &[0x00, 0x7C, 0x00, 0xFC]);
        assert_eq!(of_tensor(10, &halves).unwrap().len(), 1);
        assert_eq!(of_tensor(1, &raw(&[f32::NAN])), Ok(vec![Suspect { name: "w".into(), holds: "NaN" }]));
    }

    #[test]
    fn nodes_graphs_inside_and_functions_are_looked_through() {
        let attribute = message(tag::NODE_ATTRIBUTE, &message(tag::ATTRIBUTE_TENSOR, &tensor(1, &raw(&[f32::NAN; 2]))));
        let constant = [&message(tag::NODE_OUTPUT, b"made")[..], &attribute].concat();
        let inside = message(tag::GRAPH_NODE, &constant);
        let branch = message(tag::NODE_ATTRIBUTE, &message(tag::ATTRIBUTE_GRAPH, &inside));
        let taken = message(tag::FUNCTION_NODE, &message(tag::NODE_INPUT, b"made"));
        let function = message(tag::MODEL_FUNCTION, &[message(tag::FUNCTION_NODE, &constant), taken].concat());
        for bytes in [file(&inside), file(&message(tag::GRAPH_NODE, &branch)), function] {
            assert!(suspects(&bytes, &Beside::default()).unwrap_err().contains("`made` holds NaN (2 of 2 numbers)"));
        }
    }
}
