//! Models that take batches, and either give each row what it gets alone or do not.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use common::made::{Made, spec, tensor};
use relevo_core::{
    Error,
    policy::Batch,
    spec::DType,
    tensor::{Tensor, TensorView},
};

/// A model of `[rows, 2]`, whose action of each row is worked out from all observations and the row.
fn model(action: impl Fn(&[f32], usize) -> f32 + Send + Sync + 'static) -> Made {
    let (input, output) = (spec("obs", DType::Float32, &[-1, 2]), spec("action", DType::Float32, &[-1, 1]));
    Made::new(vec![input], vec![output], move |inputs| {
        let observations = floats(&inputs[0]);
        Ok(vec![tensor(&[inputs[0].shape[0], 1], |row| action(observations, row))])
    })
}

fn floats<'a>(view: &TensorView<'a>) -> &'a [f32] {
    bytemuck::cast_slice(view.bytes)
}

/// Why the model runs row by row; nothing where it need not.
fn reason(model: &Made) -> Option<String> {
    match model.contract(&[]).unwrap().batch {
        Batch::One { reason } => Some(reason),
        Batch::Dynamic { .. } => None,
    }
}

#[track_caller]
fn assert_mixes(model: &Made) {
    assert_eq!(
        reason(model).as_deref(),
        Some("batches run, but rows run together give other numbers than alone in `action`")
    );
}

#[test]
fn rows_on_their_own_are_run_together() {
    assert_eq!(reason(&model(|all, row| all[row * 2] - 3.0 * all[row * 2 + 1])), None);
    // Rounded as another order of the sum may round it; and not numbers at all.
    assert_eq!(reason(&model(|all, row| all[row * 2] * (1.0 + 1e-7 * all.len() as f32))), None);
    assert_eq!(reason(&model(|all, row| all[row * 2].ln())), None);
}

#[test]
fn rows_that_meet_are_run_alone() {
    let mean = |all: &[f32]| all.iter().step_by(2).sum::<f32>() * 2.0 / all.len() as f32;
    assert_mixes(&model(move |all, row| all[row * 2] - mean(all)));
    assert_mixes(&model(move |all, row| all[row * 2] + 1e-3 * mean(all)));
    assert_mixes(&model(|all, row| all[row * 2] + all.iter().copied().fold(f32::MIN, f32::max)));
    assert_mixes(&model(|all, row| if all.iter().any(|number| *number > 2.0) { 1.0 } else { all[row * 2] }));
    // Rows taken for steps of a sequence.
    assert_mixes(&model(|all, row| all[..=row * 2].iter().sum()));
    // Only where one of them is large.
    for limit in [50.0, 255.0, 1000.0] {
        let largest = |all: &[f32]| all.iter().fold(0.0_f32, |largest, number| largest.max(number.abs()));
        assert_mixes(&model(move |all, row| all[row * 2] / largest(all).max(limit) * limit));
        assert_mixes(&model(move |all, row| all[row * 2] / if largest(all) > limit { 255.0 } else { 1.0 }));
    }
    // Only in large batches.
    assert_mixes(&model(|all, row| if all.len() > 10 { all[0] } else { all[row * 2] }));
}

#[test]
fn a_batch_of_one_gives_each_actor_its_own() {
    let group_model = model(|all, row| all[row * 2] - all.iter().step_by(2).sum::<f32>() * 2.0 / all.len() as f32);
    let loaded = group_model.load();
    let observations = tensor(&[3, 2], |at| at as f32);
    let outputs = loaded.forward(&[observations.view()]).unwrap();
    assert_eq!(outputs[0].values::<f32>(), [0.0; 3]);
}

#[test]
fn choices_are_compared_as_they_are() {
    let whole = |choose: fn(&[f32], usize) -> bool| {
        let (input, output) = (spec("obs", DType::Float32, &[-1, 2]), spec("action", DType::Int64, &[-1]));
        Made::new(vec![input], vec![output], move |inputs| {
            let mut action = Tensor::zeros(DType::Int64, &[inputs[0].shape[0]]);
            let choices = action.values_mut::<i64>().iter_mut().enumerate();
            choices.for_each(|(row, choice)| *choice = i64::from(choose(floats(&inputs[0]), row)));
            Ok(vec![action])
        })
    };
    assert_eq!(reason(&whole(|all, row| all[row * 2] > all[row * 2 + 1])), None);
    assert_mixes(&whole(|all, row| all[row * 2] > all[0]));
}

