"""Files with functions, defaults of states, layouts of torch's recurrent layers, and outputs of other kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import models
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import relevo

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

ACTORS = 6
STEPS = 4


def draw(*shape: int, seed: int = 5) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def contract(path: Path, **options: Any) -> relevo.Contract:
    return relevo.ModelModule.load_from_path(path, **options).contract


# --- functions


def threshold(path: Path, *, rows: int | str, nested: bool, adds_largest: bool) -> Path:
    """Adds 1 to all rows where one of them holds a large number: within a function, or a function within one."""
    steps = [helper.make_node("MatMul", ["x", "w"], ["a"])]
    if adds_largest:
        steps += [
            helper.make_node("ReduceMax", ["a"], ["m"], axes=[0], keepdims=1),
            helper.make_node("Constant", [], ["limit"], value_float=1e6),
            helper.make_node("Greater", ["m", "limit"], ["above"]),
            helper.make_node("Cast", ["above"], ["one"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["a", "one"], ["y"]),
        ]
    else:
        steps.append(helper.make_node("Tanh", ["a"], ["y"]))
    opsets = [helper.make_opsetid("", 17)]
    functions = [helper.make_function("my", "Layer", ["x", "w"], ["y"], steps, opsets)]
    if nested:
        call = [helper.make_node("Layer", ["x", "w"], ["y"], domain="my")]
        functions.append(
            helper.make_function("my", "Net", ["x", "w"], ["y"], call, [*opsets, helper.make_opsetid("my", 1)])
        )
    graph = helper.make_graph(
        [helper.make_node("Net" if nested else "Layer", ["obs", "w"], ["action"], domain="my")],
        "g",
        [helper.make_tensor_value_info("obs", TensorProto.FLOAT, [rows, 4])],
        [helper.make_tensor_value_info("action", TensorProto.FLOAT, [rows, 3])],
        [numpy_helper.from_array(draw(4, 3), "w")],
    )
    model = helper.make_model(
        graph, opset_imports=[*opsets, helper.make_opsetid("my", 1)], functions=functions, ir_version=9
    )
    onnx.save(model, str(path))
    return path


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("rows", ["batch", 1])
def test_rows_that_meet_in_a_function_are_found(tmp_path: Path, rows: int | str, nested: bool) -> None:
    found = contract(threshold(tmp_path / "p.onnx", rows=rows, nested=nested, adds_largest=True))
    assert found.batch == "one"
    assert "Layer#" in found.batch_reason
    assert "/m`: it mixes the rows" in found.batch_reason


@pytest.mark.parametrize("rows", ["batch", 1])
def test_a_function_that_keeps_rows_apart_is_run_for_all_at_once(tmp_path: Path, rows: int | str) -> None:
    path = threshold(tmp_path / "p.onnx", rows=rows, nested=True, adds_largest=False)
    assert contract(path).batch == "dynamic"
    obs = draw(ACTORS, 4)
    with relevo.AgentBuilder().default_model(path).actor_count(ACTORS).build() as agent:
        np.testing.assert_allclose(agent.actors().act(obs).action, np.tanh(obs @ draw(4, 3)), rtol=1e-5, atol=1e-5)


def test_the_number_of_rows_in_the_arithmetic_is_found(tmp_path: Path) -> None:
    path = models.save(
        tmp_path / "p.onnx",
        [
            helper.make_node("MatMul", ["obs", "w"], ["a"]),
            helper.make_node("Shape", ["obs"], ["shape"]),
            helper.make_node("Gather", ["shape", "first"], ["count"]),
            helper.make_node("Div", ["count", "many"], ["whole"]),
            helper.make_node("Cast", ["whole"], ["more"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["a", "more"], ["action"]),
        ],
        {"obs": ["batch", 4]},
        {"action": ["batch", 3]},
        {"w": draw(4, 3), "first": np.array(0), "many": np.array(65)},
    )
    assert contract(path).batch == "one"


# --- states


def counting(path: Path, start: float, rows: int | str) -> Path:
    """Counts steps in `h_in`, which is an input with a default value."""
    models.save(
        path,
        [
            helper.make_node("Add", ["h_in", "one"], ["h_out"]),
            helper.make_node("Mul", ["obs", "zero"], ["nothing"]),
            helper.make_node("Add", ["h_out", "nothing"], ["action"]),
        ],
        {"obs": [rows, 1], "h_in": [rows, 1]},
        {"action": [rows, 1], "h_out": [rows, 1]},
        {"one": np.ones((1, 1), np.float32), "zero": np.zeros((1, 1), np.float32)},
    )
    model = onnx.load(str(path))
    model.graph.initializer.append(numpy_helper.from_array(np.full((1, 1), start, np.float32), "h_in"))
    onnx.save(model, str(path))
    return path


@pytest.mark.parametrize("rows", ["batch", 1])
def test_a_state_with_a_default_value_begins_with_it(tmp_path: Path, rows: int | str) -> None:
    path = counting(tmp_path / "p.onnx", 5.0, rows)
    (state,) = contract(path).states
    assert (state.input, state.output, state.initial) == ("h_in", "h_out", "the model's own")
    with relevo.AgentBuilder().default_model(path).actor_count(2).build() as agent:
        actors = agent.actors()
        obs = np.zeros((2, 1), np.float32)
        assert actors.act(obs).action.tolist() == [[6], [6]]
        actors.observe(reward=0.0, terminated=np.array([False, True]))
        assert actors.act(obs).action.tolist() == [[7], [6]]


def named(path: Path, before: str, after: str) -> Path:
    """A memory under these names."""
    return models.save(
        path,
        [
            helper.make_node("Concat", ["obs", before], ["all"], axis=1),
            helper.make_node("MatMul", ["all", "w"], ["logits"]),
            helper.make_node("MatMul", ["all", "v"], ["sum"]),
            helper.make_node("Tanh", ["sum"], [after]),
        ],
        {"obs": ["batch", 4], before: ["batch", 6]},
        {"logits": ["batch", 3], after: ["batch", 6]},
        {"w": draw(10, 3), "v": draw(10, 6)},
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("lstm_h", "lstm_h_1"),
        ("h_t_1", "h_t"),
        ("mem", "mem_updated"),
        ("agent_state", "updated_agent_state"),
        ("past_key", "present_key"),
        ("h_in:0", "h_out:0"),
    ],
)
def test_names_of_states(tmp_path: Path, before: str, after: str) -> None:
    found = contract(named(tmp_path / "p.onnx", before, after))
    assert [(state.input, state.output) for state in found.states] == [(before, after)]


@pytest.mark.parametrize(("before", "after"), [("input_2", "output_2"), ("onnx::GRU_1", "12")])
def test_names_that_may_be_those_of_states(tmp_path: Path, before: str, after: str) -> None:
    path = named(tmp_path / "p.onnx", before, after)
    found = contract(path)
    assert not found.recurrent
    (note,) = [note for note in found.notes if "may be memory" in note]
    assert f'roles={{"{before}": "state:{after}"}}' in note
    assert contract(path, roles={before: f"state:{after}"}).recurrent


# --- torch's layout: [steps, batch, width]


def time_major(path: Path, kind: str, rows: int | str) -> Path:
    """A recurrent layer as torch exports it by default, one step long."""
    gates, states = (3, ["h_in"]) if kind == "GRU" else (4, ["h_in", "c_in"])
    return models.save(
        path,
        [
            helper.make_node(
                kind,
                ["obs", "w", "r", "", "", *states],
                ["y", *(state.replace("in", "out") for state in states)],
                hidden_size=5,
            ),
            helper.make_node("Squeeze", ["y", "directions"], ["action"]),
        ],
        {"obs": [1, rows, 4], **{state: [1, rows, 5] for state in states}},
        {"action": [1, rows, 5], **{state.replace("in", "out"): [1, rows, 5] for state in states}},
        {"w": draw(1, gates * 5, 4), "r": draw(1, gates * 5, 5), "directions": np.array([1])},
    )


@pytest.mark.parametrize("rows", ["batch", 1])
@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_rows_on_the_second_axis(tmp_path: Path, kind: str, rows: int | str) -> None:
    path = time_major(tmp_path / "p.onnx", kind, rows)
    found = contract(path)
    assert found.batch == "dynamic"
    assert [(tensor.batch_axis, tensor.row_shape) for tensor in found.inputs[:1]] == [(1, (1, 4))]
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [tensor.name for tensor in session.get_outputs()]
    states: list[dict[str, Any]] = [
        {tensor.name: np.zeros((1, 1, 5), np.float32) for tensor in session.get_inputs()[1:]} for _ in range(ACTORS)
    ]
    with relevo.AgentBuilder().default_model(path).actor_count(ACTORS).build() as agent:
        actors = agent.actors()
        for step in range(STEPS):
            obs = draw(ACTORS, 1, 4, seed=step)
            acted = actors.act(obs).action
            actors.observe(reward=0.0)
            for actor, state in enumerate(states):
                given = session.run(None, {"obs": obs[None, actor], **state})
                answers: dict[str, Any] = dict(zip(names, given, strict=True))
                np.testing.assert_allclose(acted[actor], answers["action"][0], rtol=1e-5, atol=1e-6)
                states[actor] = {name: answers[name.replace("in", "out")] for name in state}


def test_steps_on_the_second_axis_are_no_rows(tmp_path: Path) -> None:
    """One sequence of any length: what its steps get depends on the steps before."""
    path = models.save(
        tmp_path / "p.onnx",
        [helper.make_node("CumSum", ["obs", "along"], ["action"])],
        {"obs": [1, "steps", 4]},
        {"action": [1, "steps", 4]},
        {"along": np.array(1)},
    )
    with pytest.raises(relevo.ModelLoadError, match=r"declared as \[1, steps, 4\]: besides the batch axis"):
        contract(path)


# --- outputs


def test_outputs_that_hold_no_numbers_are_left_out(tmp_path: Path) -> None:
    """As scikit-learn's classifiers are exported: a text as the label, and a map of probabilities for each row."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["obs", "w"], ["logits"]),
            helper.make_node("SplitToSequence", ["logits"], ["pieces"], axis=1),
            helper.make_node("Identity", ["text"], ["label"]),
        ],
        "g",
        [value("obs", TensorProto.FLOAT, ["batch", 4])],
        [
            value("label", TensorProto.STRING, [1]),
            value("logits", TensorProto.FLOAT, ["batch", 3]),
            helper.make_tensor_sequence_value_info("pieces", TensorProto.FLOAT, None),
        ],
        [numpy_helper.from_array(draw(4, 3), "w"), helper.make_tensor("text", TensorProto.STRING, [1], [b"left"])],
    )
    path = tmp_path / "p.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))
    found = contract(path)
    assert [output.name for output in found.outputs] == ["logits"]
    assert "the output `label` is left out: it is texts" in found.notes
    assert "the output `pieces` is left out: it is no tensor, but a sequence or a map" in found.notes
    obs = draw(ACTORS, 4)
    with relevo.AgentBuilder().default_model(path, head="argmax").actor_count(ACTORS).build() as agent:
        assert agent.actors().act(obs).action.tolist() == (obs @ draw(4, 3)).argmax(1).tolist()


