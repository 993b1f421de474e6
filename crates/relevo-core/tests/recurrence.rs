//! What a model remembers, as names say and forward passes show: which input takes what which output gives, and along which axis
//! the actors lie.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use std::{collections::BTreeMap, path::Path};

use common::made::{Layout, Made, remembering, spec, tensor};
use proptest::prelude::*;
use relevo_core::{
    Error, Result,
    policy::{Batch, Contract, InputRole, MemorySpec, Model, ModelFacts, NextValue, OutputRole, Session, StateLink},
    runtime::{ActOptions, FinalObservations},
    spec::{DType, Dim, TensorSpec},
    tensor::{Tensor, TensorView},
};

/// The names that are paired, and the axis of the actors.
fn pairs(contract: &Contract) -> Vec<(&str, &str, usize)> {
    let name = |link: &StateLink| {
        let input = &contract.inputs[link.input];
        (input.spec.name.as_str(), contract.outputs[link.output].spec.name.as_str(), input.batch_axis)
    };
    contract.states.iter().map(name).collect()
}

fn float(name: &str, shape: &[i64]) -> TensorSpec {
    spec(name, DType::Float32, shape)
}

/// The next value of a state: half of it, and one.
fn faded(state: &TensorView<'_>) -> Tensor {
    let values: &[f32] = bytemuck::cast_slice(state.bytes);
    tensor(state.shape, |at| values[at] * 0.5 + 1.0)
}

/// A model `forward(obs, states…) -> (action, next states…)`; the action is the observation's first number and the sum of the
/// states. `axis` counts the rows of the states.
fn fading(states: &[(&str, &str)], shape: &[i64], axis: usize) -> Made {
    let inputs = std::iter::once(float("obs", &[-1, 2])).chain(states.iter().map(|(name, _)| float(name, shape)));
    let outputs = std::iter::once(float("action", &[-1, 1])).chain(states.iter().map(|(_, name)| float(name, shape)));
    Made::new(inputs.collect(), outputs.collect(), move |inputs| {
        let rows = inputs[0].shape[0];
        if inputs[1..].iter().any(|state| state.shape[axis] != rows) {
            return Err(Error::Inference("the states are of another number of rows".into()));
        }
        let observations: &[f32] = bytemuck::cast_slice(inputs[0].bytes);
        let sum = |row: usize| -> f32 {
            let states = inputs[1..].iter().map(|state| {
                let inner: usize = state.shape[axis + 1..].iter().product();
                let values: &[f32] = bytemuck::cast_slice(state.bytes);
                (0..values.len()).filter(|at| at / inner % rows == row).map(|at| values[at]).sum::<f32>()
            });
            states.sum()
        };
        let action = tensor(&[rows, 1], |row| observations[row * 2] + sum(row));
        Ok(std::iter::once(action).chain(inputs[1..].iter().map(faded)).collect())
    })
}

/// A model `forward(obs, NAME, MASK) -> (action, next)` whose state, of the shape `[batch, 4]`, is multiplied by the mask.
fn masked(mask: &str, width: i64) -> Made {
    let inputs = vec![float("obs", &[-1, 2]), float("rnn_hxs", &[-1, 4]), float(mask, &[-1, width])];
    let outputs = vec![float("action", &[-1, 1]), float("17", &[-1, 4])];
    Made::new(inputs, outputs, |inputs| {
        let rows = inputs[0].shape[0];
        let [observations, state, masks] = [0, 1, 2].map(|at| bytemuck::cast_slice::<u8, f32>(inputs[at].bytes));
        let mask = |row: usize| masks[row * (masks.len() / rows)];
        let next = |at: usize| state[at] * mask(at / 4) * 0.5 + observations[at / 4 * 2];
        Ok(vec![tensor(&[rows, 1], |row| next(row * 4)), tensor(&[rows, 4], next)])
    })
}

