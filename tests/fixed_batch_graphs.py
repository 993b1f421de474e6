"""Graphs that are declared for a batch of 1: those that may be run on more rows, and those that may not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import models
import numpy as np
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Weights = dict[str, npt.NDArray[np.generic]]

WIDTH = 5


def weights(**shapes: tuple[int, ...]) -> Weights:
    """Random weights by name."""
    draws = np.random.default_rng(3)
    return {name: draws.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def _ints(*numbers: int) -> npt.NDArray[np.int64]:
    return np.array(numbers, np.int64)


def perceptron(path: Path) -> Path:
    """Two layers, as Brax and MuJoCo Playground are exported."""
    return models.save(
        path,
        [
            helper.make_node("Gemm", ["obs", "w1", "b1"], ["sum"]),
            helper.make_node("Elu", ["sum"], ["hidden"]),
            helper.make_node("MatMul", ["hidden", "w2"], ["actions"]),
        ],
        {"obs": [1, WIDTH]},
        {"actions": [1, 3]},
        weights(w1=(WIDTH, 8), b1=(8,), w2=(8, 3)),
    )


def weights_beside_it(path: Path) -> Path:
    """The same with its weights in another file."""
    import onnx

    perceptron(path)
    model = onnx.load(str(path))
    onnx.save(model, str(path), save_as_external_data=True, location=f"{path.stem}.data", size_threshold=0)
    return path


def image(path: Path) -> Path:
    """A convolution whose output is flattened by a target with the batch in it, and a value without a second axis."""
    return models.save(
        path,
        [
            helper.make_node("Conv", ["obs", "kernel"], ["maps"], strides=[2, 2]),
            helper.make_node("Reshape", ["maps", "flat"], ["flattened"]),
            helper.make_node("MatMul", ["flattened", "w"], ["logits"]),
            helper.make_node("ReduceSum", ["logits", "last"], ["column"], keepdims=1),
            helper.make_node("Reshape", ["column", "one"], ["value"]),
        ],
        {"obs": [1, 2, 9, 9]},
        {"logits": [1, 3], "value": [1]},
        {**weights(kernel=(4, 2, 3, 3), w=(64, 3)), "flat": _ints(1, -1), "last": _ints(1), "one": _ints(1)},
    )


def constants_in_nodes(path: Path) -> Path:
    """Heads of attention: reshapes to four axes and back, with targets that Constant nodes make."""
    to_heads = helper.make_tensor("t", TensorProto.INT64, [4], [1, 3, 2, 4])
    return models.save(
        path,
        [
            helper.make_node("Constant", [], ["to_heads"], value=to_heads),
            helper.make_node("Constant", [], ["back"], value_ints=[1, 3, 8]),
            helper.make_node("Reshape", ["obs", "to_heads"], ["split"]),
            helper.make_node("Transpose", ["split"], ["heads"], perm=[0, 2, 1, 3]),
            helper.make_node("Transpose", ["split"], ["keys"], perm=[0, 2, 3, 1]),
            helper.make_node("MatMul", ["heads", "keys"], ["scores"]),
            helper.make_node("Softmax", ["scores"], ["attention"], axis=-1),
            helper.make_node("MatMul", ["attention", "heads"], ["mixed"]),
            helper.make_node("Transpose", ["mixed"], ["together"], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", ["together", "back"], ["actions"]),
        ],
        {"obs": [1, 3, 8]},
        {"actions": [1, 3, 8]},
    )


def declared_for_any_batch(path: Path) -> Path:
    """A batch axis that is said to be dynamic, and a target of a reshape that holds a 1 all the same."""
    return models.save(
        path,
        [
            helper.make_node("Reshape", ["obs", "flat"], ["flattened"]),
            helper.make_node("MatMul", ["flattened", "w"], ["actions"]),
        ],
        {"obs": ["batch", 2, 3]},
        {"actions": ["batch", 2]},
        {**weights(w=(6, 2)), "flat": _ints(1, 6)},
    )


def shapes_that_are_worked_out(path: Path) -> Path:
    """A reshape to [batch, -1] whose batch comes from the input's shape."""
    return models.save(
        path,
        [
            helper.make_node("Shape", ["obs"], ["shape"]),
            helper.make_node("Gather", ["shape", "first"], ["batch"]),
            helper.make_node("Concat", ["batch", "rest"], ["target"], axis=0),
            helper.make_node("Reshape", ["obs", "target"], ["flattened"]),
            helper.make_node("MatMul", ["flattened", "w"], ["actions"]),
        ],
        {"obs": [1, 2, 3]},
        {"actions": [1, 2]},
        {**weights(w=(6, 2)), "first": _ints(0), "rest": _ints(-1)},
    )


