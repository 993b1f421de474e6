//! Fuzzing of what edits files: bytes of any kind, real files with bytes exchanged, and graphs made up node by node.
//!
//! Nothing may panic; a graph that the rewriter hands out must give a batch what the original gives its rows.

use std::{collections::HashMap, path::Path, time::Instant};

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use relevo_core::{
    policy::Session as _,
    spec::{DType, Dim, TensorSpec},
    tensor::Tensor,
};

use crate::{
    beside::Beside,
    device::Device,
    fixed_batch::{self, Original, Outcome},
    graph::Declaration,
    inline, library,
    model::Workshop,
    noise::Noise,
    rewrite::{self, Plan},
    session::OnnxSession,
    wire::{message, number, written},
};

/// No test goes on for longer, however slow the machine; what was not tried then is tried by other runs.
const SECONDS: u64 = 20;

fn config(cases: u32) -> Config {
    Config { cases, failure_persistence: None, ..Config::default() }
}

fn shared(name: &str) -> Option<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/policies").join(name);
    std::fs::read(path).ok()
}

/// ONNX Runtime, where there is one; the tests in `tests/` see to it that there is.
fn workshop() -> Option<Workshop> {
    std::env::var_os("ORT_DYLIB_PATH")?;
    let library = library::library(&[]).unwrap();
    Some(Workshop { library, device: Device::Cpu, threads: 1 })
}

fn edit_everything(bytes: &[u8]) {
    for reshape_axis in 0..2 {
        let axes = HashMap::from([("obs".to_owned(), 0), ("x".to_owned(), 1)]);
        let targets = rewrite::reshapes(bytes).unwrap_or_default();
        let targets = targets.into_keys().map(|name| (name.to_owned(), vec![1, 1, 6])).collect();
        let _ =
            rewrite::rewrite(bytes, &Plan { axes, reshape_axis, source: ("obs".into(), 0) }, &targets, &HashMap::new());
    }
    let _ = rewrite::with_all_outputs(bytes);
    let _ = inline::inlined(bytes);
    let _ = Beside::default().initializer(bytes, "x");
    if let Ok((edited, noise)) = Noise::new(bytes) {
        assert_eq!(noise.seeded(&edited).len(), edited.len());
    }
}

proptest! {
    #![proptest_config(config(3000))]

    #[test]
    fn any_bytes_are_edited_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        edit_everything(&bytes);
        edit_everything(&message(7, &bytes));
        edit_everything(&message(7, &message(1, &bytes)));
        let call = message(7, &message(1, &message(4, b"f")));
        let function = [message(1, b"f"), message(7, &bytes), bytes].concat();
        edit_everything(&[call, message(25, &function)].concat());
    }
}

/// Exchanges of bytes: where, as a part of the length, how many, and for what.
fn exchanges() -> impl Strategy<Value = Vec<(f64, usize, Vec<u8>)>> {
    prop::collection::vec((0.0..1.0_f64, 0..4_usize, prop::collection::vec(any::<u8>(), 0..4)), 1..5)
}