#[test]
fn a_number_beside_states_tells_whether_the_episode_goes_on() {
    for (name, role) in [
        ("masks", InputRole::EpisodeMask),
        ("not_done", InputRole::EpisodeMask),
        ("episode_starts", InputRole::EpisodeStart),
        ("dones", InputRole::EpisodeStart),
        ("action_masks", InputRole::ActionMask),
        ("speed", InputRole::Observation),
    ] {
        let contract = masked(name, 1).contract(&[]).unwrap();
        assert_eq!(pairs(&contract), [("rnn_hxs", "17", 0)], "{name}");
        assert_eq!(contract.inputs[2].role, role, "{name}");
        // The user's word comes first.
        let told = masked(name, 1).contract(&[(name, "episode_mask")]).unwrap();
        assert_eq!(told.inputs[2].role, InputRole::EpisodeMask);
    }
    // Several numbers speak of actions.
    assert_eq!(masked("masks", 3).contract(&[]).unwrap().inputs[2].role, InputRole::ActionMask);
    // Without memory there is nothing to begin anew.
    let mut plain = masked("masks", 1);
    plain.inputs[1].name = "depth".into();
    let contract = plain.contract(&[("depth", "observation")]).unwrap();
    assert_eq!(contract.inputs[2].role, InputRole::ActionMask);
}

#[test]
fn what_no_output_gives_is_remembered_like_a_state() {
    for (name, first, next) in [("masks", 0.0_f32, true), ("dones", 1.0, false)] {
        let memory = MemorySpec::new(&masked(name, 1).contract(&[]).unwrap()).unwrap();
        let mask = &memory.states[1];
        assert_eq!((mask.input, mask.next), (2, NextValue::Always(next)));
        let mut rows = [7.0_f32; 2];
        mask.write_row(bytemuck::cast_slice_mut(&mut rows), 2, 1, &[]);
        assert_eq!(rows.map(f32::to_bits), [7.0, first].map(f32::to_bits));
    }
}

#[test]
fn names_of_exporters_are_paired() {
    for (input, output) in [
        ("recurrent_in", "recurrent_out"),
        ("h_in", "h_out"),
        ("state_ins", "state_outs"),
        ("rnn_states", "output_rnn_states"),
        ("h0", "hn"),
        ("state_in_0", "state_out_0"),
        ("gru_memory_in", "gru_memory_out"),
        ("hidden_state", "next_hidden_state"),
    ] {
        let contract = fading(&[(input, output)], &[-1, 4], 0).contract(&[]).unwrap();
        assert_eq!(pairs(&contract), [(input, output, 0)]);
        assert!(contract.recurrent);
        assert_eq!(contract.inputs[1].role, InputRole::State);
        assert_eq!(contract.outputs[1].role, OutputRole::State);
        assert_eq!(contract.inputs[0].role, InputRole::Observation);
    }
}

#[test]
fn names_decide_where_shapes_do_not() {
    // The outputs come the other way round.
    let contract = fading(&[("h_in", "c_out"), ("c_in", "h_out")], &[1, -1, 4], 1).contract(&[]).unwrap();
    assert_eq!(pairs(&contract), [("h_in", "h_out", 1), ("c_in", "c_out", 1)]);
}

#[test]
fn names_say_more_than_the_order() {
    for (inputs, outputs) in [
        (["h", "c"], ["h_next", "c_next"]),
        (["h", "c"], ["h_n", "c_n"]),
        (["hx", "cx"], ["hx_t", "cx_t"]),
        (["hx", "cx"], ["hy", "cy"]),
        (["hidden", "cell"], ["hidden_new", "cell_new"]),
        (["hidden", "cell"], ["h_n", "c_n"]),
        (["state_h", "state_c"], ["next_h", "next_c"]),
        (["lstm_h", "lstm_c"], ["lstm_h_next", "lstm_c_next"]),
        (["h_prev", "c_prev"], ["h", "c"]),
        (["gru1_in", "gru2_in"], ["gru1_out", "gru2_out"]),
        (["h0", "c0"], ["hn", "cn"]),
    ] {
        let states = [(inputs[0], outputs[0]), (inputs[1], outputs[1])];
        let model = fading(&states, &[-1, 4], 0);
        for model in [swapped(&model), model] {
            let contract = model.contract(&[]).unwrap();
            assert_eq!(pairs(&contract), [(inputs[0], outputs[0], 0), (inputs[1], outputs[1], 0)]);
            assert_eq!(contract.observations().count(), 1);
        }
    }
}