def with_a_constant(path: Path) -> Path:
    """An output that is the same whatever comes."""
    return models.save(
        path,
        [
            helper.make_node("MatMul", ["obs", "w"], ["actions"]),
            helper.make_node("Identity", ["number"], ["version_number"]),
        ],
        {"obs": [1, WIDTH]},
        {"actions": [1, 2], "version_number": [1]},
        {**weights(w=(WIDTH, 2)), "number": np.array([3], np.float32)},
    )


def masked(path: Path) -> Path:
    """A mask as an input beside the observation."""
    return models.save(
        path,
        [
            helper.make_node("MatMul", ["obs", "w"], ["scores"]),
            helper.make_node("Softmax", ["scores"], ["shares"], axis=1),
            helper.make_node("Mul", ["shares", "action_masks"], ["allowed"]),
            helper.make_node("ReduceSum", ["allowed", "last"], ["sum"], keepdims=1),
            helper.make_node("Div", ["allowed", "sum"], ["probabilities"]),
            helper.make_node("Log", ["probabilities"], ["logits"]),
        ],
        {"obs": [1, WIDTH], "action_masks": [1, 3]},
        {"logits": [1, 3]},
        {**weights(w=(WIDTH, 3)), "last": _ints(1)},
    )


def recurrent(path: Path, layers: int, *, reshaped: bool = False) -> Path:
    """IsaacLab's form, as torch exports an LSTM of some layers: states of [layers, 1, width]."""
    width = 4
    nodes, parameters = [], {**weights(w=(width, 2)), "zero": _ints(0)}
    if reshaped:
        nodes.append(helper.make_node("Reshape", ["obs", "sequence"], ["x0"]))
        parameters["sequence"] = _ints(1, 1, -1)
    else:
        nodes.append(helper.make_node("Unsqueeze", ["obs", "zero"], ["x0"]))
    for layer in range(layers):
        parameters |= {
            f"W{layer}": weights(a=(1, 4 * width, WIDTH if layer == 0 else width))["a"],
            f"R{layer}": weights(a=(1, 4 * width, width))["a"],
            f"from{layer}": _ints(layer),
            f"to{layer}": _ints(layer + 1),
        }
        for state in "hc":
            slices = [f"{state}_in", f"from{layer}", f"to{layer}", "zero"]
            nodes.append(helper.make_node("Slice", slices, [f"{state}{layer}"]))
        nodes += [
            helper.make_node(
                "LSTM",
                [f"x{layer}", f"W{layer}", f"R{layer}", "", "", f"h{layer}", f"c{layer}"],
                [f"y{layer}", f"h_out{layer}", f"c_out{layer}"],
                hidden_size=width,
            ),
            helper.make_node("Squeeze", [f"y{layer}", "one"], [f"x{layer + 1}"]),
        ]
    parameters["one"] = _ints(1)
    nodes += [
        helper.make_node("Concat", [f"{state}_out{layer}" for layer in range(layers)], [f"{state}_out"], axis=0)
        for state in "hc"
    ]
    nodes += [
        helper.make_node("Squeeze", [f"x{layers}", "zero"], ["last"]),
        helper.make_node("MatMul", ["last", "w"], ["actions"]),
    ]
    states: list[int | str] = [layers, 1, width]
    return models.save(
        path,
        nodes,
        {"obs": [1, WIDTH], "h_in": states, "c_in": states},
        {"actions": [1, 2], "h_out": states, "c_out": states},
        parameters,
    )


