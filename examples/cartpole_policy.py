"""Writes a policy that balances CartPole-v1: a linear controller, as an ONNX graph. Nothing is trained.

python examples/cartpole_policy.py cartpole.onnx
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

# How far each part of the observation speaks for pushing right: the cart's position and velocity, the pole's angle and
# angular velocity. A pole that leans or turns right is caught by following it; a cart that is off centre must first be
# pushed outward a little, so that the pole leans back towards the centre, hence the small positive weights.
PUSH_RIGHT = (0.1, 0.3, 3.0, 1.0)


def write_cartpole_policy(path: Path, push_right: tuple[float, ...] = PUSH_RIGHT, sharpness: float = 10.0) -> Path:
    """Writes the policy to `path`: `obs` [batch, 4] to `logits` [batch, 2], of pushing left and right.

    The logits are the controller's output times `sharpness`: the larger, the less random are sampled actions.
    """
    right = np.array(push_right, np.float32) * sharpness
    weight = numpy_helper.from_array(np.stack([-right, right], axis=1), "weight")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["obs", "weight"], ["logits"])],
        "cartpole",
        [helper.make_tensor_value_info("obs", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 2])],
        [weight],
    )
    model = helper.make_model(
        graph, producer_name="relevo-examples", opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


if __name__ == "__main__":
    print("wrote", write_cartpole_policy(Path(sys.argv[1] if len(sys.argv) > 1 else "cartpole.onnx")))
