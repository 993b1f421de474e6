//! Third-party policy files against the answers that other programs recorded for them.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod common;

use std::path::Path;

use common::{empty, load, policies};
use relevo_core::{
    policy::Model,
    spec::{DType, Dim, TensorSpec},
    tensor::{Tensor, TensorView},
};
use serde_json::Value;

/// The recorded answers are compared to within this much, absolute and relative, as the manifest says.
const TOLERANCE: f64 = 1e-4;

/// A batch is compared to its own rows within this much.
const BATCH_TOLERANCE: f64 = 1e-5;

fn manifest(folder: &Path) -> Value {
    let manifest: Value = serde_json::from_slice(&std::fs::read(folder.join("manifest.json")).unwrap()).unwrap();
    assert_eq!(manifest["tolerance"]["atol"], TOLERANCE);
    assert_eq!(manifest["tolerance"]["rtol"], TOLERANCE);
    manifest
}

/// The entries of ONNX files that load.
fn entries(manifest: &Value) -> impl Iterator<Item = &Value> {
    let entries = manifest["policies"].as_array().unwrap().iter();
    entries.filter(|entry| entry["format"] == "onnx" && entry["loads"] == true)
}

fn shape(value: &Value) -> Vec<usize> {
    value["shape"].as_array().unwrap().iter().map(|size| size.as_u64().unwrap() as usize).collect()
}

/// The numbers of a recorded tensor, in whichever of the manifest's three ways it is written.
fn numbers(value: &Value) -> Vec<f64> {
    let count: usize = shape(value).iter().product();
    if let Some(data) = value["data"].as_array() {
        assert_eq!(data.len(), count);
        return data.iter().map(|number| number.as_f64().unwrap()).collect();
    }
    if let Some(fill) = value["fill"].as_f64() {
        return vec![fill; count];
    }
    let k = value["k"].as_u64().unwrap();
    let raw = |i: usize| i as u64 * 7919 + k * 104_729;
    match value["formula"].as_str().unwrap() {
        "u8" => (0..count).map(|i| (raw(i) % 256) as f64 / 255.0).collect(),
        "s" => (0..count).map(|i| ((raw(i) % 2001) as f64 - 1000.0) / 1000.0).collect(),
        other => panic!("unknown formula {other}"),
    }
}

fn tensor(value: &Value, dtype: DType) -> Tensor {
    let mut tensor = Tensor::zeros(dtype, &shape(value));
    match dtype {
        DType::Float32 => tensor.values_mut::<f32>().iter_mut().zip(numbers(value)).for_each(|(x, y)| *x = y as f32),
        DType::Int64 => tensor.values_mut::<i64>().iter_mut().zip(numbers(value)).for_each(|(x, y)| *x = y as i64),
        other => panic!("no recorded tensor is {other}"),
    }
    tensor
}

fn values(tensor: &Tensor) -> Vec<f64> {
    match tensor.dtype() {
        DType::Float32 => tensor.values::<f32>().iter().map(|&value| f64::from(value)).collect(),
        DType::Int64 => tensor.values::<i64>().iter().map(|&value| value as f64).collect(),
        other => panic!("no recorded tensor is {other}"),
    }
}

fn assert_close(tensor: &Tensor, expected: &[f64], tolerance: f64, what: &str) {
    let values = values(tensor);
    assert_eq!(values.len(), expected.len(), "{what}");
    let tolerance = if tensor.dtype().is_float() { tolerance } else { 0.0 };
    for (index, (value, expected)) in values.iter().zip(expected).enumerate() {
        let close = (value - expected).abs() <= tolerance + tolerance * expected.abs();
        assert!(close, "{what}[{index}]: {value}, not {expected}");
    }
}

/// The case's inputs in the file's order.
fn inputs(case: &Value, specs: &[TensorSpec]) -> Vec<Tensor> {
    specs.iter().map(|spec| tensor(&case["inputs"][&spec.name], spec.dtype)).collect()
}

fn views(tensors: &[Tensor]) -> Vec<TensorView<'_>> {
    tensors.iter().map(Tensor::view).collect()
}

fn position(specs: &[TensorSpec], name: &str) -> usize {
    specs.iter().position(|spec| spec.name == name).unwrap()
}

