//! Weights in files beside the model, read into memory once, with the model.
//!
//! ONNX Runtime would map such files: whoever writes to one would change what a session answers, and whoever cuts one short would
//! end the process. It takes their contents instead for what the graph itself holds, and copies from them; what nodes and graphs
//! inside it hold is written into the model's own bytes.

use std::{
    collections::BTreeMap,
    ops::Range,
    path::{Component, Path},
    sync::Arc,
};

use relevo_core::policy::ModelSource;

use crate::{
    rewrite::tag,
    wire::{self, Field, Patch, messages, text},
};

/// What files beside a model hold, by the names that the model calls them.
#[derive(Debug, Default)]
pub(crate) struct Beside(BTreeMap<String, Arc<[u8]>>);

/// A file's name as ONNX Runtime knows it, which takes `./w.data` and `w.data` for one.
pub(crate) fn known_name(location: &str) -> &str {
    location.trim_start_matches("./")
}

/// Where a tensor's numbers lie, if not in the model.
struct Place<'a> {
    location: &'a str,
    offset: usize,
    /// To the end of the file, where it is not said.
    length: Option<usize>,
}

impl<'a> Place<'a> {
    /// Where the numbers of the tensor at `tensor` lie; `None` where it holds them.
    fn of(bytes: &'a [u8], tensor: Range<usize>) -> Result<Option<Self>, String> {
        if wire::numbers(bytes, tensor.clone(), tag::TENSOR_DATA_LOCATION)?.last() != Some(&1) {
            return Ok(None);
        }
        let mut place = Self { location: "", offset: 0, length: None };
        for entry in messages(bytes, tensor, tag::TENSOR_EXTERNAL_DATA)? {
            let value = text(bytes, entry.body.clone(), tag::ENTRY_VALUE)?;
            match text(bytes, entry.body, tag::ENTRY_KEY)? {
                "location" => place.location = known_name(value),
                "offset" => place.offset = value.parse().unwrap_or(0),
                "length" => place.length = value.parse().ok(),
                _ => {}
            }
        }
        Ok(Some(place))
    }
}

impl Beside {
    /// Reads the files that `wanted` names, each with the bytes that it must have at least. They are looked for beside the
    /// model's path as it is given, and links lead where they lead: caches keep models and their weights as links to elsewhere.
    ///
    /// # Errors
    /// For a file that is missing or too short, or that does not lie in the model's folder; and for all where the model has no
    /// path.
    pub(crate) fn read(source: ModelSource<'_>, wanted: &BTreeMap<String, u64>) -> Result<Self, String> {
        let folder = std::path::absolute(source.path).ok();
        let folder = folder.as_deref().and_then(Path::parent).unwrap_or(Path::new(""));
        let mut files = BTreeMap::new();
        for (name, &needed) in wanted {
            if source.bytes.is_some() {
                return Err(format!(
                    "its weights lie in a file `{name}`, and a model in memory has no files beside it; load it from a path, or \
                     export it with its weights inside"
                ));
            }
            let is_inside = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
            if name.is_empty() || !Path::new(name).components().all(is_inside) {
                return Err(format!(
                    "its weights lie in `{name}`, which names no file in the model's folder; export the model again, with its \
                     weights beside it"
                ));
            }
            let place = folder.join(name);
            let unreadable = |error: std::io::Error| {
                format!(
                    "its weights lie in `{}`, which cannot be read ({error}); copy that file beside the model, under this name",
                    place.display()
                )
            };
            let there = place.metadata().map_err(unreadable)?;
            if !there.is_file() {
                return Err(format!(
                    "its weights lie in `{}`, which is no file; copy that file beside the model, under this name",
                    place.display()
                ));
            }
            let too_short = |length: u64| {
                let place = place.display();
                (length < needed).then(|| {
                    format!(
                        "its weights lie in `{place}`, which has {length} bytes where {needed} are needed; copy that file again, \
                         or export the model again"
                    )
                })
            };
            if let Some(reason) = too_short(there.len()) {
                return Err(reason);
            }
            let contents = std::fs::read(&place).map_err(unreadable)?;
            if let Some(reason) = too_short(contents.len() as u64) {
                return Err(reason);
            }
            files.insert(name.clone(), contents.into());
        }
        Ok(Self(files))
    }

