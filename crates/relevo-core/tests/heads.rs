//! Which outputs heads read, and what they make of several.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::made::{Made, spec, tensor};
use relevo_core::{
    policy::{
        Contract, Head, HeadError, HeadKind, HeadRequest, HeadRows, HeadScratch, OutputRole, PolicyOptions,
        random::Stream,
    },
    spec::{DType, TensorSpec},
    tensor::Tensor,
};

const ROWS: usize = 11;

fn float(name: &str, shape: &[i64]) -> TensorSpec {
    spec(name, DType::Float32, shape)
}

/// Outputs of these shapes; -1 counts the rows.
fn giving(outputs: &[(&'static str, &[i64])]) -> Contract {
    let specs: Vec<_> = outputs.iter().map(|(name, shape)| float(name, shape)).collect();
    let shapes: Vec<Vec<i64>> = outputs.iter().map(|(_, shape)| shape.to_vec()).collect();
    let model = Made::new(vec![float("obs", &[-1, 2])], specs, move |inputs| {
        let rows = inputs[0].shape[0];
        let size = |size: &i64| usize::try_from(*size).unwrap_or(rows);
        Ok(shapes.iter().map(|shape| tensor(&shape.iter().map(size).collect::<Vec<_>>(), |at| at as f32)).collect())
    });
    model.contract(&[]).unwrap()
}

fn head(contract: &Contract) -> Head {
    Head::new(&PolicyOptions::default(), contract, false).unwrap()
}

/// Numbers that differ from cell to cell.
fn mixed(shape: &[usize]) -> Tensor {
    tensor(shape, |at| ((at * 37) % 23) as f32 / 5.0 - 2.0)
}

/// Actions and log-probabilities of whole rows.
fn run(head: &Head, outputs: &[Tensor], mask: Option<&[u8]>, deterministic: bool) -> (Vec<u8>, Vec<f32>) {
    let column = &head.actions()[0];
    let mut actions = vec![0; ROWS * column.shape.iter().product::<usize>() * column.dtype.size()];
    let mut log_probs = vec![0.0; ROWS];
    let streams: Vec<_> = (0..ROWS as u32).map(|actor| Stream { actor, draw: 3 }).collect();
    let request = HeadRequest { seed: 7, streams: &streams, deterministic: deterministic.then_some(true), mask };
    let rows = HeadRows {
        actions: std::iter::once(&mut actions[..]).collect(),
        log_probs: Some(&mut log_probs),
        values: None,
    };
    head.run(outputs, &request, rows, &mut HeadScratch::default()).unwrap();
    (actions, log_probs)
}

/// The log-probability of `action` under the softmax of the logits that the mask allows.
fn log_softmax(logits: &[f32], mask: &[u8], action: usize) -> f64 {
    let allowed = logits.iter().zip(mask).filter(|(_, allowed)| **allowed != 0);
    f64::from(logits[action]) - allowed.map(|(logit, _)| f64::from(*logit).exp()).sum::<f64>().ln()
}

#[test]
fn several_logits_are_branches_of_one_action() {
    let contract = giving(&[("move_logits", &[-1, 3]), ("value", &[-1, 1]), ("jump_logits", &[-1, 2])]);
    let head = head(&contract);
    assert_eq!(head.branches(), [3, 2]);
    assert_eq!((head.actions()[0].dtype, &head.actions()[0].shape[..]), (DType::Int64, &[2][..]));
    assert_eq!(head.unused_actions(&contract), [""; 0]);
    let outputs: Vec<_> = head.wanted().iter().map(|at| mixed(&contract.outputs[*at].shape(ROWS))).collect();
    let (moves, jumps) = (outputs[0].values::<f32>(), outputs[1].values::<f32>());
    // Each row allows all but one move, and one jump in every second row.
    let mask: Vec<u8> = (0..ROWS)
        .flat_map(|row| (0..5).map(move |column| u8::from(column != row % 3 && !(row % 2 == 1 && column == 3))))
        .collect();
    for deterministic in [false, true] {
        let (actions, log_probs) = run(&head_without_value(&contract), &outputs[..2], Some(&mask), deterministic);
        let actions: &[i64] = bytemuck::cast_slice(&actions);
        for row in 0..ROWS {
            let (step, jump) = (actions[row * 2] as usize, actions[row * 2 + 1] as usize);
            let mask = &mask[row * 5..][..5];
            assert!(mask[step] == 1 && mask[3 + jump] == 1, "{row}");
            let expected = log_softmax(&moves[row * 3..][..3], &mask[..3], step)
                + log_softmax(&jumps[row * 2..][..2], &mask[3..], jump);
            assert!((f64::from(log_probs[row]) - expected).abs() < 1e-5, "{row}: {} {expected}", log_probs[row]);
            if deterministic {
                let best = |logits: &[f32], mask: &[u8], picked: usize| {
                    logits.iter().zip(mask).all(|(logit, allowed)| *allowed == 0 || *logit <= logits[picked])
                };
                assert!(best(&moves[row * 3..][..3], mask, step) && best(&jumps[row * 2..][..2], &mask[3..], jump));
            }
        }
    }
}

fn head_without_value(contract: &Contract) -> Head {
    let mut contract = contract.clone();
    contract.outputs.retain(|output| output.spec.name != "value");
    head(&contract)
}

#[test]
fn several_logits_draw_as_one_output_with_all_of_them() {
    let apart = head(&giving(&[("a_logits", &[-1, 3]), ("b_logits", &[-1, 2])]));
    let together = giving(&[("logits", &[-1, 5])]);
    let options = PolicyOptions { branches: vec![3, 2], ..PolicyOptions::default() };
    let together = Head::new(&options, &together, false).unwrap();
    let all = mixed(&[ROWS, 5]);
    let columns = |first: usize, width: usize| {
        tensor(&[ROWS, width], |at| all.values::<f32>()[at / width * 5 + first + at % width])
    };
    let parts = [columns(0, 3), columns(3, 2)];
    assert_eq!(run(&apart, &parts, None, false), run(&together, std::slice::from_ref(&all), None, false));
}

#[test]
fn logits_of_rank_three_are_branches() {
    let contract = giving(&[("logits", &[-1, 4, 3])]);
    let head = head(&contract);
    assert_eq!(head.branches(), [3, 3, 3, 3]);
    assert_eq!(head.actions()[0].shape, [4]);
    let logits = mixed(&[ROWS, 4, 3]);
    let (actions, log_probs) = run(&head, std::slice::from_ref(&logits), None, false);
    let actions: &[i64] = bytemuck::cast_slice(&actions);
    for row in 0..ROWS {
        let branch = |branch: usize| {
            log_softmax(
                &logits.values::<f32>()[(row * 4 + branch) * 3..][..3],
                &[1; 3],
                actions[row * 4 + branch] as usize,
            )
        };
        let expected: f64 = (0..4).map(branch).sum();
        assert!((f64::from(log_probs[row]) - expected).abs() < 1e-5);
    }
}

#[test]
fn what_no_head_reads_is_named() {
    let contract = giving(&[("actions", &[-1, 2]), ("mu", &[-1, 2]), ("loc", &[-1, 2])]);
    assert_eq!(head(&contract).unused_actions(&contract), ["mu", "loc"]);
    let keep = PolicyOptions { keep_outputs: true, ..PolicyOptions::default() };
    assert_eq!(Head::new(&keep, &contract, false).unwrap().unused_actions(&contract), ["mu", "loc"]);
    let contract = giving(&[("move_logits", &[-1, 3]), ("jump_logits", &[-1, 2])]);
    let raw = Head::new(&PolicyOptions::with_head(HeadKind::Raw), &contract, false).unwrap();
    assert_eq!(raw.unused_actions(&contract), ["jump_logits"]);
}

/// A contract of outputs that give these rows for every observation.
fn giving_rows(outputs: &[(&'static str, &'static [f32])]) -> Contract {
    let specs = outputs.iter().map(|(name, row)| float(name, &[-1, row.len() as i64])).collect();
    let rows: Vec<_> = outputs.iter().map(|(_, row)| *row).collect();
    let model = Made::new(vec![float("obs", &[-1, 2])], specs, move |inputs| {
        let count = inputs[0].shape[0];
        Ok(rows.iter().map(|row| tensor(&[count, row.len()], |at| row[at % row.len()])).collect())
    });
    model.contract(&[]).unwrap()
}

#[test]
fn probabilities_are_drawn_from_as_they_are() {
    const SHARES: [f32; 3] = [0.7, 0.0, 0.3];
    for name in ["probs", "action_probs", "policy/probabilities:0"] {
        let contract = giving_rows(&[(name, &SHARES)]);
        assert_eq!(contract.outputs[0].role, OutputRole::Probabilities, "{name}");
        let head = head(&contract);
        assert_eq!(head.describe(), "categorical");
        let (actions, log_probs) = run(&head, &[tensor(&[ROWS, 3], |at| SHARES[at % 3])], None, false);
        let actions: Vec<i64> = bytemuck::cast_slice(&actions).to_vec();
        assert!(actions.contains(&0) && actions.contains(&2) && !actions.contains(&1), "{actions:?}");
        for (action, log_prob) in actions.iter().zip(log_probs) {
            assert!((SHARES[*action as usize].ln() - log_prob).abs() < 1e-6);
        }
        // What a mask leaves is all there is.
        let mask: Vec<u8> = [0, 1, 1].repeat(ROWS);
        let (_, log_probs) = run(&head, &[tensor(&[ROWS, 3], |at| SHARES[at % 3])], Some(&mask), false);
        assert_eq!(log_probs, [0.0; ROWS]);
    }
    // Each choice of its own: no distribution.
    let contract = giving_rows(&[("probs", &[0.7, 0.9, 0.3])]);
    assert_eq!(contract.outputs[0].role, OutputRole::Action);
}

#[test]
fn log_probabilities_of_all_choices_are_logits() {
    let contract = giving(&[("log_probs", &[-1, 3]), ("value", &[-1, 1])]);
    assert_eq!(contract.outputs[0].role, OutputRole::Logits);
    let contract = giving(&[("logits", &[-1, 3]), ("log_probs", &[-1, 3])]);
    assert_eq!(contract.outputs[1].role, OutputRole::LogProb);
}

#[test]
fn probabilities_below_zero_are_told() {
    let head = head(&giving_rows(&[("probs", &[0.5, 0.5])]));
    let mut actions = [0_u8; 8];
    let mut log_probs = [0.0];
    let request = HeadRequest { seed: 7, streams: &[Stream { actor: 0, draw: 3 }], deterministic: None, mask: None };
    let rows = HeadRows {
        actions: std::iter::once(&mut actions[..]).collect(),
        log_probs: Some(&mut log_probs),
        values: None,
    };
    let numbers = tensor(&[1, 2], |at| [-0.5, 1.5][at]);
    let error = head.run(&[numbers], &request, rows, &mut HeadScratch::default()).unwrap_err();
    assert_eq!(error, HeadError::Row { row: 0, what: "gave a probability below zero, or NaN, for".into() });
}

#[test]
fn a_standard_deviation_is_read_as_its_logarithm_would_be() {
    let of = |name| head(&giving(&[("mu", &[-1, 3]), (name, &[-1, 3])]));
    let deviation = |at: usize| (at % 5) as f32 / 4.0 + 0.1;
    let outputs = |deviations: Tensor| [deviations, mixed(&[ROWS, 3])];
    let expected = run(&of("log_std"), &outputs(tensor(&[ROWS, 3], |at| deviation(at).ln())), None, false);
    for name in ["std", "sigma", "scale", "policy/action_std"] {
        assert_eq!(of(name).describe(), "gaussian");
        assert_eq!(run(&of(name), &outputs(tensor(&[ROWS, 3], deviation)), None, false), expected);
    }
    // Something else than a deviation of these means.
    assert_eq!(head(&giving(&[("mu", &[-1, 3]), ("scale", &[-1, 2])])).describe(), "raw");
}

#[test]
fn a_standard_deviation_of_zero_is_told() {
    let head = head(&giving(&[("mu", &[-1, 2]), ("std", &[-1, 2])]));
    let (mut actions, mut log_probs) = ([0_u8; 8], [0.0]);
    let request = HeadRequest { seed: 7, streams: &[Stream { actor: 0, draw: 3 }], deterministic: None, mask: None };
    let rows = HeadRows {
        actions: std::iter::once(&mut actions[..]).collect(),
        log_probs: Some(&mut log_probs),
        values: None,
    };
    let outputs = [tensor(&[1, 2], |at| at as f32), tensor(&[1, 2], |_| 0.5)];
    let error = head.run(&outputs, &request, rows, &mut HeadScratch::default()).unwrap_err();
    let what = "gave a standard deviation that is not a number above zero to".into();
    assert_eq!(error, HeadError::Row { row: 0, what });
}

#[test]
fn one_log_std_is_for_all_elements() {
    let wide = head(&giving(&[("mu", &[-1, 3]), ("log_std", &[3])]));
    // The head asks for the deviation first.
    let means = || mixed(&[ROWS, 3]);
    let expected = run(&wide, &[tensor(&[3], |_| -0.75), means()], None, false);
    for shape in [&[][..], &[1], &[1, 1]] {
        let contract = giving(&[("mu", &[-1, 3]), ("log_std", shape)]);
        let sizes: Vec<usize> = shape.iter().map(|_| 1).collect();
        assert_eq!(run(&head(&contract), &[tensor(&sizes, |_| -0.75), means()], None, false), expected);
    }
    // One number for each actor.
    let rows = head(&giving(&[("mu", &[-1, 3]), ("log_std", &[-1, 3])]));
    let expected = run(&rows, &[tensor(&[ROWS, 3], |at| (at / 3) as f32 / 9.0), means()], None, false);
    let narrow = head(&giving(&[("mu", &[-1, 3]), ("log_std", &[-1, 1])]));
    assert_eq!(run(&narrow, &[tensor(&[ROWS, 1], |row| row as f32 / 9.0), means()], None, false), expected);
    let two = giving(&[("mu", &[-1, 3]), ("log_std", &[2])]);
    let told = Head::new(&PolicyOptions::default(), &two, false).unwrap_err().to_string();
    assert!(told.contains("has 2; it must have as many, or 1 for all"), "{told}");
}