/// Recorded outputs of a case, with those that are constants of the file.
fn expected(entry: &Value, case: &Value) -> Vec<(String, Value)> {
    let recorded = case["outputs"].as_object().unwrap().iter().map(|(name, value)| (name.clone(), value.clone()));
    let declared = entry["outputs"].as_array().unwrap().iter();
    let constants = declared.filter(|output| output["role"] == "const");
    let mut all: Vec<_> = recorded.collect();
    for constant in constants {
        let name = constant["name"].as_str().unwrap();
        if all.iter().all(|(known, _)| known != name) {
            all.push((name.into(), constant["value"].clone()));
        }
    }
    all
}

#[test]
fn every_case_is_answered_alike_into_empty_and_into_given_tensors() {
    let Some(folder) = policies() else { return };
    let mut compared = 0;
    for entry in entries(&manifest(&folder)) {
        let model = load(&folder.join(entry["file"].as_str().unwrap())).unwrap();
        let mut session = model.session().unwrap();
        for case in entry["cases"].as_array().unwrap() {
            let what = format!("{} {}", entry["id"], case["name"]);
            let inputs = inputs(case, model.inputs());
            let expected = expected(entry, case);
            let wanted: Vec<_> = expected.iter().map(|(name, _)| position(model.outputs(), name)).collect();
            let mut outputs: Vec<_> = wanted.iter().map(|_| empty()).collect();
            session.forward(&views(&inputs), &wanted, &mut outputs).unwrap();
            let mut given: Vec<_> =
                outputs.iter().map(|output| Tensor::zeros(output.dtype(), output.shape())).collect();
            let addresses: Vec<_> = given.iter().map(|tensor| tensor.bytes().as_ptr()).collect();
            for round in 0..2 {
                for tensor in &mut given {
                    tensor.bytes_mut().fill(0xA5);
                }
                session.forward(&views(&inputs), &wanted, &mut given).unwrap();
                let now: Vec<_> = given.iter().map(|tensor| tensor.bytes().as_ptr()).collect();
                assert_eq!(now, addresses, "{what}, round {round}");
                for ((name, value), (output, given)) in expected.iter().zip(outputs.iter().zip(&given)) {
                    let what = format!("{what} {name}");
                    assert_eq!(output.shape(), shape(value), "{what}");
                    assert_close(output, &numbers(value), TOLERANCE, &what);
                    assert_eq!(given.bytes(), output.bytes(), "{what}, round {round}");
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 60, "only {compared} outputs were compared");
}

#[test]
fn sequences_feed_their_state_back() {
    let Some(folder) = policies() else { return };
    let mut steps = 0;
    for entry in entries(&manifest(&folder)).filter(|entry| entry["recurrent"] == true) {
        let model = load(&folder.join(entry["file"].as_str().unwrap())).unwrap();
        let mut session = model.session().unwrap();
        let [state] = entry["state"].as_array().unwrap().as_slice() else { panic!("one state is expected") };
        let state_input = position(model.inputs(), state["input"].as_str().unwrap());
        let state_output = position(model.outputs(), state["output"].as_str().unwrap());
        for sequence in entry["sequences"].as_array().unwrap() {
            let batch = sequence["batch"].as_u64().unwrap_or(1) as usize;
            let mut memory = Tensor::zeros(DType::Float32, &[batch, 1, 128]);
            for step in sequence["steps"].as_array().unwrap() {
                if step["reset"] == true {
                    memory.bytes_mut().fill(0);
                    continue;
                }
                let mut inputs: Vec<Tensor> = Vec::new();
                for (index, spec) in model.inputs().iter().enumerate() {
                    let recorded = &step["inputs"][&spec.name];
                    inputs.push(match recorded {
                        Value::Null if index == state_input => std::mem::replace(&mut memory, empty()),
                        recorded => tensor(recorded, spec.dtype),
                    });
                }
                let outputs = step["outputs"].as_object().unwrap();
                let mut wanted: Vec<_> = outputs.keys().map(|name| position(model.outputs(), name)).collect();
                if !wanted.contains(&state_output) {
                    wanted.push(state_output);
                }
                let mut results: Vec<_> = wanted.iter().map(|_| empty()).collect();
                session.forward(&views(&inputs), &wanted, &mut results).unwrap();
                for ((name, value), result) in outputs.iter().zip(&results) {
                    let what = format!("{} {} step {steps} {name}", entry["id"], sequence["name"]);
                    assert_close(result, &numbers(value), TOLERANCE, &what);
                }
                let state = wanted.iter().position(|&index| index == state_output).unwrap();
                memory = results.swap_remove(state);
                steps += 1;
            }
        }
    }
    assert!(steps > 10, "only {steps} steps were run");
}

/// `count` rows made of a case's single row: each is scaled by another factor, but a mask stays one.
fn rows(input: &Tensor, role: &str, count: usize) -> Tensor {
    let mut shape = input.shape().to_vec();
    shape[0] = count;
    let mut rows = Tensor::zeros(input.dtype(), &shape);
    let width = input.len();
    for (index, value) in rows.values_mut::<f32>().iter_mut().enumerate() {
        let factor = if role == "mask" { 1.0 } else { 1.0 - (index / width) as f32 * 0.1 };
        *value = input.values::<f32>()[index % width] * factor;
    }
    rows
}

/// Outputs that every row has one of, and that no random number goes into.
fn row_outputs(entry: &Value, model: &dyn Model) -> Vec<usize> {
    let outputs = entry["outputs"].as_array().unwrap().iter();
    let rows = outputs.filter(|output| output["role"] != "const" && output["stochastic"] != true);
    rows.map(|output| position(model.outputs(), output["name"].as_str().unwrap())).collect()
}

#[test]
fn a_batch_answers_as_its_rows_do() {
    let Some(folder) = policies() else { return };
    let mut models = 0;
    for entry in entries(&manifest(&folder)) {
        let model = load(&folder.join(entry["file"].as_str().unwrap())).unwrap();
        let mut session = model.session().unwrap();
        for case in entry["cases"].as_array().unwrap() {
            let case = inputs(case, model.inputs());
            let roles = entry["inputs"].as_array().unwrap().iter().map(|input| input["role"].as_str().unwrap());
            let batch: Vec<_> = case.iter().zip(roles).map(|(input, role)| rows(input, role, 8)).collect();
            let wanted = row_outputs(entry, &*model);
            let mut batched: Vec<_> = wanted.iter().map(|_| empty()).collect();
            session.forward(&views(&batch), &wanted, &mut batched).unwrap();
            for row in 0..8 {
                let single: Vec<_> = batch.iter().map(|input| slice(input, row)).collect();
                let mut outputs: Vec<_> = wanted.iter().map(|_| empty()).collect();
                session.forward(&views(&single), &wanted, &mut outputs).unwrap();
                for (output, batched) in outputs.iter().zip(&batched) {
                    assert_eq!(batched.shape()[0], 8, "{}", entry["id"]);
                    let expected = values(&slice(batched, row));
                    assert_close(output, &expected, BATCH_TOLERANCE, &format!("{} row {row}", entry["id"]));
                }
            }
        }
        models += 1;
    }
    assert!(models >= 7, "only {models} models were tried");
}

/// One row of a batch.
fn slice(batch: &Tensor, row: usize) -> Tensor {
    let mut shape = batch.shape().to_vec();
    shape[0] = 1;
    let mut single = Tensor::zeros(batch.dtype(), &shape);
    let width = single.bytes().len();
    single.bytes_mut().copy_from_slice(&batch.bytes()[row * width..][..width]);
    single
}

#[test]
fn declarations_and_facts_are_those_of_the_manifest() {
    let Some(folder) = policies() else { return };
    for entry in entries(&manifest(&folder)) {
        let model = load(&folder.join(entry["file"].as_str().unwrap())).unwrap();
        let facts = model.facts();
        assert_eq!(facts.sha256, entry["sha256"], "{}", entry["id"]);
        assert_eq!(facts.producer, entry["producer"], "{}", entry["id"]);
        let random: Vec<_> = entry["rng_ops"].as_array().unwrap().iter().map(|op| op.as_str().unwrap()).collect();
        assert_eq!(facts.random_ops, random, "{}", entry["id"]);
        for (specs, declared) in [(model.inputs(), &entry["inputs"]), (model.outputs(), &entry["outputs"])] {
            assert_eq!(specs.len(), declared.as_array().unwrap().len(), "{}", entry["id"]);
            for (spec, declared) in specs.iter().zip(declared.as_array().unwrap()) {
                assert_eq!(spec.name, declared["name"]);
                assert_eq!(spec.dtype.name(), declared["dtype"]);
                let mut dims: Vec<_> = declared["shape"].as_array().unwrap().iter().map(dim).collect();
                if entry["batch"] == "fixed_1" {
                    // Rewritten when it was loaded.
                    dims[0] = Dim::Dynamic("batch".into());
                }
                assert_eq!(spec.shape, dims, "{} {}", entry["id"], spec.name);
            }
        }
    }
}

fn dim(value: &Value) -> Dim {
    value.as_u64().map_or_else(|| Dim::Dynamic(value.as_str().unwrap().into()), |size| Dim::Fixed(size as usize))
}
