"""Graphs with a batch of 1 serve many actors by one pass where that is right, and row by row where it is not."""

from __future__ import annotations

import re
from pathlib import Path

import fixed_batch_graphs as graphs
import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest

import relevo

ROWS = 9
TOLERANCE = 1e-5

Tensors = dict[str, npt.NDArray[np.float32]]


def made_up(model: relevo.ModelModule, rows: int) -> Tensors:
    """Inputs that no loader has seen, the rows of very different sizes."""
    draws = np.random.default_rng(11)
    inputs = {}
    for entry in model.contract.inputs:
        shape = list(entry.row_shape)
        shape.insert(entry.batch_axis or 0, rows)
        values = draws.standard_normal(shape)
        if "mask" in entry.name:
            values = (values > 0) | (np.arange(shape[-1]) == 0)
        elif entry.role == "observation":
            values *= (10.0 ** draws.uniform(-2, 1, rows)).reshape([rows, *[1] * (len(shape) - 1)])
        inputs[entry.name] = values.astype(np.float32)
    return inputs


def row_by_row(path: Path, model: relevo.ModelModule, inputs: Tensors) -> Tensors:
    """What ONNX Runtime makes of the file as it is, one row after the other."""
    session = onnxruntime.InferenceSession(str(path))
    axes = {entry.name: entry.batch_axis for entry in (*model.contract.inputs, *model.contract.outputs)}
    rows = next(iter(inputs.values())).shape[0]
    names = [output.name for output in session.get_outputs()]
    answers: dict[str, list[npt.NDArray[np.float32]]] = {name: [] for name in names}
    for row in range(rows):
        feed = {name: np.take(value, [row], axis=axes[name]) for name, value in inputs.items()}
        for name, value in zip(names, session.run(None, feed), strict=True):
            answers[name].append(value)
    return {
        name: values[0] if (axis := axes[name]) is None else np.concatenate(values, axis=axis)
        for name, values in answers.items()
    }


@pytest.mark.parametrize("name", graphs.REWRITTEN)
def test_a_batch_gets_what_its_rows_get(name: str, tmp_path: Path) -> None:
    path = graphs.REWRITTEN[name](tmp_path / "policy.onnx")
    model = relevo.ModelModule.load_from_path(path)
    assert model.contract.batch == "dynamic", model.contract.batch_reason
    assert model.contract.batch_reason.startswith("rewritten from a batch of 1; ")
    for rows in (1, 2, ROWS):
        inputs = made_up(model, rows)
        outputs = model.forward(inputs)
        for output, expected in row_by_row(path, model, inputs).items():
            np.testing.assert_allclose(outputs[output], expected, rtol=TOLERANCE, atol=TOLERANCE, err_msg=output)


@pytest.mark.parametrize("layers", [1, 2])
def test_states_of_recurrent_layers_keep_their_axis(layers: int, tmp_path: Path) -> None:
    contract = relevo.ModelModule.load_from_path(graphs.recurrent(tmp_path / "policy.onnx", layers)).contract
    shapes = {entry.name: (entry.shape, entry.batch_axis) for entry in (*contract.inputs, *contract.outputs)}
    assert shapes["obs"] == (("batch", 5), 0)
    assert shapes["actions"] == (("batch", 2), 0)
    for state in ("h_in", "c_in", "h_out", "c_out"):
        assert shapes[state] == ((layers, "batch", 4), 1), state
    assert contract.recurrent


@pytest.mark.parametrize("name", graphs.KEPT)
def test_what_mixes_rows_is_run_row_by_row(name: str, tmp_path: Path) -> None:
    write, reason = graphs.KEPT[name]
    path = write(tmp_path / "policy.onnx")
    model = relevo.ModelModule.load_from_path(path)
    assert model.contract.batch == "one"
    assert re.search(reason, model.contract.batch_reason), model.contract.batch_reason
    if name != "noise":
        inputs = made_up(model, ROWS)
        outputs = model.forward(inputs)
        for output, expected in row_by_row(path, model, inputs).items():
            np.testing.assert_array_equal(outputs[output], expected, err_msg=output)


@pytest.mark.parametrize("name", graphs.MIXING)
def test_what_is_declared_for_any_batch_and_mixes_rows_is_run_row_by_row(name: str, tmp_path: Path) -> None:
    write, reason = graphs.MIXING[name]
    path = write(tmp_path / "policy.onnx")
    model = relevo.ModelModule.load_from_path(path)
    assert model.contract.batch == "one"
    assert re.search(reason, model.contract.batch_reason), model.contract.batch_reason
    inputs = made_up(model, ROWS)
    expected = row_by_row(path, model, inputs)["actions"]
    with relevo.AgentBuilder().default_model(model).actor_count(ROWS).build() as agent:
        np.testing.assert_array_equal(agent.actors().act(inputs["obs"]).action, expected)


@pytest.mark.parametrize("name", graphs.APART)
def test_what_is_declared_for_any_batch_and_keeps_rows_apart_is_run_together(name: str, tmp_path: Path) -> None:
    path = graphs.APART[name](tmp_path / "policy.onnx")
    model = relevo.ModelModule.load_from_path(path)
    assert model.contract.batch == "dynamic", model.contract.batch_reason
    inputs = made_up(model, ROWS)
    expected = row_by_row(path, model, inputs)["actions"]
    np.testing.assert_allclose(model.forward(inputs)["actions"], expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_the_real_policy_is_rewritten(shared: Path) -> None:
    path = shared / "mujoco_go1.onnx"
    model = relevo.ModelModule.load_from_path(path)
    assert model.contract.batch == "dynamic"
    inputs = made_up(model, 64)
    expected = row_by_row(path, model, inputs)["continuous_actions"]
    outputs = model.forward(inputs)["continuous_actions"]
    np.testing.assert_allclose(outputs, expected, rtol=TOLERANCE, atol=TOLERANCE)
    with relevo.AgentBuilder().default_model(model).actor_count(64).build() as agent:
        np.testing.assert_allclose(agent.actors().act(inputs["obs"]).action, expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_a_batch_of_no_rows_never_reaches_the_runtime(tmp_path: Path) -> None:
    # ONNX Runtime's LSTM aborts the process on it.
    model = relevo.ModelModule.load_from_path(graphs.recurrent(tmp_path / "policy.onnx", 1))
    with pytest.raises(relevo.ContractError, match="at least one row"):
        model.forward(made_up(model, 0))
