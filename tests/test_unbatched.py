"""ONNX files without an axis for rows: they serve any number of actors, one row after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import models
import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
from onnx import helper

import relevo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ACTORS = 8
WIDTH = 6
WEIGHTS = np.random.default_rng(5).normal(size=(WIDTH, 3)).astype(np.float32)
FIRST = {"first": np.array([0], np.int64)}


def squeezed(path: Path) -> Path:
    """`[1, 6] → [3]`."""
    return models.save(
        path,
        [
            helper.make_node("MatMul", ["obs", "w"], ["rows"]),
            helper.make_node("Squeeze", ["rows", "first"], ["actions"]),
        ],
        {"obs": [1, WIDTH]},
        {"actions": [3]},
        {"w": WEIGHTS, **FIRST},
    )


def squeezed_of_any_batch(path: Path) -> Path:
    """The same, declared for any batch."""
    return models.save(
        path,
        [
            helper.make_node("MatMul", ["obs", "w"], ["rows"]),
            helper.make_node("Squeeze", ["rows", "first"], ["actions"]),
        ],
        {"obs": ["batch", WIDTH]},
        {"actions": [3]},
        {"w": WEIGHTS, **FIRST},
    )


def squeezed_of_all_ones(path: Path) -> Path:
    """An axis for rows that is lost where there is one row."""
    return models.save(
        path,
        [helper.make_node("MatMul", ["obs", "w"], ["rows"]), helper.make_node("Squeeze", ["rows"], ["actions"])],
        {"obs": ["batch", WIDTH]},
        {"actions": ["batch", 3]},
        {"w": WEIGHTS},
    )


def scalar(path: Path) -> Path:
    """`[1, 6] → []`, and the action with its axis."""
    return models.save(
        path,
        [
            helper.make_node("MatMul", ["obs", "w"], ["actions"]),
            helper.make_node("ReduceSum", ["actions"], ["value"], keepdims=0),
        ],
        {"obs": [1, WIDTH]},
        {"actions": [1, 3], "value": []},
        {"w": WEIGHTS},
    )


def vector(path: Path) -> Path:
    """`[6] → [3]`."""
    return models.save(
        path,
        [helper.make_node("MatMul", ["obs", "w"], ["actions"])],
        {"obs": [WIDTH]},
        {"actions": [3]},
        {"w": WEIGHTS},
    )


def image(path: Path) -> Path:
    """`[3, 4, 4] → [2]`, and a constant."""
    return models.save(
        path,
        [
            helper.make_node("Unsqueeze", ["obs", "first"], ["batch"]),
            helper.make_node("Conv", ["batch", "kernel"], ["maps"]),
            helper.make_node("ReduceSum", ["maps", "axes"], ["actions"], keepdims=0),
            helper.make_node("Identity", ["size"], ["memory_size"]),
        ],
        {"obs": [3, 4, 4]},
        {"actions": [2], "memory_size": [1]},
        {
            "kernel": np.random.default_rng(6).normal(size=(2, 3, 3, 3)).astype(np.float32),
            "axes": np.array([0, 2, 3], np.int64),
            "size": np.zeros(1, np.float32),
            **FIRST,
        },
    )


def recurrent(path: Path) -> Path:
    """A memory of three numbers without any axis but their own."""
    return models.save(
        path,
        [
            helper.make_node("MatMul", ["obs", "w"], ["seen"]),
            helper.make_node("Add", ["seen", "h_in"], ["sum"]),
            helper.make_node("Tanh", ["sum"], ["h_out"]),
            helper.make_node("Neg", ["h_out"], ["actions"]),
        ],
        {"obs": [WIDTH], "h_in": [3]},
        {"actions": [3], "h_out": [3]},
        {"w": WEIGHTS},
    )


FORMS = [squeezed, squeezed_of_any_batch, squeezed_of_all_ones, scalar, vector, image, recurrent]


@pytest.mark.parametrize("write", FORMS)
def test_actors_get_what_each_gets_alone(write: Callable[[Path], Path], tmp_path: Path) -> None:
    path = write(tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(str(path))
    declared = session.get_inputs()[0].shape
    row = [size for size in declared if size not in {1, "batch"}]
    draws = np.random.default_rng(7)
    memory: list[npt.NDArray[np.float32]] = [np.zeros(3, np.float32)] * ACTORS
    model = relevo.ModelModule.load_from_path(path)
    assert model.contract.batch == "one"
    assert model.contract.recurrent == (write is recurrent)
    with relevo.AgentBuilder().default_model(model).actor_count(ACTORS).build() as agent:
        for _ in range(3):
            obs = draws.normal(size=(ACTORS, *row)).astype(np.float32)
            batch = agent.actors().act(obs)
            for actor in range(ACTORS):
                feed = {"obs": obs[actor].reshape([size if isinstance(size, int) else 1 for size in declared])}
                if write is recurrent:
                    feed["h_in"] = memory[actor]
                names = [output.name for output in session.get_outputs()]
                alone = dict(zip(names, session.run(None, feed), strict=True))
                memory[actor] = alone.get("h_out", memory[actor])
                np.testing.assert_allclose(batch.action[actor], alone["actions"].reshape(-1), rtol=1e-5, atol=1e-5)
                if write is scalar:
                    np.testing.assert_allclose(batch.value[actor], alone["value"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("write", FORMS)
def test_inspect_says_that_rows_are_not_batched(write: Callable[[Path], Path], tmp_path: Path) -> None:
    contract = relevo.ModelModule.load_from_path(write(tmp_path / "policy.onnx")).contract
    assert any("no axis counts the rows of `" in note for note in contract.notes)
    if write is vector:
        assert contract.batch_reason == "no axis counts the rows of `obs`, `actions`; actors are run row by row"
        assert [(entry.shape, entry.row_shape) for entry in contract.inputs] == [((1, WIDTH), (WIDTH,))]


def test_constants_stay_without_rows(tmp_path: Path) -> None:
    contract = relevo.ModelModule.load_from_path(image(tmp_path / "policy.onnx")).contract
    axes = {output.name: (output.role, output.batch_axis) for output in contract.outputs}
    assert axes == {"actions": ("action", 0), "memory_size": ("constant", None)}


def test_a_batch_of_another_size_is_refused(tmp_path: Path) -> None:
    path = models.save(
        tmp_path / "policy.onnx",
        [helper.make_node("MatMul", ["obs", "w"], ["actions"])],
        {"obs": [4, WIDTH]},
        {"actions": [4, 3]},
        {"w": WEIGHTS},
    )
    with pytest.raises(relevo.ModelLoadError, match="batches of exactly 4 rows"):
        relevo.ModelModule.load_from_path(path)
