"""Writes the policies of the benchmarks: multilayer perceptrons as ONNX, with tanh between their layers."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    import onnx

MLP = "mlp.onnx"
"""8 → 64 → 64 → 4, random weights: the policy of the issue's figures."""
LARGE_MLP = "large-mlp.onnx"
"""64 → 256 → 256 → 16, random weights."""
FIXED_MLP = "fixed-mlp.onnx"
"""The first of these, declared for a batch of 1."""
CARTPOLE_RANDOM = "cartpole-random.onnx"
"""4 → 64 → 64 → 2, random weights: episodes are short, so that many end in each step."""
CARTPOLE_BALANCING = "cartpole-balancing.onnx"
"""4 → 64 → 64 → 2, of the same cost: balances the pole for 500 steps."""

LSTM_HIDDEN = 64
LSTMS = {1: "lstm.onnx", 2: "lstm-two-layers.onnx"}
"""8 → LSTM of 64 → 4, random weights, by layers; states of torch's shape, `[layers, batch, 64]`."""

# See examples/cartpole_policy.py.
PUSH_RIGHT = (0.1, 0.3, 3.0, 1.0)


def write_all(folder: Path) -> Path:
    """Writes every policy into `folder`."""
    _write(folder / MLP, random_weights((8, 64, 64, 4)))
    _write(folder / LARGE_MLP, random_weights((64, 256, 256, 16)))
    for layers, name in LSTMS.items():
        _write_lstm(folder / name, layers)
    _write(folder / FIXED_MLP, random_weights((8, 64, 64, 4)), batch=1)
    weights = random_weights((4, 64, 64, 2))
    _write(folder / CARTPOLE_RANDOM, weights)
    # The first unit of each layer carries a linear controller, with signals so small that tanh hardly bends them; the
    # last layer listens to it alone.
    (first, second, last) = (weight.copy() for weight in weights)
    first[:, 0] = np.array(PUSH_RIGHT) * 0.01
    second[:, 0] = 0
    second[0, 0] = 1
    last[:] = 0
    last[0] = (-1_000, 1_000)
    _write(folder / CARTPOLE_BALANCING, [first, second, last])
    return folder


def random_weights(widths: tuple[int, ...]) -> list[np.ndarray]:
    """The layers' weights, `[width, following width]` each; biases are 0."""
    draws = np.random.default_rng(7)
    return [
        (draws.standard_normal((width, following)) / np.sqrt(width)).astype(np.float32)
        for width, following in itertools.pairwise(widths)
    ]


def with_unused_noise(path: Path, copy: Path) -> Path:
    """A copy of a model with a random operator that nobody uses, so that Relevo cannot compare runs of it."""
    import onnx
    from onnx import helper

    model = onnx.load(str(path))
    model.graph.node.append(helper.make_node("RandomNormal", [], ["unused noise"], shape=[1]))
    onnx.save(model, str(copy))
    return copy


def _write(path: Path, weights: list[np.ndarray], batch: int | str = "batch") -> None:
    # Imported here: the peers' environments have no `onnx`, and need only the names above.
    from onnx import helper, numpy_helper

    nodes, initializers, signal = [], [], "obs"
    for layer, weight in enumerate(weights):
        last = layer == len(weights) - 1
        output = "logits" if last else f"sum_{layer}"
        initializers += [
            numpy_helper.from_array(weight, f"weight_{layer}"),
            numpy_helper.from_array(np.zeros(weight.shape[1], np.float32), f"bias_{layer}"),
        ]
        nodes.append(helper.make_node("Gemm", [signal, f"weight_{layer}", f"bias_{layer}"], [output]))
        if not last:
            signal = f"signal_{layer}"
            nodes.append(helper.make_node("Tanh", [output], [signal]))
    tensors = {"obs": [batch, weights[0].shape[0]]}, {"logits": [batch, weights[-1].shape[1]]}
    _save(path, nodes, initializers, *tensors)


def _write_lstm(path: Path, layers: int) -> None:
    from onnx import helper, numpy_helper

    draws, hidden = np.random.default_rng(7), LSTM_HIDDEN
    weights: dict[str, np.ndarray] = {"first": np.array([0], np.int64)}
    nodes = [helper.make_node("Unsqueeze", ["obs", "first"], ["signal_0"])]
    # One state of all layers goes in and comes out, as torch exports it.
    for state in "hc":
        parts = [f"{state}_in_{layer}" for layer in range(layers)]
        nodes.append(helper.make_node("Split", [f"{state}_in"], parts, axis=0, num_outputs=layers))
    for layer in range(layers):
        shapes = (1, 4 * hidden, hidden if layer else 8), (1, 4 * hidden, hidden), (1, 8 * hidden)
        names = [f"{kind}_{layer}" for kind in "wrb"]
        for name, shape in zip(names, shapes, strict=True):
            weights[name] = (draws.uniform(-1, 1, shape) / np.sqrt(hidden)).astype(np.float32)
        given = [f"signal_{layer}", *names, "", f"h_in_{layer}", f"c_in_{layer}"]
        taken = ["", f"h_out_{layer}", f"c_out_{layer}"]
        nodes.append(helper.make_node("LSTM", given, taken, hidden_size=hidden))
        # A sequence of one step: its only output is the last hidden state.
        nodes.append(helper.make_node("Identity", [f"h_out_{layer}"], [f"signal_{layer + 1}"]))
    for state in "hc":
        parts = [f"{state}_out_{layer}" for layer in range(layers)]
        nodes.append(helper.make_node("Concat", parts, [f"{state}_out"], axis=0))
    weights["head"] = (draws.standard_normal((hidden, 4)) / np.sqrt(hidden)).astype(np.float32)
    nodes += [
        helper.make_node("Squeeze", [f"signal_{layers}", "first"], ["features"]),
        helper.make_node("MatMul", ["features", "head"], ["logits"]),
    ]
    initializers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    shape = [layers, "batch", hidden]
    inputs = {"obs": ["batch", 8], "h_in": shape, "c_in": shape}
    _save(path, nodes, initializers, inputs, {"logits": ["batch", 4], "h_out": shape, "c_out": shape})


def _save(
    path: Path,
    nodes: list[onnx.NodeProto],
    initializers: list[onnx.TensorProto],
    inputs: dict[str, list[int | str]],
    outputs: dict[str, list[int | str]],
) -> None:
    import onnx
    from onnx import TensorProto, helper

    infos = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in tensors.items()]
        for tensors in (inputs, outputs)
    ]
    graph = helper.make_graph(nodes, path.stem, *infos, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, path)
