//! Sessions of one file draw random numbers of their own.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use std::collections::HashSet;

use common::{empty, load, policies};
use relevo_core::{
    policy::Session,
    spec::{DType, Dim, TensorSpec},
    tensor::Tensor,
};

/// A batch of rows that are all alike: zeros, and masks that allow everything.
fn inputs(specs: &[TensorSpec], rows: usize) -> Vec<Tensor> {
    let size = |dim: &Dim| match dim {
        Dim::Fixed(size) => *size,
        Dim::Dynamic(_) => rows,
    };
    let input = |spec: &TensorSpec| {
        let mut input = Tensor::zeros(spec.dtype, &spec.shape.iter().map(size).collect::<Vec<_>>());
        if spec.name.contains("mask") {
            input.values_mut::<f32>().fill(1.0);
        }
        input
    };
    specs.iter().map(input).collect()
}

fn draw(session: &mut dyn Session, inputs: &[Tensor], output: usize) -> Vec<u8> {
    let views: Vec<_> = inputs.iter().map(Tensor::view).collect();
    let mut outputs = [empty()];
    session.forward(&views, &[output], &mut outputs).unwrap();
    outputs[0].bytes().to_vec()
}

#[test]
fn no_two_sessions_draw_alike() {
    let Some(folder) = policies() else { return };
    for (file, output, dtype) in [
        ("mlagents_3dball.onnx", "continuous_actions", DType::Float32),
        ("mlagents_hallway.onnx", "discrete_actions", DType::Int64),
        ("mlagents_sorter.onnx", "discrete_actions", DType::Int64),
    ] {
        let model = load(&folder.join(file)).unwrap();
        let output = model.outputs().iter().position(|spec| spec.name == output).unwrap();
        assert_eq!(model.outputs()[output].dtype, dtype);
        let inputs = inputs(model.inputs(), 256);
        let mut met = HashSet::new();
        for session in 0..4 {
            let mut session_of_its_own = model.session().unwrap();
            for call in 0..3 {
                let new = met.insert(draw(&mut *session_of_its_own, &inputs, output));
                assert!(new, "{file}: call {call} of session {session} repeats an earlier one");
            }
        }
    }
}