    /// The files, in the order of their names.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &Arc<[u8]>)> {
        self.0.iter().map(|(name, contents)| (name.as_str(), contents))
    }

    /// The numbers of the tensor at `tensor`, where they lie in one of the files.
    pub(crate) fn numbers(&self, bytes: &[u8], tensor: Range<usize>) -> Result<Option<&[u8]>, String> {
        let Some(Place { location, offset, length }) = Place::of(bytes, tensor)? else { return Ok(None) };
        let part = self.0.get(location).and_then(|contents| contents.get(offset..)).and_then(|rest| match length {
            Some(length) => rest.get(..length),
            None => Some(rest),
        });
        Ok(part)
    }

    /// The bytes of the numbers of the graph's initializer `name`; `None` where it has none.
    pub(crate) fn initializer(&self, bytes: &[u8], name: &str) -> Result<Option<Vec<u8>>, String> {
        for graph in messages(bytes, 0..bytes.len(), tag::MODEL_GRAPH)? {
            for tensor in messages(bytes, graph.body, tag::GRAPH_INITIALIZER)? {
                if text(bytes, tensor.body.clone(), tag::TENSOR_NAME)? != name {
                    continue;
                }
                if let Some(numbers) = self.numbers(bytes, tensor.body.clone())? {
                    return Ok(Some(numbers.into()));
                }
                let held = [tag::TENSOR_RAW_DATA, tag::TENSOR_FLOAT_DATA, tag::TENSOR_DOUBLE_DATA];
                let fields = wire::fields(bytes, tensor.body.clone())?.into_iter();
                let fields = fields.filter(|field| held.contains(&field.number));
                let mut numbers: Vec<u8> = fields.flat_map(|field| &bytes[field.body]).copied().collect();
                let whole = wire::numbers(bytes, tensor.body, tag::TENSOR_INT64_DATA)?;
                numbers.extend(whole.into_iter().flat_map(i64::to_le_bytes));
                return Ok(Some(numbers));
            }
        }
        Ok(None)
    }

    /// The model with the numbers inside it of all tensors but those that ONNX Runtime takes from memory: initializers of the graph
    /// itself.
    pub(crate) fn written_into(&self, bytes: Vec<u8>) -> Result<Vec<u8>, String> {
        if self.0.is_empty() {
            return Ok(bytes);
        }
        let mut patch = Patch::new(&bytes);
        for field in wire::fields(&bytes, 0..bytes.len())?.iter().filter(|field| field.has_length()) {
            match field.number {
                tag::MODEL_GRAPH => patch.inside(field, |patch| self.write_graph(patch, &bytes, field, true))?,
                tag::MODEL_FUNCTION => patch.inside(field, |patch| {
                    for node in &messages(&bytes, field.body.clone(), tag::FUNCTION_NODE)? {
                        self.write_node(patch, &bytes, node)?;
                    }
                    Ok(())
                })?,
                _ => {}
            }
        }
        Ok(patch.finish())
    }

    fn write_graph(&self, patch: &mut Patch<'_>, bytes: &[u8], graph: &Field, is_main: bool) -> Result<(), String> {
        for field in wire::fields(bytes, graph.body.clone())?.iter().filter(|field| field.has_length()) {
            match field.number {
                tag::GRAPH_INITIALIZER if !is_main => self.write_tensor(patch, bytes, field)?,
                tag::GRAPH_NODE => self.write_node(patch, bytes, field)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn write_node(&self, patch: &mut Patch<'_>, bytes: &[u8], node: &Field) -> Result<(), String> {
        patch.inside(node, |patch| {
            for attribute in &messages(bytes, node.body.clone(), tag::NODE_ATTRIBUTE)? {
                patch.inside(attribute, |patch| {
                    for field in wire::fields(bytes, attribute.body.clone())?.iter().filter(|field| field.has_length())
                    {
                        match field.number {
                            tag::ATTRIBUTE_TENSOR => self.write_tensor(patch, bytes, field)?,
                            tag::ATTRIBUTE_GRAPH | tag::ATTRIBUTE_GRAPHS => {
                                patch.inside(field, |patch| self.write_graph(patch, bytes, field, false))?;
                            }
                            _ => {}
                        }
                    }
                    Ok(())
                })?;
            }
            Ok(())
        })
    }

    fn write_tensor(&self, patch: &mut Patch<'_>, bytes: &[u8], tensor: &Field) -> Result<(), String> {
        let Some(numbers) = self.numbers(bytes, tensor.body.clone())? else { return Ok(()) };
        patch.inside(tensor, |patch| {
            for field in wire::fields(bytes, tensor.body.clone())? {
                if matches!(field.number, tag::TENSOR_EXTERNAL_DATA | tag::TENSOR_DATA_LOCATION) {
                    patch.replace(field.whole, Vec::new());
                }
            }
            let end = tensor.body.end;
            patch.replace(end..end, wire::message(tag::TENSOR_RAW_DATA, numbers));
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{message, number};

    /// A tensor whose numbers are those of `w.data` from `offset` on.
    fn tensor(offset: &str, length: &str) -> Vec<u8> {
        let entry = |key: &str, value: &str| {
            let entry = [message(tag::ENTRY_KEY, key.as_bytes()), message(tag::ENTRY_VALUE, value.as_bytes())];
            message(tag::TENSOR_EXTERNAL_DATA, &entry.concat())
        };
        let place = [entry("location", "w.data"), entry("offset", offset), entry("length", length)].concat();
        [message(tag::TENSOR_NAME, b"w"), place, number(tag::TENSOR_DATA_LOCATION, 1)].concat()
    }

    fn holder() -> Beside {
        Beside([("w.data".to_owned(), Arc::from([1, 2, 3, 4, 5, 6]))].into())
    }

    #[test]
    fn numbers_are_taken_from_their_place() {
        for (offset, length, expected) in [
            ("0", "2", Some(&[1, 2][..])),
            ("4", "2", Some(&[5, 6])),
            ("4", "", Some(&[5, 6])),
            ("4", "3", None),
            ("9", "1", None),
            ("18446744073709551615", "1", None),
        ] {
            let bytes = tensor(offset, length);
            assert_eq!(holder().numbers(&bytes, 0..bytes.len()).unwrap(), expected, "{offset} {length}");
        }
    }

    #[test]
    fn only_initializers_of_the_graph_itself_stay_outside() {
        let held = [message(tag::TENSOR_NAME, b"w"), message(tag::TENSOR_RAW_DATA, &[3, 4])].concat();
        let model = |inner: &[u8]| {
            let inside = message(tag::GRAPH_INITIALIZER, inner);
            let node = |number, body: &[u8]| message(number, &message(tag::NODE_ATTRIBUTE, body));
            let constant = message(tag::ATTRIBUTE_TENSOR, inner);
            let graph = [
                message(tag::GRAPH_INITIALIZER, &tensor("0", "2")),
                node(tag::GRAPH_NODE, &constant),
                node(tag::GRAPH_NODE, &message(tag::ATTRIBUTE_GRAPH, &inside)),
            ];
            let function = node(tag::FUNCTION_NODE, &constant);
            [message(tag::MODEL_GRAPH, &graph.concat()), message(tag::MODEL_FUNCTION, &function)].concat()
        };
        assert_eq!(holder().written_into(model(&tensor("2", "2"))).unwrap(), model(&held));
    }
}