def test_probabilities_are_sampled_from(tmp_path: Path) -> None:
    path = models.save(
        tmp_path / "p.onnx",
        [helper.make_node("Softmax", ["obs"], ["probs"], axis=1)],
        {"obs": ["batch", 3]},
        {"probs": ["batch", 3]},
    )
    shares = np.array([0.9, 0.09, 0.01])
    count = 5000
    obs = np.tile(np.log(shares).astype(np.float32), (count, 1))
    with relevo.AgentBuilder().default_model(path).actor_count(count).seed(0).build() as agent:
        batch = agent.actors().act(obs)
    np.testing.assert_allclose(np.bincount(batch.action, minlength=3) / count, shares, atol=0.015)
    assert batch.log_prob is not None
    np.testing.assert_allclose(batch.log_prob, np.log(shares)[batch.action], atol=1e-5)


def test_the_label_of_a_classifier_is_its_action(tmp_path: Path) -> None:
    """Labels need not be numbers of choices."""
    path = models.save(
        tmp_path / "p.onnx",
        [
            helper.make_node("Softmax", ["obs"], ["probabilities"], axis=1),
            helper.make_node("ArgMax", ["obs"], ["place"], axis=1, keepdims=0),
            helper.make_node("Gather", ["labels", "place"], ["label"]),
        ],
        {"obs": ["batch", 3]},
        {"label": ["batch"], "probabilities": ["batch", 3]},
        {"labels": np.array([5, 7, 11])},
        {"label": TensorProto.INT64},
    )
    obs = draw(ACTORS, 3)
    with relevo.AgentBuilder().default_model(path).actor_count(ACTORS).build() as agent:
        assert agent.actors().act(obs).action.tolist() == np.array([5, 7, 11])[obs.argmax(1)].tolist()