#[test]
fn whole_numbers_of_every_size_are_tried() {
    // The largest number of a batch divides all of it, from 50 on; beyond a table the model fails.
    let whole = |dtype: DType, numbers: fn(&TensorView<'_>) -> Vec<f32>, table: f32| {
        let (input, output) = (spec("obs", dtype, &[-1, 8]), spec("action", DType::Float32, &[-1, 1]));
        Made::new(vec![input], vec![output], move |inputs| {
            let all = numbers(&inputs[0]);
            let largest = all.iter().copied().fold(0.0, f32::max);
            if largest >= table {
                return Err(Error::Inference("beyond the table".into()));
            }
            Ok(vec![tensor(&[inputs[0].shape[0], 1], |row| all[row * 8] / largest.max(50.0))])
        })
    };
    let bytes = |view: &TensorView<'_>| view.bytes.iter().map(|number| f32::from(*number)).collect();
    let longs = |view: &TensorView<'_>| bytemuck::cast_slice::<_, i64>(view.bytes).iter().map(|n| *n as f32).collect();
    assert_mixes(&whole(DType::UInt8, bytes, f32::MAX));
    assert_mixes(&whole(DType::Int64, longs, f32::MAX));
    assert_mixes(&whole(DType::Int64, longs, 256.0));
    // Nothing that the table holds is large enough.
    assert_eq!(reason(&whole(DType::Int64, longs, 10.0)), None);
}

#[test]
fn what_is_drawn_at_random_has_nothing_to_be_compared() {
    // With operators that tell of it, and without.
    for told in [true, false] {
        let draws = Arc::new(AtomicU32::new(0));
        let mut model = model(move |_, _| draws.fetch_add(1, Ordering::Relaxed) as f32);
        if told {
            model.facts.random_ops = vec!["RandomNormal".into()];
        }
        assert_eq!(reason(&model), None);
    }
    // An output beside it that is not drawn is compared all the same.
    let draws = AtomicU32::new(0);
    let outputs = vec![spec("noise", DType::Float32, &[-1, 1]), spec("action", DType::Float32, &[-1, 1])];
    let mut model = Made::new(vec![spec("obs", DType::Float32, &[-1, 2])], outputs, move |inputs| {
        let rows = inputs[0].shape[0];
        let noise = tensor(&[rows, 1], |_| draws.fetch_add(1, Ordering::Relaxed) as f32);
        Ok(vec![noise, tensor(&[rows, 1], |_| floats(&inputs[0]).iter().sum())])
    });
    model.facts.random_ops = vec!["RandomNormal".into()];
    assert_mixes(&model);
}

#[test]
fn what_a_model_does_not_take_shows_nothing() {
    // A table of two rows, looked up by the number that comes.
    let model = model(|all, row| if all[row * 2].abs() <= 1.0 { all[row * 2] } else { f32::MAX });
    let run = model.run.clone();
    let model = Made {
        run: Arc::new(move |inputs| {
            let outputs = run(inputs)?;
            let beyond = outputs[0].values::<f32>().contains(&f32::MAX);
            if beyond { Err(Error::Inference("beyond the table".into())) } else { Ok(outputs) }
        }),
        ..model
    };
    assert_eq!(reason(&model), None);
}

#[test]
fn a_batch_that_only_fails_when_it_is_large_is_told() {
    let model = model(|all, row| all[row * 2]);
    let run = model.run.clone();
    let few =
        Made {
            run: Arc::new(move |inputs| {
                if inputs[0].shape[0] > 8 { Err(Error::Inference("eight at most".into())) } else { run(inputs) }
            }),
            ..model
        };
    let reason = reason(&few).unwrap();
    assert!(reason.starts_with("batches of 2 and 3 run, but one of 9 fails: ") && reason.contains("eight"), "{reason}");
}

#[test]
fn a_model_that_takes_another_way_with_many_rows_is_run_row_by_row() {
    assert_mixes(&model(|all, row| all[row * 2] + if all.len() > 80 { 0.1 } else { 0.0 }));
}

#[test]
fn an_answer_for_a_whole_batch_is_told_with_what_to_export() {
    let (input, output) = (spec("obs", DType::Float32, &[-1, 6]), spec("action", DType::Float32, &[3]));
    let sums = |inputs: &[TensorView<'_>]| Ok(vec![tensor(&[3], |_| floats(&inputs[0]).iter().sum::<f32>())]);
    let told = Made::new(vec![input], vec![output], sums).slot("sums").unwrap_err().to_string();
    assert!(told.contains("output `action` has no rows for actors") && told.contains("it is (3,) whatever"), "{told}");
    assert!(told.contains("[1, 6] → [1, 3]"), "{told}");
}
