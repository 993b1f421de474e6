"""Writes the small policies that the pages in docs/ use into the current folder, or the one that is named."""

import sys
from pathlib import Path

import numpy as np
import onnx
from cartpole_policy import write_cartpole_policy
from onnx import TensorProto, helper, numpy_helper


def write_guide_policies(folder: Path) -> None:
    """Two policies for CartPole-v1, one that also tells values, one with a Gaussian head, one that remembers."""
    # The first lets the pole fall now and then, the second holds it.
    write_cartpole_policy(folder / "policy.onnx", sharpness=1.0)
    write_cartpole_policy(folder / "policy-v2.onnx", sharpness=10.0)
    # Logits equal to the two numbers observed, and their sum as the value.
    _write(
        folder / "actor-critic.onnx",
        [
            helper.make_node("Identity", ["obs"], ["logits"]),
            helper.make_node("ReduceSum", ["obs", "axes"], ["value"], keepdims=1),
        ],
        {"logits": ["batch", 2], "value": ["batch", 1]},
        {"axes": np.array([1], np.int64)},
    )
    # A mean equal to the two numbers observed, and the logarithm of the deviations.
    _write(
        folder / "gaussian.onnx",
        [helper.make_node("Identity", ["obs"], ["mu"]), helper.make_node("Identity", ["deviation"], ["log_std"])],
        {"mu": ["batch", 2], "log_std": [2]},
        {"deviation": np.array([0.0, -1.0], np.float32)},
    )
    # What is observed, and half of what was remembered: that is the action, and is remembered.
    _write(
        folder / "recurrent.onnx",
        [
            helper.make_node("Mul", ["h_in", "half"], ["faded"]),
            helper.make_node("Add", ["obs", "faded"], ["h_out"]),
            helper.make_node("Identity", ["h_out"], ["action"]),
        ],
        {"action": ["batch", 2], "h_out": ["batch", 2]},
        {"half": np.array([0.5], np.float32)},
        state="h_in",
    )


def _write(
    path: Path,
    nodes: list[onnx.NodeProto],
    outputs: dict[str, list[int | str]],
    weights: dict[str, np.ndarray],
    state: str | None = None,
) -> None:
    inputs = ["obs"] if state is None else ["obs", state]
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2]) for name in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    write_guide_policies(target)
    print(f"wrote {', '.join(sorted(path.name for path in target.glob('*.onnx')))} into {target.resolve()}")