/// The model with its second and third output the other way round.
fn swapped(model: &Made) -> Made {
    let (mut outputs, run) = (model.outputs.clone(), model.run.clone());
    outputs.swap(1, 2);
    Made::new(model.inputs.clone(), outputs, move |inputs| {
        let mut results = run(inputs)?;
        results.swap(1, 2);
        Ok(results)
    })
}

#[test]
fn order_alone_is_not_believed_of_names() {
    for inputs in [["h", "c"], ["h_in", "c_in"]] {
        let model = fading(&[(inputs[0], "a"), (inputs[1], "b")], &[-1, 4], 0);
        let contract = model.contract(&[]).unwrap();
        assert_eq!(contract.unlinked, [1, 2]);
        let told = model.clone().slot("undecided").unwrap_err().to_string();
        assert!(told.contains(&format!("roles={{\"{}\": \"state:OUTPUT\"}}", inputs[0])), "{told}");
        // With one of them said, the other one is clear.
        let contract = model.contract(&[(inputs[0], "state:a")]).unwrap();
        assert_eq!(pairs(&contract), [(inputs[0], "a", 0), (inputs[1], "b", 0)]);
    }
}

#[test]
fn what_is_named_like_an_action_is_no_state() {
    let model = fading(&[("last_action", "action_logits")], &[-1, 4], 0);
    let contract = model.contract(&[]).unwrap();
    assert_eq!(contract.inputs[1].role, InputRole::Observation);
    assert_eq!(contract.outputs[1].role, OutputRole::Logits);
}

#[test]
fn the_symbol_of_the_observation_finds_the_rows_of_a_state() {
    let contract = fading(&[("onnx::GRU_1", "d")], &[2, -1, 4], 1).contract(&[]).unwrap();
    assert_eq!(pairs(&contract), [("onnx::GRU_1", "d", 1)]);
    let model = fading(&[("lstm_h", "lstm_h_out"), ("lstm_c", "lstm_c_out")], &[2, -1, 4], 1);
    let contract = swapped(&model).contract(&[]).unwrap();
    assert_eq!(pairs(&contract), [("lstm_h", "lstm_h_out", 1), ("lstm_c", "lstm_c_out", 1)]);
    let model = fading(&[("onnx::LSTM_1", "b"), ("onnx::LSTM_2", "d")], &[2, -1, 4], 1);
    assert_eq!(model.contract(&[]).unwrap().unlinked, [1, 2]);
    let told = model.slot("undecided").unwrap_err().to_string();
    assert!(told.contains("roles={\"onnx::LSTM_1\": \"state:OUTPUT\"}"), "{told}");
    // One that no output hands on cannot be observed.
    let model = fading(&[("onnx::GRU_1", "d")], &[2, -1, 4], 1);
    let outputs = vec![model.outputs[0].clone()];
    let told = Made { outputs, ..model }.contract(&[]).unwrap_err().to_string();
    assert!(told.contains("[2, batch, 4]") && told.contains("roles={\"onnx::GRU_1\": \"state:OUTPUT\"}"), "{told}");
}

#[test]
fn tuples_are_paired_in_order() {
    let contract = fading(&[("hc0.0", "output_1.0"), ("hc0.1", "output_1.1")], &[2, -1, 8], 1).contract(&[]).unwrap();
    assert_eq!(pairs(&contract), [("hc0.0", "output_1.0", 1), ("hc0.1", "output_1.1", 1)]);
    assert_eq!(contract.inputs[1].row_shape, [2, 8]);
    assert_eq!(contract.inputs[1].reason, "an output of its shape changes with it");
}