fn exchanged(bytes: &[u8], exchanges: &[(f64, usize, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (place, count, with) in exchanges {
        let start = (bytes.len() as f64 * place) as usize;
        let end = (start + count).min(bytes.len());
        bytes.splice(start..end, with.iter().copied());
    }
    bytes
}

#[test]
fn real_files_with_exchanged_bytes_are_edited_or_refused() {
    for name in ["godot_multiagent_player.onnx", "mlagents_3dball.onnx", "mlagents_broken_output.onnx"] {
        let Some(bytes) = shared(name) else { return };
        let run = |exchanges: Vec<_>| {
            edit_everything(&exchanged(&bytes, &exchanges));
            Ok(())
        };
        TestRunner::new(config(300)).run(&exchanges(), run).unwrap();
    }
}

/// What is held against the original, with rows that the loader has not seen: `None` where nothing was rewritten.
fn check(workshop: Workshop, bytes: &[u8]) -> Option<()> {
    let path = Path::new("fuzzed.onnx");
    let declaration = Declaration::read(bytes).ok()?;
    let build = |bytes: &[u8]| workshop.trial(path, bytes, &Beside::default(), &declaration.inputs);
    let mut session = build(bytes).ok()?;
    let declared = session.outputs().to_vec();
    let original = Original {
        bytes,
        inputs: &declaration.inputs,
        outputs: &declared,
        obstacle: declaration.batch_obstacle.clone(),
    };
    let Some(Outcome::Rewritten(rewritten)) = fixed_batch::rewritten(&original, &mut session, &build) else {
        return None;
    };
    let mut batched = workshop.trial(path, &rewritten.bytes, &Beside::default(), &rewritten.inputs).unwrap();
    for (seed, count) in [(77, 4), (78, 5)] {
        let rows = crate::agreement::rows(&declaration.inputs, seed);
        let axis = |spec: &TensorSpec| spec.shape.iter().position(|dim| matches!(dim, Dim::Dynamic(_))).unwrap();
        let axes: Vec<_> = rewritten.inputs.iter().map(axis).collect();
        let together = outputs(&mut batched, &crate::agreement::stacked(&rows, count, &axes));
        for (row, inputs) in rows.iter().take(count).enumerate() {
            let alone = outputs(&mut session, inputs);
            for ((spec, alone), together) in rewritten.outputs.iter().zip(&alone).zip(&together) {
                let axis = spec.shape.iter().position(|dim| matches!(dim, Dim::Dynamic(_)));
                let mine = axis.map(|axis| together.row(axis, row));
                assert_same(alone, mine.as_ref().unwrap_or(together), &spec.name);
            }
        }
    }
    Some(())
}

fn outputs(session: &mut OnnxSession, inputs: &[Tensor]) -> Vec<Tensor> {
    let views: Vec<_> = inputs.iter().map(Tensor::view).collect();
    let wanted: Vec<_> = (0..session.outputs().len()).collect();
    let mut outputs: Vec<_> = wanted.iter().map(|_| Tensor::zeros(DType::Float32, &[0])).collect();
    session.forward(&views, &wanted, &mut outputs).unwrap();
    outputs
}

fn assert_same(alone: &Tensor, together: &Tensor, name: &str) {
    assert_eq!(alone.shape(), together.shape(), "{name}");
    if alone.dtype() != DType::Float32 {
        assert_eq!(alone.bytes(), together.bytes(), "{name}");
        return;
    }
    let (alone, together) = (alone.values::<f32>(), together.values::<f32>());
    let finite = alone.iter().filter(|value| value.is_finite()).map(|value| value.abs());
    let scale = 1.0 + finite.fold(0.0, f32::max);
    for (alone, together) in alone.iter().zip(together) {
        let same = alone.total_cmp(together).is_eq() || (alone.is_nan() && together.is_nan());
        assert!(same || (alone - together).abs() <= 1e-4 * scale, "{name}: {together}, alone {alone}");
    }
}

/// A node: operator, which tensors it takes (counted back from the newest), and two small numbers for its attributes.
type Step = (usize, usize, usize, i64, i64);

/// How many operators [`node`] knows.
const OPERATORS: usize = 24;

fn ints(name: &str, values: &[i64]) -> Vec<u8> {
    let packed: Vec<_> = values.iter().flat_map(|&value| written(value as u64)).collect();
    message(5, &[message(1, name.as_bytes()), message(8, &packed), number(20, 7)].concat())
}

fn int(name: &str, value: i64) -> Vec<u8> {
    message(5, &[message(1, name.as_bytes()), number(3, value as u64), number(20, 2)].concat())
}

/// A node of the graph, in the names of opset 11, where axes are attributes. `constants` are targets of reshapes and indices,
/// by name.
fn node(
    (operator, one, other, small, axis): Step,
    names: &[String],
    constants: &mut Vec<(String, Vec<i64>)>,
) -> Vec<u8> {
    let pick = |back: usize| names[names.len() - 1 - back % names.len()].clone();
    let (first, second) = (pick(one), pick(other));
    let mut constant = |values: Vec<i64>| {
        let name = format!("c{}", constants.len());
        constants.push((name.clone(), values));
        name
    };
    let targets = [
        vec![1, -1],
        vec![1, 6],
        vec![1, 1, -1],
        vec![1, 2, 3],
        vec![-1],
        vec![1, 6, 1],
        vec![2, 1, 3],
        vec![-1, 3],
        vec![6],
        vec![0, -1],
    ];
    let target = || targets[small.unsigned_abs() as usize % targets.len()].clone();
    let (op, inputs, attributes): (&str, Vec<String>, Vec<Vec<u8>>) = match operator {
        0 => ("Relu", vec![first], vec![]),
        1 => ("Add", vec![first, second], vec![]),
        2 => ("Mul", vec![first, second], vec![]),
        3 => ("Max", vec![first, second], vec![]),
        4 => ("MatMul", vec![first, "w".into()], vec![]),
        5 => ("ReduceMax", vec![first], vec![ints("axes", &[axis]), int("keepdims", small & 1)]),
        6 => ("ReduceMean", vec![first], vec![int("keepdims", small & 1)]),
        7 => ("Softmax", vec![first], vec![int("axis", axis)]),
        8 => ("Reshape", vec![first, constant(target())], vec![]),
        9 => ("Transpose", vec![first], vec![ints("perm", if small & 1 == 0 { &[1, 0] } else { &[1, 0, 2] })]),
        10 => ("Concat", vec![first, second], vec![int("axis", axis)]),
        11 => ("Gather", vec![first, constant(vec![small & 1])], vec![int("axis", axis)]),
        12 => ("Flatten", vec![first], vec![int("axis", axis)]),
        13 => (
            "Expand",
            vec![first, constant(target().into_iter().map(i64::abs).map(|size| size.max(1)).collect())],
            vec![],
        ),
        14 => ("Squeeze", vec![first], vec![ints("axes", &[axis])]),
        15 => ("Unsqueeze", vec![first], vec![ints("axes", &[axis])]),
        16 => ("ArgMax", vec![first], vec![int("axis", axis), int("keepdims", small & 1)]),
        17 => ("Squeeze", vec![first], vec![]),
        18 => ("Tanh", vec![first], vec![]),
        19 => ("Sign", vec![first], vec![]),
        20 => ("LpNormalization", vec![first], vec![int("axis", axis)]),
        21 => ("Concat", vec![first, if small & 1 == 0 { "v" } else { "u" }.into()], vec![int("axis", axis)]),
        22 => ("Concat", vec!["w".into(), first], vec![int("axis", axis)]),
        _ => ("InstanceNormalization", vec![first, "s".into(), "s".into()], vec![]),
    };
    let inputs: Vec<_> = inputs.iter().flat_map(|name| message(1, name.as_bytes())).collect();
    let output = message(2, format!("t{}", names.len()).as_bytes());
    message(1, &[inputs, output, message(4, op.as_bytes()), attributes.concat()].concat())
}

fn initializer(name: &str, dims: &[u64], data_type: u64, raw: &[u8]) -> Vec<u8> {
    let dims: Vec<_> = dims.iter().flat_map(|&dim| number(1, dim)).collect();
    message(5, &[dims, number(2, data_type), message(8, name.as_bytes()), message(9, raw)].concat())
}

/// The file of a graph that takes `obs` of [1, 6] and `h` of [1, 1, 6].
fn file(steps: &[Step]) -> Vec<u8> {
    let mut names = vec!["h".to_owned(), "obs".to_owned()];
    let mut constants = Vec::new();
    let mut graph = message(2, b"fuzzed");
    for step in steps {
        graph.extend(node(*step, &names, &mut constants));
        names.push(format!("t{}", names.len()));
    }
    let weights: Vec<_> = (0..36_u8).flat_map(|index| (f32::from(index * 7 % 11) / 5.0 - 1.0).to_le_bytes()).collect();
    graph.extend(initializer("w", &[6, 6], 1, &weights));
    graph.extend(initializer("s", &[1], 1, &1_f32.to_le_bytes()));
    graph.extend(initializer("v", &[1, 6], 1, &weights[..24]));
    graph.extend(initializer("u", &[1, 1, 6], 1, &weights[24..48]));
    for (name, values) in &constants {
        let raw: Vec<_> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        graph.extend(initializer(name, &[values.len() as u64], 7, &raw));
    }
    let value = |name: &str, dims: &[u64]| {
        let shape: Vec<_> = dims.iter().flat_map(|&dim| message(1, &number(1, dim))).collect();
        let tensor = [number(1, 1), message(2, &shape)].concat();
        [message(1, name.as_bytes()), message(2, &message(1, &tensor))].concat()
    };
    graph.extend(message(11, &value("obs", &[1, 6])));
    graph.extend(message(11, &value("h", &[1, 1, 6])));
    // The type of the output is left to ONNX Runtime, so this is declared as it mostly is.
    let output = [number(1, if steps.last().is_some_and(|step| step.0 == 16) { 7 } else { 1 })].concat();
    let output = [message(1, names[names.len() - 1].as_bytes()), message(2, &message(1, &output))].concat();
    graph.extend(message(12, &output));
    [number(1, 6), message(8, &number(2, 11)), message(7, &graph)].concat()
}

#[test]
fn graphs_made_up_node_by_node_are_rewritten_rightly_or_not_at_all() {
    let Some(workshop) = workshop() else { return };
    let (begun, rewritten) = (Instant::now(), std::cell::Cell::new(0));
    let step = (0..OPERATORS, 0..4_usize, 0..4_usize, 0..20_i64, -2..3_i64);
    let run = |steps: Vec<Step>| {
        if begun.elapsed().as_secs() < SECONDS && check(workshop, &file(&steps)).is_some() {
            rewritten.set(rewritten.get() + 1);
        }
        Ok(())
    };
    TestRunner::new(config(4000)).run(&prop::collection::vec(step, 1..6), run).unwrap();
    let rewritten = rewritten.get();
    assert!(rewritten > 20, "only {rewritten} graphs were rewritten, so little was tried");
}

#[test]
fn a_real_file_with_exchanged_bytes_is_rewritten_rightly_or_not_at_all() {
    let (Some(workshop), Some(bytes)) = (workshop(), shared("mujoco_go1.onnx")) else { return };
    let begun = Instant::now();
    // The graph's nodes come first in this file, then the weights.
    let near_the_start = exchanges().prop_map(|mut exchanges| {
        for exchange in &mut exchanges {
            exchange.0 *= 0.004;
        }
        exchanges
    });
    let run = |exchanges: Vec<_>| {
        if begun.elapsed().as_secs() < SECONDS {
            check(workshop, &exchanged(&bytes, &exchanges));
        }
        Ok(())
    };
    TestRunner::new(config(200)).run(&near_the_start, run).unwrap();
    assert!(check(workshop, &bytes).is_some());
}

#[test]
fn what_is_not_known_stays() {
    let unknown = message(99, b"of a later version");
    let graph = [&file(&[(18, 0, 0, 0, 0)])[..], &unknown].concat();
    let plan = Plan { axes: HashMap::from([("obs".to_owned(), 0)]), reshape_axis: 0, source: ("obs".into(), 0) };
    let edited = rewrite::rewrite(&graph, &plan, &HashMap::new(), &HashMap::new()).unwrap();
    assert!(edited.ends_with(&unknown));
    let before = Declaration::read(&graph).unwrap();
    let after = Declaration::read(&edited).unwrap();
    assert_eq!(after.inputs[0].shape, [Dim::Dynamic("batch".into()), Dim::Fixed(6)]);
    assert_eq!(after.inputs[1], before.inputs[1]);
}
