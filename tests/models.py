"""ONNX models that tests make: small enough to work out by hand."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper


def save(  # noqa: PLR0917  (what a graph is made of)
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[int | str]],
    outputs: dict[str, list[int | str]],
    weights: dict[str, npt.NDArray[np.generic]] | None = None,
    types: dict[str, int] | None = None,
) -> Path:
    """Writes a graph; tensors are float32 unless `types` says otherwise."""
    types = types or {}

    def info(name: str, shape: list[int | str]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, types.get(name, TensorProto.FLOAT), shape)

    graph = helper.make_graph(
        nodes,
        "test",
        [info(name, shape) for name, shape in inputs.items()],
        [info(name, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
    return path


def linear(path: Path, weights: npt.ArrayLike, output: str = "logits") -> Path:
    """`output = obs · weights`."""
    matrix = np.asarray(weights, np.float32)
    return save(
        path,
        [helper.make_node("MatMul", ["obs", "weights"], [output])],
        {"obs": ["batch", matrix.shape[0]]},
        {output: ["batch", matrix.shape[1]]},
        {"weights": matrix},
    )


def actor_critic(path: Path) -> Path:
    """Two inputs; logits equal to them, and their sum as the value."""
    return save(
        path,
        [
            helper.make_node("Identity", ["obs"], ["logits"]),
            helper.make_node("ReduceSum", ["obs", "axes"], ["value"], keepdims=1),
        ],
        {"obs": ["batch", 2]},
        {"logits": ["batch", 2], "value": ["batch", 1]},
        {"axes": np.array([1], np.int64)},
    )


def gaussian(path: Path, log_std: list[float]) -> Path:
    """The mean is the observation; the log standard deviation is one row for all actors."""
    width = len(log_std)
    return save(
        path,
        [
            helper.make_node("Identity", ["obs"], ["mu"]),
            helper.make_node("Identity", ["deviation"], ["log_std"]),
        ],
        {"obs": ["batch", width]},
        {"mu": ["batch", width], "log_std": [width]},
        {"deviation": np.array(log_std, np.float32)},
    )


def square_root(path: Path) -> Path:
    """Two logits, the roots of two observations: NaN for negative ones."""
    return save(path, [helper.make_node("Sqrt", ["obs"], ["logits"])], {"obs": ["batch", 2]}, {"logits": ["batch", 2]})


def table(path: Path) -> Path:
    """The observation is a row number of a table of four rows of logits; the pass fails where there is no such row."""
    return save(
        path,
        [
            helper.make_node("Cast", ["obs"], ["row"], to=TensorProto.INT64),
            helper.make_node("Gather", ["table", "row"], ["rows"], axis=0),
            helper.make_node("Squeeze", ["rows", "axes"], ["logits"]),
        ],
        {"obs": ["batch", 1]},
        {"logits": ["batch", 4]},
        {"table": np.eye(4, dtype=np.float32), "axes": np.array([1], np.int64)},
    )


def slow(path: Path, width: int = 512, layers: int = 60) -> Path:
    """Logits equal to the observation, after so many products that one row takes about a millisecond."""
    names = ["obs", *(f"hidden{layer}" for layer in range(1, layers)), "logits"]
    return save(
        path,
        [helper.make_node("MatMul", [before, "weights"], [after]) for before, after in itertools.pairwise(names)],
        {"obs": ["batch", width]},
        {"logits": ["batch", width]},
        {"weights": np.eye(width, dtype=np.float32)},
    )


def counter(path: Path, width: int = 1) -> Path:
    """Remembers how often it was asked; that is its action, whatever it observes."""
    return save(
        path,
        [
            helper.make_node("Add", ["count_in", "one"], ["count_out"]),
            helper.make_node("MatMul", ["obs", "nothing"], ["seen"]),
            helper.make_node("Add", ["count_out", "seen"], ["action"]),
        ],
        {"obs": ["batch", width], "count_in": ["batch", 1]},
        {"action": ["batch", 1], "count_out": ["batch", 1]},
        {"one": np.ones((1, 1), np.float32), "nothing": np.zeros((width, 1), np.float32)},
    )


def root_of_sum(path: Path) -> Path:
    """Its state becomes the root of itself and the observation: NaN where they are negative, but not in its action."""
    return save(
        path,
        [
            helper.make_node("Add", ["memory_in", "obs"], ["sum"]),
            helper.make_node("Sqrt", ["sum"], ["memory_out"]),
            helper.make_node("Identity", ["obs"], ["action"]),
        ],
        {"obs": ["batch", 1], "memory_in": ["batch", 1]},
        {"action": ["batch", 1], "memory_out": ["batch", 1]},
    )


def lstm(path: Path, batch: int | str = "batch", hidden: int = 6) -> Path:
    """Three observations, an LSTM with states of torch's shape `[1, batch, hidden]`, two actions; random weights."""
    draws = np.random.default_rng(3)

    def draw(*shape: int) -> npt.NDArray[np.float32]:
        return draws.normal(scale=0.7, size=shape).astype(np.float32)

    return save(
        path,
        [
            helper.make_node("Unsqueeze", ["obs", "first"], ["sequence"]),
            helper.make_node(
                "LSTM", ["sequence", "w", "r", "b", "", "h_in", "c_in"], ["", "h_out", "c_out"], hidden_size=hidden
            ),
            helper.make_node("Squeeze", ["h_out", "first"], ["signal"]),
            helper.make_node("MatMul", ["signal", "head"], ["actions"]),
        ],
        {"obs": [batch, 3], "h_in": [1, batch, hidden], "c_in": [1, batch, hidden]},
        {"actions": [batch, 2], "h_out": [1, batch, hidden], "c_out": [1, batch, hidden]},
        {
            "first": np.array([0], np.int64),
            "w": draw(1, 4 * hidden, 3),
            "r": draw(1, 4 * hidden, hidden),
            "b": draw(1, 8 * hidden),
            "head": draw(hidden, 2),
        },
    )