#[test]
fn a_tuple_of_observations_is_no_state() {
    let inputs = vec![float("obs.0", &[-1, 2]), float("obs.1", &[-1, 3])];
    let outputs = vec![float("output_0", &[-1, 2]), float("output_1", &[-1, 3])];
    // The second output is a constant as wide as the second input.
    let model = Made::new(inputs, outputs, |inputs| {
        let rows = inputs[0].shape[0];
        Ok(vec![faded(&inputs[0]), tensor(&[rows, 3], |_| 1.0)])
    });
    let contract = model.contract(&[]).unwrap();
    assert!(!contract.recurrent && contract.states.is_empty());
    assert!(contract.inputs.iter().all(|input| input.role == InputRole::Observation));
}

#[test]
fn a_name_that_may_be_either_is_a_state_beside_an_observation() {
    let model =
        Made::new(vec![float("hidden", &[-1, 3])], vec![float("a", &[-1, 2]), float("b", &[-1, 3])], |inputs| {
            Ok(vec![tensor(&[inputs[0].shape[0], 2], |_| 0.5), faded(&inputs[0])])
        });
    let contract = model.contract(&[]).unwrap();
    assert_eq!(contract.inputs[0].role, InputRole::Observation);
    assert!(!contract.recurrent);
    let contract = fading(&[("hidden", "b")], &[-1, 3], 0).contract(&[]).unwrap();
    assert_eq!(pairs(&contract), [("hidden", "b", 0)]);
    // `state` is what many environments call what they show.
    let contract = fading(&[("state", "b")], &[-1, 3], 0).contract(&[]).unwrap();
    assert_eq!(contract.inputs[1].role, InputRole::Observation);
}

#[test]
fn a_state_that_is_handed_through_is_fed_and_is_no_recurrence() {
    let inputs = vec![float("obs", &[-1, 3]), float("state_ins", &[-1])];
    let outputs = vec![float("output", &[-1, 3]), float("state_outs", &[-1])];
    let model = Made::new(inputs, outputs, |inputs| {
        let copy = |view: &TensorView<'_>| tensor(view.shape, |at| bytemuck::cast_slice::<_, f32>(view.bytes)[at]);
        Ok(vec![copy(&inputs[0]), copy(&inputs[1])])
    });
    let contract = model.contract(&[]).unwrap();
    assert!(!contract.recurrent && contract.states.is_empty());
    assert_eq!(contract.inputs[1].role, InputRole::State);
    model.slot("godot").unwrap();
}

#[test]
fn a_state_that_is_handed_through_begins_as_the_model_says() {
    let inputs = vec![float("obs", &[-1, 1]), float("scale", &[-1, 1])];
    let outputs = vec![float("action", &[-1, 1]), float("scale_after", &[-1, 1])];
    let mut model = Made::new(inputs, outputs, |inputs| {
        let values = |at: usize| -> &[f32] { bytemuck::cast_slice(inputs[at].bytes) };
        let product = tensor(inputs[0].shape, |row| values(0)[row] * values(1)[row]);
        Ok(vec![product, tensor(inputs[1].shape, |row| values(1)[row])])
    });
    model.states = vec![StateLink { input: 1, output: 1, initial: 3.0_f32.to_ne_bytes().to_vec() }];
    let agent = common::agent(vec![model.slot("scaling").unwrap()], 2, 0);
    let group = agent.group(&agent.actor_ids().unwrap()).unwrap();
    for _ in 0..3 {
        let results = common::act(&group, &[1.0, 2.0], None, &ActOptions::default()).unwrap();
        assert_eq!(results.actions[0].values::<f32>(), [3.0, 6.0]);
        let ends = common::outcome(&[0.0; 2], &[1, 0], &[0, 0]);
        common::observe(&group, &ends, &FinalObservations::default()).unwrap();
    }
}

