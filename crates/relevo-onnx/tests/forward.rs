//! What a forward pass takes and refuses, on tiny graphs.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]
#![expect(unsafe_code, reason = "what lies on a device has an address")]

mod common;

use std::sync::Arc;

use common::{empty, float_tensor, load, onnx_file, policies, run, runtime_is_here, write};
use relevo_core::{
    error::Error,
    policy::{Model, Session},
    spec::DType,
    tensor::{DeviceId, DeviceMemory, Tensor, TensorView},
};

const FLOAT: u64 = 1;

/// `y = -x` for rows of two, and `x` itself.
fn negation() -> Arc<dyn Model> {
    let folder = tempfile::tempdir().unwrap();
    let value = |name| (name, FLOAT, &[None, Some(2)][..]);
    let nodes: [common::Node<'_>; 2] = [("Neg", &["x"], &["y"]), ("Identity", &["x"], &["copy"])];
    load(&write(&folder, "negation.onnx", &onnx_file(&nodes, &[value("x")], &[value("y"), value("copy")], &[])))
        .unwrap()
}

fn contract_fault(result: relevo_core::Result<()>) -> String {
    match result {
        Err(Error::Contract(text)) => text,
        other => panic!("no contract fault: {other:?}"),
    }
}

#[test]
fn every_element_type_goes_through() {
    if !runtime_is_here() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (number, dtype) in [
        (9, DType::Bool),
        (2, DType::UInt8),
        (3, DType::Int8),
        (4, DType::UInt16),
        (5, DType::Int16),
        (12, DType::UInt32),
        (6, DType::Int32),
        (13, DType::UInt64),
        (7, DType::Int64),
        (10, DType::Float16),
        (1, DType::Float32),
        (11, DType::Float64),
    ] {
        let value = |name| (name, number, &[None][..]);
        let file = onnx_file(&[("Identity", &["x"], &["y"])], &[value("x")], &[value("y")], &[]);
        let model = load(&write(&folder, "identity.onnx", &file)).unwrap();
        assert_eq!(model.inputs()[0].dtype, dtype);
        let mut input = Tensor::zeros(dtype, &[3]);
        input.bytes_mut().iter_mut().enumerate().for_each(|(index, byte)| *byte = (index % 2) as u8);
        let output = run(&*model, std::slice::from_ref(&input)).unwrap().remove(0);
        assert_eq!((output.dtype(), output.shape(), output.bytes()), (dtype, &[3][..], input.bytes()));
    }
}

#[test]
fn an_input_that_is_an_output_too_is_written() {
    if !runtime_is_here() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let value = ("x", FLOAT, &[None][..]);
    let model = load(&write(&folder, "pass.onnx", &onnx_file(&[], &[value], &[value], &[]))).unwrap();
    let input = float_tensor(&[2], &[1.0, 2.0]);
    let mut outputs = [float_tensor(&[2], &[7.0, 7.0])];
    model.session().unwrap().forward(&[input.view()], &[0], &mut outputs).unwrap();
    assert_eq!(outputs[0].values::<f32>(), [1.0, 2.0]);
    let mut outputs = [float_tensor(&[1], &[7.0])];
    match model.session().unwrap().forward(&[input.view()], &[0], &mut outputs) {
        Err(Error::Inference(text)) => assert!(text.contains("(2,)") && text.contains("(1,)"), "{text}"),
        other => panic!("no inference fault: {other:?}"),
    }
}

#[test]
fn buffers_may_move_and_change_their_shape_between_calls() {
    if !runtime_is_here() {
        return;
    }
    let mut session = negation().session().unwrap();
    let mut output = empty();
    for rows in [1, 3, 2, 2, 64, 1] {
        let values: Vec<f32> = (0..rows * 2).map(|value| (value + rows) as f32).collect();
        let input = float_tensor(&[rows, 2], &values);
        output.reset(DType::Float32, &[rows, 2]);
        session.forward(&[input.view()], &[0], std::slice::from_mut(&mut output)).unwrap();
        let negated: Vec<f32> = values.iter().map(|value| -value).collect();
        assert_eq!(output.values::<f32>(), negated);
    }
    // The same memory, written anew: the wrapper is kept, the contents must not be.
    let mut input = float_tensor(&[1, 2], &[1.0, 2.0]);
    session.forward(&[input.view()], &[0], std::slice::from_mut(&mut output)).unwrap();
    input.values_mut::<f32>()[1] = 5.0;
    session.forward(&[input.view()], &[0], std::slice::from_mut(&mut output)).unwrap();
    assert_eq!(output.values::<f32>(), [-1.0, -5.0]);
}

#[test]
fn values_on_the_session_s_device_are_read_there() {
    if !runtime_is_here() {
        return;
    }
    let model = negation();
    assert_eq!(model.device(), DeviceId::CPU);
    let mut session = model.session().unwrap();
    let (there, poison) = (float_tensor(&[1, 2], &[1.0, 2.0]), float_tensor(&[1, 2], &[f32::NAN; 2]));
    let mut output = empty();
    let device = Some(DeviceMemory::of_bytes(there.bytes()));
    for bytes in [poison.bytes(), &[]] {
        let view = TensorView { bytes, device, ..there.view() };
        session.forward(&[view], &[0], std::slice::from_mut(&mut output)).unwrap();
        assert_eq!(output.values::<f32>(), [-1.0, -2.0]);
    }
    // What lies where the session does not read is taken from the CPU's memory.
    let other = float_tensor(&[1, 2], &[3.0, 4.0]);
    let device = there.bytes();
    // SAFETY: the bytes outlive the call.
    let device = Some(unsafe { DeviceMemory::new(DeviceId::cuda(0), device.as_ptr(), device.len()) });
    session.forward(&[TensorView { device, ..other.view() }], &[0], std::slice::from_mut(&mut output)).unwrap();
    assert_eq!(output.values::<f32>(), [-3.0, -4.0]);
    let nowhere = TensorView { bytes: &[], device, ..other.view() };
    assert!(contract_fault(session.forward(&[nowhere], &[0], &mut [empty()])).contains("0 bytes"));
}

#[test]
fn outputs_may_be_chosen_in_any_order() {
    if !runtime_is_here() {
        return;
    }
    let mut session = negation().session().unwrap();
    let input = float_tensor(&[1, 2], &[1.0, 2.0]);
    let mut outputs = [empty(), float_tensor(&[1, 2], &[0.0, 0.0])];
    session.forward(&[input.view()], &[1, 0], &mut outputs).unwrap();
    assert_eq!([outputs[0].values::<f32>(), outputs[1].values()], [[1.0, 2.0], [-1.0, -2.0]]);
    session.forward(&[input.view()], &[0], &mut outputs[..1]).unwrap();
    assert_eq!(outputs[0].values::<f32>(), [-1.0, -2.0]);
}

#[test]
fn what_breaks_the_contract_never_reaches_the_runtime() {
    if !runtime_is_here() {
        return;
    }
    let mut session = negation().session().unwrap();
    let input = float_tensor(&[1, 2], &[1.0, 2.0]);
    let view = input.view();
    let mut forward = |inputs: &[TensorView<'_>], wanted: &[usize], mut outputs: Vec<Tensor>| {
        contract_fault(session.forward(inputs, wanted, &mut outputs))
    };
    let text = forward(&[], &[0], vec![empty()]);
    assert!(text.contains("takes 1 inputs, got 0"), "{text}");
    for shape in [[0, 2], [2, 0]] {
        let text = forward(&[TensorView { shape: &shape, bytes: &[], ..view }], &[0], vec![empty()]);
        assert!(text.contains("no elements") && text.contains("`x`"), "{text}");
    }
    let double = Tensor::zeros(DType::Float64, &[1, 2]);
    let text = forward(&[double.view()], &[0], vec![empty()]);
    assert!(text.contains("float32") && text.contains("float64"), "{text}");
    let text = forward(&[TensorView { bytes: &view.bytes[..4], ..view }], &[0], vec![empty()]);
    assert!(text.contains("4 bytes") && text.contains("(1, 2)"), "{text}");
    let text = forward(&[TensorView { shape: &[usize::MAX, 2], ..view }], &[0], vec![empty()]);
    assert!(text.contains("8 bytes"), "{text}");
    let bytes = Tensor::zeros(DType::UInt8, &[9]);
    let text = forward(&[TensorView { bytes: &bytes.bytes()[1..], ..view }], &[0], vec![empty()]);
    assert!(text.contains("not aligned"), "{text}");
    let text = forward(&[view], &[0, 1], vec![empty()]);
    assert!(text.contains("2 outputs into 1"), "{text}");
    let text = forward(&[view], &[2], vec![empty()]);
    assert!(text.contains("output number 2"), "{text}");
    let text = forward(&[view], &[0, 0], vec![empty(), empty()]);
    assert!(text.contains("`y` twice"), "{text}");
    let text = forward(&[view], &[0], vec![double]);
    assert!(text.contains("float32") && text.contains("float64"), "{text}");
}

#[test]
fn a_zero_row_recurrent_call_does_not_abort() {
    let Some(folder) = policies() else { return };
    let model = load(&folder.join("mlagents_hallway.onnx")).unwrap();
    let inputs: Vec<Tensor> = [&[0, 105][..], &[0, 3], &[0, 5], &[0, 1, 128]]
        .map(|shape| Tensor::zeros(DType::Float32, shape))
        .into_iter()
        .collect();
    let text = contract_fault(run(&*model, &inputs).map(|_| ()));
    assert!(text.contains("`obs_0`") && text.contains("(0, 105)"), "{text}");
}

#[test]
fn a_wrong_width_is_told_with_both_shapes_and_the_session_goes_on() {
    if !runtime_is_here() {
        return;
    }
    let mut session = negation().session().unwrap();
    let inference_fault = |session: &mut dyn Session, input: &Tensor, output: Tensor| match session.forward(
        &[input.view()],
        &[0],
        &mut [output],
    ) {
        Err(Error::Inference(text)) => text,
        other => panic!("no inference fault: {other:?}"),
    };
    let wide = Tensor::zeros(DType::Float32, &[1, 3]);
    let text = inference_fault(&mut *session, &wide, empty());
    assert!(text.contains("x (1, 3) (declared: batch, 2)") && text.contains("negation.onnx"), "{text}");
    assert!(!text.contains('\n') && !text.contains(".cc:"), "{text}");
    // An output tensor of the wrong shape: the run must not write past it.
    let right = float_tensor(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let text = inference_fault(&mut *session, &right, Tensor::zeros(DType::Float32, &[1, 2]));
    assert!(text.contains("x (2, 2)"), "{text}");
    let mut outputs = [empty()];
    session.forward(&[right.view()], &[0], &mut outputs).unwrap();
    assert_eq!(outputs[0].values::<f32>(), [-1.0, -2.0, -3.0, -4.0]);
}

#[test]
fn sessions_run_side_by_side() {
    if !runtime_is_here() {
        return;
    }
    let model = negation();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let mut session = model.session().unwrap();
            scope.spawn(move || {
                let mut output = [float_tensor(&[1, 2], &[0.0, 0.0])];
                for call in 0..1000 {
                    let input = float_tensor(&[1, 2], &[thread as f32, call as f32]);
                    session.forward(&[input.view()], &[0], &mut output).unwrap();
                    assert_eq!(output[0].values::<f32>(), [-(thread as f32), -(call as f32)]);
                }
            });
        }
    });
}