def learned_token(path: Path, made_by: str = "initializer") -> Path:
    """A token in front of the observation's five, as transformers have it, and attention among them."""
    token = weights(a=(1, 1, 4))["a"]
    nodes: list[object] = []
    constants: Weights = {"to_tokens": _ints(1, WIDTH, 1), "last": _ints(1)}
    if made_by == "initializer":
        constants["token"] = token
    elif made_by == "constant":
        nodes.append(helper.make_node("Constant", [], ["token"], value=numpy_helper.from_array(token)))
    elif made_by == "expand":
        constants |= {"learned": token[0], "one_row": _ints(1, 1, 4)}
        nodes.append(helper.make_node("Expand", ["learned", "one_row"], ["token"]))
    else:
        zero = helper.make_tensor("v", TensorProto.FLOAT, [1], [0.5])
        constants["one_row"] = _ints(1, 1, 4)
        nodes.append(helper.make_node("ConstantOfShape", ["one_row"], ["token"], value=zero))
    return models.save(
        path,
        [
            *nodes,  # type: ignore[list-item]
            helper.make_node("Reshape", ["obs", "to_tokens"], ["column"]),
            helper.make_node("MatMul", ["column", "embed"], ["embedded"]),
            helper.make_node("Concat", ["token", "embedded"], ["tokens"], axis=1),
            helper.make_node("Transpose", ["tokens"], ["keys"], perm=[0, 2, 1]),
            helper.make_node("MatMul", ["tokens", "keys"], ["scores"]),
            helper.make_node("Softmax", ["scores"], ["attention"], axis=-1),
            helper.make_node("MatMul", ["attention", "tokens"], ["mixed"]),
            helper.make_node("ReduceMean", ["mixed"], ["pooled"], axes=[1], keepdims=0),
            helper.make_node("MatMul", ["pooled", "w"], ["actions"]),
        ],
        {"obs": [1, WIDTH]},
        {"actions": [1, 2]},
        {**weights(embed=(1, 4), w=(4, 2)), **constants},
    )


def first_states(path: Path, op: str, made_by: str) -> Path:
    """A recurrent layer over the five numbers, which begins with constant states of [1, 1, 3]."""
    gates = {"LSTM": 4, "GRU": 3}[op]
    states = ["h0", "c0"][: 2 if op == "LSTM" else 1]
    nodes: list[object] = []
    constants: Weights = {"axes": _ints(0)}
    for state in states:
        if made_by == "initializer":
            constants[state] = weights(a=(1, 1, 3))["a"]
        else:
            constants["shape"] = _ints(1, 1, 3)
            nodes.append(helper.make_node("ConstantOfShape", ["shape"], [state]))
    return models.save(
        path,
        [
            *nodes,  # type: ignore[list-item]
            helper.make_node("Unsqueeze", ["obs", "two"], ["column"]),
            helper.make_node("Transpose", ["column"], ["steps"], perm=[1, 0, 2]),
            helper.make_node(op, ["steps", "W", "R", "", "", *states], ["", "hn"], hidden_size=3),
            helper.make_node("Squeeze", ["hn", "axes"], ["last"]),
            helper.make_node("MatMul", ["last", "w"], ["actions"]),
        ],
        {"obs": [1, WIDTH]},
        {"actions": [1, 2]},
        {**weights(W=(1, gates * 3, 1), R=(1, gates * 3, 3), w=(3, 2)), "two": _ints(2), **constants},
    )