#[test]
fn a_state_that_nothing_hands_on_is_told_with_both_sides() {
    let model = fading(&[("h_in", "later"), ("c_in", "deeper")], &[-1, 4], 0);
    let mut model = Made { outputs: model.outputs[..2].to_vec(), ..model };
    let contract = model.contract(&[]).unwrap();
    assert!(contract.recurrent);
    assert_eq!(contract.unlinked, [1, 2]);
    let told = model.clone().slot("unlinked").unwrap_err().to_string();
    for part in ["`h_in` (float32 (4,))", "`later` (float32 (4,), other)", "roles={\"h_in\": \"state:OUTPUT\"}"] {
        assert!(told.contains(part), "{part} is not in: {told}");
    }
    // `roles` decides it: two inputs of one shape, and one output.
    let contract = model.contract(&[("c_in", "observation"), ("h_in", "state:later")]).unwrap();
    assert_eq!(pairs(&contract), [("h_in", "later", 0)]);
    let wrong = model.contract(&[("h_in", "state:action")]).unwrap_err().to_string();
    assert!(wrong.contains("`roles` says that `action` gives the next value of the state `h_in`"), "{wrong}");
    // And a name that says nothing.
    model = fading(&[("x", "y")], &[-1, 4], 0);
    assert!(model.contract(&[]).unwrap().states.is_empty());
    assert_eq!(pairs(&model.contract(&[("x", "state")]).unwrap()), [("x", "y", 0)]);
}

#[test]
fn the_models_own_account_comes_first() {
    let mut model = fading(&[("buffer_a", "new_b"), ("buffer_b", "new_a")], &[-1, 4], 0);
    let initial: Vec<u8> = bytemuck::cast_slice(&[1.0_f32, 2.0, 3.0, 4.0]).to_vec();
    model.states = vec![
        StateLink { input: 1, output: 1, initial: initial.clone() },
        StateLink { input: 2, output: 2, initial: Vec::new() },
    ];
    let contract = model.contract(&[]).unwrap();
    assert_eq!(pairs(&contract), [("buffer_a", "new_b", 0), ("buffer_b", "new_a", 0)]);
    assert_eq!(contract.states[0].initial, initial);
}

#[test]
fn the_axis_of_a_state_is_probed_where_it_is_not_declared() {
    // Declared with one row, though any number runs: on axis 1, or on axis 0.
    for axis in [0, 1] {
        let mut model = fading(&[("h_in", "h_out")], &[-1, -1, 4], axis);
        let declared = float("h_in", &[1, 1, 4]);
        let (run, lenient) = (model.run.clone(), declared.clone());
        model.inputs[1] = lenient;
        // This model does not mind what it declares.
        let model = Lenient(Made { run, ..model });
        let contract = model.contract();
        assert_eq!(pairs(&contract), [("h_in", "h_out", axis)]);
        assert!(matches!(contract.batch, Batch::Dynamic { .. }));
        assert_eq!(contract.inputs[1].spec, declared);
    }
    // A model that does mind takes one row at a time.
    let mut model = fading(&[("h_in", "h_out")], &[1, 1, 4], 1);
    model.inputs[0] = float("obs", &[-1, 2]);
    let contract = model.contract(&[]).unwrap();
    assert_eq!(contract.batch, Batch::One { reason: "input `h_in` is declared with a batch of 1".into() });
    assert_eq!(pairs(&contract), [("h_in", "h_out", 1)]);
}

/// A model that runs whatever shapes come.
#[derive(Debug)]
struct Lenient(Made);

impl Lenient {
    fn contract(&self) -> Contract {
        let mut session = Model::session(self).unwrap();
        Contract::infer(Path::new("lenient"), self, &mut *session, &BTreeMap::default(), "cpu").unwrap()
    }
}

