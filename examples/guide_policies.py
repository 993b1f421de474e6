"""Writes the small policies that docs/guide.md uses into the current folder, or the one that is named."""

import sys
from pathlib import Path

import numpy as np
import onnx
from cartpole_policy import write_cartpole_policy
from onnx import TensorProto, helper, numpy_helper


def write_guide_policies(folder: Path) -> None:
    """Two policies for CartPole-v1, one that also tells values, one with a Gaussian head."""
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


def _write(
    path: Path, nodes: list[onnx.NodeProto], outputs: dict[str, list[int | str]], weights: dict[str, np.ndarray]
) -> None:
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info("obs", TensorProto.FLOAT, ["batch", 2])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    write_guide_policies(target)
    print(f"wrote policy.onnx, policy-v2.onnx, actor-critic.onnx and gaussian.onnx into {target.resolve()}")
