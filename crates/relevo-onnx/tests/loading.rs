//! Files, devices and libraries that cannot be used: what is told, and that nothing crashes.

mod common;

use std::path::Path;

use common::{
    Value, empty, external_initializer, float_tensor, load, message, onnx_file, policies, refusal, run,
    runtime_is_here, write,
};
use relevo_core::{
    error::Error,
    policy::{Backend, LoadOptions, ModelSource},
    tensor::TensorView,
};
use relevo_onnx::OnnxBackend;

const FLOAT: u64 = 1;

#[test]
fn files_are_accepted_by_name() {
    let backend = OnnxBackend::new();
    assert_eq!(backend.format(), "onnx");
    assert!(backend.accepts(Path::new("a/policy.onnx")) && backend.accepts(Path::new("POLICY.ONNX")));
    assert!(!backend.accepts(Path::new("policy.pt")) && !backend.accepts(Path::new("onnx")));
}

#[test]
fn a_graph_output_that_no_node_makes_is_named() {
    let Some(folder) = policies() else { return };
    let path = folder.join("mlagents_broken_output.onnx");
    let reason = refusal(&path);
    assert!(reason.contains("`memory_size` is not produced by any node") && reason.contains("re-export"), "{reason}");
    assert!(load(&path).unwrap_err().to_string().contains("mlagents_broken_output.onnx"));
}

#[test]
fn files_that_hold_no_model_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let whole = onnx_file(&[("Relu", &["x"], &["y"])], &[("x", FLOAT, &[None])], &[("y", FLOAT, &[None])], &[]);
    for (name, bytes, expected) in [
        ("empty.onnx", &b""[..], "the file is empty"),
        ("text.onnx", b"this is a text\nof two lines\n", "not an ONNX file"),
        ("cut.onnx", &whole[..whole.len() - 5], "cut short"),
        ("headless.onnx", &message(2, b"tool"), "no graph"),
    ] {
        let reason = refusal(&write(&folder, name, bytes));
        assert!(reason.contains(expected) && reason.contains("export the model again"), "{name}: {reason}");
    }
}

#[test]
fn a_truncated_policy_is_refused() {
    let Some(folder) = policies() else { return };
    let bytes = std::fs::read(folder.join("mujoco_go1.onnx")).unwrap();
    let place = tempfile::tempdir().unwrap();
    for length in [1000, bytes.len() / 2, bytes.len() - 10, bytes.len() - 1] {
        let reason = refusal(&write(&place, "cut.onnx", &bytes[..length]));
        assert!(reason.contains("export the model again"), "{length} bytes: {reason}");
    }
}

#[test]
fn a_missing_file_is_told() {
    let reason = refusal(Path::new("nowhere/policy.onnx"));
    assert!(reason.contains("check that the path names"), "{reason}");
    let folder = tempfile::tempdir().unwrap();
    assert!(refusal(folder.path()).contains("check that the path names"));
}

#[test]
fn tensors_that_are_no_numbers_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    for (element_type, word) in [(8, "string"), (14, "complex64"), (16, "bfloat16"), (0, "undefined")] {
        let value: Value<'_> = ("words", element_type, &[None]);
        let file = onnx_file(&[("Identity", &["words"], &["y"])], &[value], &[("y", FLOAT, &[None])], &[]);
        let reason = refusal(&write(&folder, "words.onnx", &file));
        assert!(reason.contains("input `words`") && reason.contains(word), "{reason}");
    }
    // A value info whose type is a sequence (field 4 of the type) in place of a tensor.
    let sequence = [message(1, b"list"), message(2, &message(4, b""))].concat();
    let file = message(7, &[message(11, &sequence), message(12, &sequence)].concat());
    let reason = refusal(&write(&folder, "sequence.onnx", &file));
    assert!(reason.contains("`list` is not declared as a dense tensor"), "{reason}");
}

#[test]
fn what_the_runtime_refuses_is_told_in_its_words() {
    if !runtime_is_here() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = onnx_file(&[("NoSuchOp", &["x"], &["y"])], &[("x", FLOAT, &[None])], &[("y", FLOAT, &[None])], &[]);
    let reason = refusal(&write(&folder, "strange.onnx", &file));
    assert!(reason.contains("ONNX Runtime refuses it") && reason.contains("NoSuchOp"), "{reason}");
    assert!(!reason.contains(".cc:") && !reason.contains('\n'), "{reason}");
}

#[test]
fn rows_that_no_memory_holds_are_refused_before_anything_is_allocated() {
    if !runtime_is_here() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for sizes in [&[None, Some(1 << 40)][..], &[None, Some(1 << 62)], &[None, Some(1 << 33), Some(1 << 33)]] {
        let (input, small) = (("obs", FLOAT, sizes), ("y", FLOAT, &[None, Some(3)][..]));
        for (inputs, outputs, named) in [
            ([input], [("y", FLOAT, sizes)], "input `obs`"),
            ([("obs", FLOAT, small.2)], [("y", FLOAT, sizes)], "output `y`"),
        ] {
            let file = onnx_file(&[("Identity", &["obs"], &["y"])], &inputs, &outputs, &[]);
            let reason = refusal(&write(&folder, "huge.onnx", &file));
            assert!(reason.contains(named) && reason.contains("256 MiB at most; export"), "{reason}");
        }
    }
}

#[test]
fn other_devices_are_not_there() {
    let options = LoadOptions { device: "cuda:0".into(), ..LoadOptions::default() };
    match OnnxBackend::new().load(ModelSource { path: Path::new("policy.onnx"), bytes: None }, &options) {
        Err(Error::DeviceUnavailable(text)) => assert!(text.contains("`cuda:0`") && text.contains("`cpu`"), "{text}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn no_thread_is_too_few() {
    let options = LoadOptions { threads: 0, ..LoadOptions::default() };
    match OnnxBackend::new().load(ModelSource { path: Path::new("policy.onnx"), bytes: None }, &options) {
        Err(Error::Config(text)) => assert!(text.contains("1 thread or more"), "{text}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn weights_beside_the_file_are_found() {
    if !runtime_is_here() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let weights: Vec<u8> = [1.0_f32, 2.0, 3.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    let shape: [Option<u64>; 1] = [Some(3)];
    let file = onnx_file(
        &[("Add", &["x", "w"], &["y"])],
        &[("x", FLOAT, &shape)],
        &[("y", FLOAT, &shape)],
        &[external_initializer("w", 3, "weights.data")],
    );
    let path = write(&folder, "policy.onnx", &file);
    assert!(refusal(&path).contains("weights.data"), "{}", refusal(&path));
    write(&folder, "weights.data", &weights);
    let outputs = run(&*load(&path).unwrap(), &[float_tensor(&[3], &[10.0, 20.0, 30.0])]).unwrap();
    assert_eq!(outputs[0].values::<f32>(), [11.0, 22.0, 33.0]);
}

#[test]
fn the_file_may_change_once_it_is_loaded() {
    if !runtime_is_here() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = onnx_file(&[("Neg", &["x"], &["y"])], &[("x", FLOAT, &[None])], &[("y", FLOAT, &[None])], &[]);
    let path = write(&folder, "policy.onnx", &file);
    let model = load(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    let input = float_tensor(&[2], &[1.0, 2.0]);
    let inputs: [TensorView<'_>; 1] = [input.view()];
    for _ in 0..3 {
        let mut outputs = [empty()];
        model.session().unwrap().forward(&inputs, &[0], &mut outputs).unwrap();
        assert_eq!(outputs[0].values::<f32>(), [-1.0, -2.0]);
    }
}
