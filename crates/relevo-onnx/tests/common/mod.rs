//! What the tests share: the backend, shared policy files, and a writer of tiny ONNX files.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests fail by panicking, and say why they skip"
)]
#![allow(dead_code, clippy::allow_attributes, reason = "each test file uses its part")]

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use relevo_core::{
    error::{Error, Result},
    policy::{Backend, LoadOptions, Model, ModelSource},
    spec::DType,
    tensor::{Tensor, TensorView},
};
use relevo_onnx::OnnxBackend;

/// Whether ONNX Runtime is at hand. Where it is not, the test is to return; `RELEVO_REQUIRE_ORT=1` makes that a failure.
pub(crate) fn runtime_is_here() -> bool {
    present(
        std::env::var_os("ORT_DYLIB_PATH").is_some(),
        "ORT_DYLIB_PATH is not set, so there is no ONNX Runtime to test",
    )
}

/// The folder of shared policies, where it and ONNX Runtime are at hand; as for [`runtime_is_here`] otherwise.
pub(crate) fn policies() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/policies");
    let here = folder.join("manifest.json").is_file();
    if !here {
        eprintln!("skipped: ../shared/policies is not there");
    }
    (runtime_is_here() && here).then_some(folder)
}

fn present(here: bool, reason: &str) -> bool {
    assert!(here || std::env::var_os("RELEVO_REQUIRE_ORT").is_none_or(|value| value != "1"), "{reason}");
    if !here {
        eprintln!("skipped: {reason}");
    }
    here
}

/// Loads a file for the CPU with one thread.
pub(crate) fn load(path: &Path) -> Result<Arc<dyn Model>> {
    OnnxBackend::new().load(ModelSource { path, bytes: None }, &LoadOptions::default())
}

/// The reason for which loading the file fails.
pub(crate) fn refusal(path: &Path) -> String {
    match load(path) {
        Err(Error::ModelLoad { path: told, reason }) => {
            assert_eq!(told, path);
            reason
        }
        other => panic!("not refused at loading: {other:?}"),
    }
}

/// An empty tensor, which takes the shape that the run gives.
pub(crate) fn empty() -> Tensor {
    Tensor::zeros(DType::Float32, &[0])
}

/// Runs every output of the model into empty tensors.
pub(crate) fn run(model: &dyn Model, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let views: Vec<TensorView<'_>> = inputs.iter().map(Tensor::view).collect();
    let wanted: Vec<usize> = (0..model.outputs().len()).collect();
    let mut outputs: Vec<Tensor> = wanted.iter().map(|_| empty()).collect();
    model.session()?.forward(&views, &wanted, &mut outputs)?;
    Ok(outputs)
}

/// A float32 tensor of these values.
pub(crate) fn float_tensor(shape: &[usize], values: &[f32]) -> Tensor {
    let mut tensor = Tensor::zeros(DType::Float32, shape);
    tensor.values_mut().copy_from_slice(values);
    tensor
}

/// A node of a graph: operator, inputs, outputs.
pub(crate) type Node<'a> = (&'a str, &'a [&'a str], &'a [&'a str]);

/// An input or output of a graph: name, ONNX element type, dimensions (`None` is a symbolic one).
pub(crate) type Value<'a> = (&'a str, u64, &'a [Option<u64>]);

/// The bytes of an ONNX file with this graph.
pub(crate) fn onnx_file(
    nodes: &[Node<'_>],
    inputs: &[Value<'_>],
    outputs: &[Value<'_>],
    initializers: &[Vec<u8>],
) -> Vec<u8> {
    let mut graph = message(2, b"graph");
    for (op, inputs, outputs) in nodes {
        let names = |number, names: &[&str]| names.iter().flat_map(|name| message(number, name.as_bytes())).collect();
        let parts: [Vec<u8>; 3] = [names(1, inputs), names(2, outputs), message(4, op.as_bytes())];
        graph.extend(message(1, &parts.concat()));
    }
    graph.extend(initializers.iter().flat_map(|initializer| message(5, initializer)));
    graph.extend(inputs.iter().flat_map(|input| message(11, &value_info(*input))));
    graph.extend(outputs.iter().flat_map(|output| message(12, &value_info(*output))));
    [number(1, 8), message(8, &number(2, 17)), message(7, &graph)].concat()
}

/// An initializer of float32 whose data lies in another file.
pub(crate) fn external_initializer(name: &str, size: u64, file: &str) -> Vec<u8> {
    let location = [message(1, b"location"), message(2, file.as_bytes())].concat();
    [number(1, size), number(2, 1), message(8, name.as_bytes()), message(13, &location), number(14, 1)].concat()
}

fn value_info((name, element_type, dims): Value<'_>) -> Vec<u8> {
    let dims = dims.iter().map(|dim| dim.map_or_else(|| message(2, b"batch"), |size| number(1, size)));
    let shape: Vec<u8> = dims.flat_map(|dim| message(1, &dim)).collect();
    let tensor = [number(1, element_type), message(2, &shape)].concat();
    [message(1, name.as_bytes()), message(2, &message(1, &tensor))].concat()
}

/// A protobuf field that holds bytes.
pub(crate) fn message(field: u64, bytes: &[u8]) -> Vec<u8> {
    [varint(field << 3 | 2), varint(bytes.len() as u64), bytes.to_vec()].concat()
}

/// A protobuf field that holds a number.
fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 128 {
        bytes.push(value as u8 | 128);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// Writes `bytes` to `name` in `folder`.
pub(crate) fn write(folder: &tempfile::TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}