def flattened_from_the_first_axis(path: Path) -> Path:
    """`Flatten(axis=0)`: one row of everything."""
    return models.save(
        path,
        [
            helper.make_node("Flatten", ["obs"], ["flat"], axis=0),
            helper.make_node("MatMul", ["flat", "w"], ["actions"]),
        ],
        {"obs": [1, 2, 3]},
        {"actions": [1, 2]},
        weights(w=(6, 2)),
    )


REWRITTEN: dict[str, Callable[[Path], Path]] = {
    "perceptron": perceptron,
    "weights beside it": weights_beside_it,
    "image": image,
    "constants in nodes": constants_in_nodes,
    "declared for any batch": declared_for_any_batch,
    "shapes that are worked out": shapes_that_are_worked_out,
    "with a constant": with_a_constant,
    "masked": masked,
    "one recurrent layer": lambda path: recurrent(path, 1),
    "two recurrent layers": lambda path: recurrent(path, 2),
    "recurrent, with a reshape": lambda path: recurrent(path, 1, reshaped=True),
    "learned token": learned_token,
    "learned token of a Constant": lambda path: learned_token(path, "constant"),
    "learned token, expanded": lambda path: learned_token(path, "expand"),
    "token of a shape": lambda path: learned_token(path, "shape"),
    "first states of an LSTM": lambda path: first_states(path, "LSTM", "initializer"),
    "first states of zeros": lambda path: first_states(path, "LSTM", "shape"),
    "first state of a GRU": lambda path: first_states(path, "GRU", "initializer"),
    "flattened from the first axis": flattened_from_the_first_axis,
}


def _mixing(nodes: list[object], constants: Weights | None = None, *, rows: int | str = 1) -> Callable[[Path], Path]:
    """`actions = obs · w` and something made of `obs` by `nodes`, called `mixed`, added to it."""

    def write(path: Path) -> Path:
        return models.save(
            path,
            [
                *nodes,  # type: ignore[list-item]
                helper.make_node("MatMul", ["obs", "w"], ["own"]),
                helper.make_node("Add", ["own", "mixed"], ["actions"]),
            ],
            {"obs": [rows, WIDTH]},
            {"actions": [rows, 1]},
            {**weights(w=(WIDTH, 1)), **(constants or {})},
        )

    return write


def _branching(path: Path, rows: int | str = 1) -> Path:
    """A branch on the sum of everything, which made-up inputs need not reach."""

    def branch(name: str, factor: float) -> object:
        constant = helper.make_tensor("v", TensorProto.FLOAT, [1], [factor])
        return helper.make_graph(
            [
                helper.make_node("Constant", [], ["factor"], value=constant),
                helper.make_node("Mul", ["obs", "factor"], [name]),
            ],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, WIDTH])],
        )

    return models.save(
        path,
        [
            helper.make_node("ReduceMax", ["obs"], ["largest"], keepdims=0),
            helper.make_node("Greater", ["largest", "limit"], ["above"]),
            helper.make_node("If", ["above"], ["actions"], then_branch=branch("yes", 2), else_branch=branch("no", 3)),
        ],
        {"obs": [rows, WIDTH]},
        {"actions": [rows, WIDTH]},
        {"limit": np.array(1e9, np.float32)},
    )