impl Model for Lenient {
    fn format(&self) -> &'static str {
        "lenient"
    }

    fn inputs(&self) -> &[TensorSpec] {
        &self.0.inputs
    }

    fn outputs(&self) -> &[TensorSpec] {
        &self.0.outputs
    }

    fn facts(&self) -> &ModelFacts {
        &self.0.facts
    }

    fn session(&self) -> Result<Box<dyn Session>> {
        let mut free = self.0.clone();
        for spec in &mut free.inputs {
            spec.shape.fill(Dim::Dynamic(String::new()));
        }
        Model::session(&free)
    }
}

#[test]
fn a_batch_that_mixes_memories_is_run_row_by_row() {
    let inputs = vec![float("obs", &[-1, 2]), float("h_in", &[-1, 2])];
    let outputs = vec![float("action", &[-1, 2]), float("h_out", &[-1, 2])];
    // The rows are taken for the steps of one sequence: each begins where the one before ended.
    let model = Made::new(inputs, outputs, |inputs| {
        let (observations, states): (&[f32], &[f32]) =
            (bytemuck::cast_slice(inputs[0].bytes), bytemuck::cast_slice(inputs[1].bytes));
        let sum = |at: usize| (at % 2..=at).step_by(2).map(|at| observations[at] + states[at]).sum();
        Ok(vec![tensor(inputs[0].shape, sum), tensor(inputs[0].shape, sum)])
    });
    let Batch::One { reason } = model.contract(&[]).unwrap().batch else { panic!("the rows are mixed") };
    assert!(reason.contains("rows run together give other numbers than alone in `action`"), "{reason}");
}

#[test]
fn the_recurrent_test_model_is_what_it_seems() {
    for (layout, axis) in [(Layout::BatchFirst, 0), (Layout::BatchSecond, 1), (Layout::One, 1)] {
        let contract = remembering(layout, 1.0).contract(&[]).unwrap();
        assert_eq!(pairs(&contract), [("h_in", "h_out", axis), ("steps_in", "steps_out", 0)]);
        assert_eq!(matches!(contract.batch, Batch::One { .. }), layout == Layout::One);
    }
}

proptest! {
    /// Whatever the shapes and the order of the outputs: no panic, and what is paired is of one kind.
    #[test]
    fn pairs_are_always_of_one_kind(
        shapes in prop::collection::vec(prop::collection::vec(1_i64..4, 0..3), 1..4),
        names in prop::collection::vec(prop::sample::select(vec!["h_in", "c_in", "a.0", "a.1", "hidden", "x"]), 3),
    ) {
        let shape = |at: usize| -> Vec<i64> { std::iter::once(-1).chain(shapes[at % shapes.len()].clone()).collect() };
        let mut inputs = vec![float("obs", &[-1, 2])];
        for (at, name) in names.iter().enumerate() {
            if inputs.iter().all(|input| input.name != *name) {
                inputs.push(float(name, &shape(at)));
            }
        }
        let outputs = (0..4).map(|at| float(&format!("output_{at}"), &shape(3 - at)));
        let sizes: Vec<Vec<i64>> = (0..4).map(|at| shape(3 - at)).collect();
        let model = Made::new(inputs, outputs.collect(), move |inputs| {
            let rows = inputs[0].shape[0];
            let sum: f32 = inputs.iter().flat_map(|input| bytemuck::cast_slice::<_, f32>(input.bytes)).take(3).sum();
            Ok(sizes.iter().map(|size| {
                let shape: Vec<usize> = size.iter().map(|size| usize::try_from(*size).unwrap_or(rows)).collect();
                tensor(&shape, |_| sum)
            }).collect())
        });
        let contract = model.contract(&[]).unwrap();
        for link in &contract.states {
            let (input, output) = (&contract.inputs[link.input], &contract.outputs[link.output]);
            prop_assert_eq!(&input.row_shape, &output.row_shape);
            prop_assert_eq!(Some(input.batch_axis), output.batch_axis);
        }
        let mut outputs: Vec<_> = contract.states.iter().map(|link| link.output).collect();
        outputs.dedup();
        prop_assert_eq!(outputs.len(), contract.states.len());
    }
}
