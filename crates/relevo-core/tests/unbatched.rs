//! Models without an axis for rows take one row at a time; what each tensor lacks is added to it.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::made::{Made, spec, tensor};
use relevo_core::{
    policy::{Batch, OutputRole},
    spec::DType,
    tensor::{Tensor, TensorView},
};

fn floats<'a>(view: &TensorView<'a>) -> &'a [f32] {
    bytemuck::cast_slice(view.bytes)
}

/// A model of six numbers; element `at` of its answer is their sum, times `at + 1`.
fn sums(input: &[i64], output: &[i64]) -> Made {
    let shape: Vec<_> = output.iter().map(|size| usize::try_from(*size).unwrap()).collect();
    let (input, output) = (spec("obs", DType::Float32, input), spec("action", DType::Float32, output));
    Made::new(vec![input], vec![output], move |inputs| {
        let sum: f32 = floats(&inputs[0]).iter().sum();
        Ok(vec![tensor(&shape, |at| sum * (at as f32 + 1.0))])
    })
}

/// The answers to eight rows of six numbers, of which row `r` holds `r` and ones.
fn answers(made: &Made) -> Tensor {
    let loaded = made.loaded(&[]).unwrap();
    let shape = loaded.contract.inputs[0].shape(8);
    let rows = tensor(&shape, |at| if at % 6 == 0 { (at / 6) as f32 } else { 1.0 });
    loaded.forward(&[rows.view()]).unwrap().remove(0)
}

#[test]
fn rows_are_run_one_by_one_and_get_their_own_answers() {
    for (input, output, answer) in [
        (&[1, 6][..], &[3][..], &[3][..]),
        (&[1, 6], &[], &[]),
        (&[6], &[3], &[3]),
        (&[6], &[1], &[1]),
        (&[6], &[], &[]),
        (&[6], &[1, 3], &[3]),
        (&[2, 3], &[3], &[3]),
        (&[2, 3], &[2, 2], &[2, 2]),
    ] {
        let made = sums(input, output);
        let contract = made.contract(&[]).unwrap();
        assert!(matches!(contract.batch, Batch::One { .. }), "{input:?}");
        let output = &contract.outputs[0];
        assert_eq!((output.batch_axis, &output.row_shape[..]), (Some(0), answer), "{input:?} {output:?}");
        let expected =
            (0..8).flat_map(|row| (0..output.row_len()).map(move |at| (row as f32 + 5.0) * (at as f32 + 1.0)));
        assert_eq!(answers(&made).values::<f32>(), expected.collect::<Vec<_>>(), "{input:?}");
        made.slot("sums").unwrap();
    }
}

#[test]
fn what_lacks_the_axis_is_told() {
    let loaded = sums(&[6], &[3]).loaded(&[]).unwrap();
    let Batch::One { reason } = &loaded.contract.batch else { panic!("{:?}", loaded.contract.batch) };
    assert_eq!(reason, "no axis counts the rows of `obs`, `action`");
    assert!(loaded.model.facts().notes.iter().any(|note| note.contains("of size 1 is put before")));
}

#[test]
fn constants_stay_constants() {
    let (input, outputs) = (
        spec("obs", DType::Float32, &[1, 6]),
        [
            spec("answer", DType::Float32, &[3]),
            spec("limits", DType::Float32, &[2]),
            spec("log_std", DType::Float32, &[3]),
        ],
    );
    let run = |inputs: &[TensorView<'_>]| {
        let first = floats(&inputs[0])[0];
        Ok(vec![tensor(&[3], |_| first), tensor(&[2], |at| at as f32), tensor(&[3], |_| 0.5)])
    };
    let contract = Made::new(vec![input], outputs.to_vec(), run).contract(&[]).unwrap();
    let axes: Vec<_> = contract.outputs.iter().map(|output| (output.role, output.batch_axis)).collect();
    let expected = [(OutputRole::Action, Some(0)), (OutputRole::Constant, None), (OutputRole::LogStd, None)];
    assert_eq!(axes, expected);
}

#[test]
fn a_network_of_zeros_has_an_answer() {
    let made =
        Made::new(vec![spec("obs", DType::Float32, &[1, 6])], vec![spec("actions", DType::Float32, &[3])], |_| {
            Ok(vec![tensor(&[3], |_| 0.0)])
        });
    assert_eq!(made.contract(&[]).unwrap().outputs[0].batch_axis, Some(0));
}

#[test]
fn a_single_row_that_loses_its_axis_is_run_alone() {
    // What torch's `squeeze()` without an axis makes.
    let made = Made::new(
        vec![spec("obs", DType::Float32, &[-1, 6])],
        vec![spec("action", DType::Float32, &[-1, 3])],
        |inputs| {
            let rows = inputs[0].shape[0];
            let shape = if rows == 1 { vec![3] } else { vec![rows, 3] };
            Ok(vec![tensor(&shape, |at| floats(&inputs[0])[at / 3 * 6])])
        },
    );
    assert!(matches!(made.contract(&[]).unwrap().batch, Batch::One { .. }));
    let loaded = made.load();
    for rows in [1, 8] {
        let answers = loaded.forward(&[tensor(&[rows, 6], |at| (at / 6) as f32).view()]).unwrap().remove(0);
        assert_eq!(answers.values::<f32>(), (0..rows * 3).map(|at| (at / 3) as f32).collect::<Vec<_>>());
    }
}

#[test]
fn a_batch_of_another_size_is_none() {
    // Row by row, for exactly eight rows.
    let made = Made::new(
        vec![spec("obs", DType::Float32, &[8, 6])],
        vec![spec("action", DType::Float32, &[8, 2])],
        |inputs| Ok(vec![tensor(&[8, 2], |at| floats(&inputs[0])[at / 2 * 6])]),
    );
    let told = made.contract(&[]).unwrap_err().to_string();
    assert!(told.contains("is declared for batches of exactly 8 rows"), "{told}");
}

#[test]
fn states_without_the_axis_are_kept_for_each_actor() {
    let made = Made::new(
        vec![spec("obs", DType::Float32, &[2]), spec("h_in", DType::Float32, &[2, 3])],
        vec![spec("action", DType::Float32, &[2]), spec("h_out", DType::Float32, &[2, 3])],
        |inputs| {
            let (observation, state) = (floats(&inputs[0]), floats(&inputs[1]));
            Ok(vec![tensor(&[2], |at| observation[at] + state[at]), tensor(&[2, 3], |at| state[at] + 1.0)])
        },
    );
    let contract = made.contract(&[]).unwrap();
    assert!(contract.recurrent);
    assert_eq!((contract.inputs[1].batch_axis, &contract.inputs[1].row_shape[..]), (0, &[2, 3][..]));
    made.slot("states").unwrap();
}