KEPT: dict[str, tuple[Callable[[Path], Path], str]] = {
    "largest of all": (_mixing([helper.make_node("ReduceMax", ["obs"], ["mixed"], keepdims=1)]), "other numbers"),
    "mean over rows, hardly felt": (
        _mixing(
            [
                helper.make_node("ReduceMean", ["obs"], ["mean"], axes=[0], keepdims=0),
                helper.make_node("ReduceSum", ["mean"], ["sum"], keepdims=0),
                helper.make_node("Mul", ["sum", "little"], ["mixed"]),
            ],
            {"little": np.array(1e-7, np.float32)},
        ),
        "`mean`: it mixes the rows",
    ),
    "a threshold far away": (
        _mixing(
            [
                helper.make_node("ReduceMax", ["obs"], ["largest"], keepdims=0),
                helper.make_node("Greater", ["largest", "limit"], ["above"]),
                helper.make_node("Cast", ["above"], ["mixed"], to=TensorProto.FLOAT),
            ],
            {"limit": np.array(1e9, np.float32)},
        ),
        "`largest`: it mixes the rows",
    ),
    "sum so far": (
        _mixing(
            [
                helper.make_node("CumSum", ["obs", "axis"], ["sums"]),
                helper.make_node("Slice", ["sums", "from", "to", "one"], ["mixed"]),
            ],
            {"axis": np.array(0, np.int64), "from": _ints(0), "to": _ints(1), "one": _ints(1)},
        ),
        "other numbers",
    ),
    "softmax over rows": (
        _mixing(
            [
                helper.make_node("MatMul", ["obs", "w"], ["scores"]),
                helper.make_node("Softmax", ["scores"], ["mixed"], axis=0),
            ]
        ),
        "other numbers",
    ),
    "first row for all": (
        _mixing(
            [
                helper.make_node("Gather", ["obs", "first"], ["row"], axis=0),
                helper.make_node("ReduceSum", ["row"], ["mixed"], keepdims=0),
            ],
            {"first": np.array(0, np.int64)},
        ),
        "other numbers",
    ),
    "noise": (
        _mixing([helper.make_node("RandomNormal", [], ["mixed"], shape=[1, 1])]),
        r"draws random numbers \(RandomNormal\)",
    ),
    "branch": (_branching, r"control flow \(If\)"),
}


def _rows_as_steps(path: Path) -> Path:
    """An LSTM that takes the rows for the steps of one sequence, as torch's does with 2-D input."""
    return models.save(
        path,
        [
            helper.make_node("Unsqueeze", ["obs", "one"], ["x"]),
            helper.make_node("LSTM", ["x", "W", "R"], ["y", "", ""], hidden_size=3),
            helper.make_node("Reshape", ["y", "flat"], ["actions"]),
        ],
        {"obs": ["batch", WIDTH]},
        {"actions": ["batch", 3]},
        {**weights(W=(1, 12, WIDTH), R=(1, 12, 3)), "one": _ints(1), "flat": _ints(-1, 3)},
    )


def _normalised_by_the_batch(path: Path) -> Path:
    """Batch normalisation that was exported in training mode."""
    return models.save(
        path,
        [
            helper.make_node("BatchNormalization", ["obs", "s", "b", "m", "v"], ["n", "rm", "rv"], training_mode=1),
            helper.make_node("MatMul", ["n", "w"], ["actions"]),
        ],
        {"obs": ["batch", WIDTH]},
        {"actions": ["batch", 2]},
        {**weights(s=(WIDTH,), b=(WIDTH,), m=(WIDTH,), w=(WIDTH, 2)), "v": np.ones(WIDTH, np.float32)},
    )


def _other_with_many(path: Path, rows: int | str = 1) -> Path:
    """Adds 1 for batches of more than 40 rows, by what the observation's shape is."""
    return models.save(
        path,
        [
            helper.make_node("Shape", ["obs"], ["shape"]),
            helper.make_node("Gather", ["shape", "first"], ["count"]),
            helper.make_node("Greater", ["count", "many"], ["above"]),
            helper.make_node("Cast", ["above"], ["more"], to=TensorProto.FLOAT),
            helper.make_node("MatMul", ["obs", "w"], ["own"]),
            helper.make_node("Add", ["own", "more"], ["actions"]),
        ],
        {"obs": [rows, WIDTH]},
        {"actions": [rows, 2]},
        {**weights(w=(WIDTH, 2)), "first": _ints(0), "many": _ints(40)},
    )