def test_a_standard_deviation_beside_a_mean(tmp_path: Path) -> None:
    path = models.save(
        tmp_path / "p.onnx",
        [
            helper.make_node("Identity", ["obs"], ["mu:0"]),
            helper.make_node("Exp", ["obs"], ["sigma:0"]),
        ],
        {"obs": ["batch", 2]},
        {"mu:0": ["batch", 2], "sigma:0": ["batch", 2]},
    )
    obs = draw(ACTORS, 2)
    with relevo.AgentBuilder().default_model(path).actor_count(ACTORS).seed(0).build() as agent:
        batch = agent.actors().act(obs)
    deviation = np.exp(obs)
    densities = -0.5 * ((batch.action - obs) / deviation) ** 2 - np.log(deviation) - 0.5 * np.log(2 * np.pi)
    assert batch.log_prob is not None
    np.testing.assert_allclose(batch.log_prob, densities.sum(1), rtol=1e-4, atol=1e-4)


# --- sizes that are given


def test_a_shape_that_contradicts_the_file_is_refused(tmp_path: Path) -> None:
    path = models.linear(tmp_path / "p.onnx", draw(4, 3))
    with pytest.raises(ValueError, match=r"shapes gives \(7,\) for a row of `obs`, but the file declares \[4\]"):
        contract(path, shapes={"obs": (7,)})
    assert contract(path, shapes={"obs": (4,)}).inputs[0].row_shape == (4,)


def test_an_update_that_takes_other_inputs_names_them(tmp_path: Path) -> None:
    def sum_of(first: str, second: str) -> Path:
        return models.save(
            tmp_path / f"{first}.onnx",
            [helper.make_node("Add", [first, second], ["action"])],
            {first: ["batch", 4], second: ["batch", 4]},
            {"action": ["batch", 4]},
        )

    with (
        relevo.AgentBuilder().default_model(sum_of("position", "goal")).actor_count(1).build() as agent,
        pytest.raises(relevo.ContractError, match=r"`place` float32 .* serves has observations .`position` float32"),
    ):
        agent.update_model(sum_of("place", "aim"))