def _scaled_by_the_largest(limit: float, *, least: bool) -> Callable[[Path], Path]:
    """Observations are divided by their largest number, or by 255, where that number is above a limit."""
    largest = [
        helper.make_node("Abs", ["obs"], ["sizes"]),
        helper.make_node("ReduceMax", ["sizes"], ["largest"], keepdims=0),
    ]
    scaled = (
        [helper.make_node("Max", ["largest", "limit"], ["scale"])]
        if least
        else [
            helper.make_node("Greater", ["largest", "limit"], ["above"]),
            helper.make_node("Where", ["above", "pixels", "one"], ["scale"]),
        ]
    )
    ends = [helper.make_node("Div", ["obs", "scale"], ["parts"]), helper.make_node("MatMul", ["parts", "w"], ["mixed"])]
    constants = {name: np.array(value, np.float32) for name, value in {"limit": limit, "pixels": 255, "one": 1}.items()}
    return _mixing([*largest, *scaled, *ends], constants, rows="batch")


def _positions(path: Path) -> Path:
    """Each row's largest number, by the positions of the rows, as torch exports `x[arange(n), i]`; and a softmax."""
    return models.save(
        path,
        [
            helper.make_node("Shape", ["obs"], ["count"], start=0, end=1),
            helper.make_node("Squeeze", ["count"], ["n"]),
            helper.make_node("Range", ["zero", "n", "step"], ["rows"]),
            helper.make_node("ArgMax", ["obs"], ["places"], axis=1, keepdims=0),
            helper.make_node("Unsqueeze", ["rows", "last"], ["rows_1"]),
            helper.make_node("Unsqueeze", ["places", "last"], ["places_1"]),
            helper.make_node("Concat", ["rows_1", "places_1"], ["indices"], axis=1),
            helper.make_node("GatherND", ["obs", "indices"], ["picked"]),
            helper.make_node("Unsqueeze", ["picked", "last"], ["picked_1"]),
            helper.make_node("ReduceMean", ["obs"], ["mean"], axes=[1], keepdims=1),
            helper.make_node("Sub", ["picked_1", "mean"], ["above"]),
            helper.make_node("Softmax", ["obs"], ["shares"], axis=-1),
            helper.make_node("Mul", ["shares", "above"], ["actions"]),
        ],
        {"obs": ["batch", WIDTH]},
        {"actions": ["batch", WIDTH]},
        {"zero": np.array(0, np.int64), "step": np.array(1, np.int64), "last": _ints(1)},
    )


# Declared for any batch, with operators in which rows may meet, though they do not.
APART: dict[str, Callable[[Path], Path]] = {"positions of the rows": _positions}

# Declared for any batch.
MIXING: dict[str, tuple[Callable[[Path], Path], str]] = {
    "largest of all": (
        _mixing([helper.make_node("ReduceMax", ["obs"], ["mixed"], keepdims=1)], rows="batch"),
        "mixes the rows",
    ),
    "mean over rows": (
        _mixing(
            [
                helper.make_node("ReduceMean", ["obs"], ["mean"], axes=[0], keepdims=0),
                helper.make_node("ReduceSum", ["mean"], ["mixed"], keepdims=0),
            ],
            rows="batch",
        ),
        "mixes the rows",
    ),
    "rows as steps": (_rows_as_steps, "its tensor `y`: a batch gives it other numbers"),
    "normalised by the batch": (_normalised_by_the_batch, "its tensor `n`"),
    "branch": (lambda path: _branching(path, "batch"), r"control flow \(If\)"),
    **{
        f"scaled by the largest above {limit}, {least}": (
            _scaled_by_the_largest(limit, least=least),
            "its tensor `largest`: it mixes the rows",
        )
        for limit in (50, 255, 1000, 1e9)
        for least in (True, False)
    },
    "another way with many rows": (
        lambda path: _other_with_many(path, "batch"),
        "other numbers than alone in `actions`",
    ),
    "another way with many rows, declared for one": (_other_with_many, "other numbers than alone in `actions`"),
}
