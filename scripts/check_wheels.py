"""Run a policy of each format in the environment that `scripts/check_wheels` made."""

import importlib
import tempfile
import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt

import relevo
from relevo.cli import trials


def check(path: Path, name: str, weights: npt.NDArray[np.float32]) -> None:
    """Let eight actors act by the linear policy in `path`, whose input is called `name`."""
    obs = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    model = relevo.ModelModule.load_from_path(path)
    output = next(iter(model.forward({name: obs}).values()))
    np.testing.assert_allclose(output, obs @ weights, atol=1e-4)
    with relevo.AgentBuilder().default_model(model, head="argmax").actor_count(8).build() as agent:
        actions = agent.actors().act(obs).action
    np.testing.assert_array_equal(actions, (obs @ weights).argmax(1))
    print(f"{model.format}: 8 actors acted")


def main() -> None:
    """Try ONNX before anything of torch is loaded, then TorchScript."""
    with tempfile.TemporaryDirectory() as folder:
        onnx = Path(folder, "policy.onnx")
        onnx.write_bytes(trials.POLICY)
        check(onnx, "obs", trials.WEIGHTS)

        # mypy, which reads this file, need not have it.
        torch = importlib.import_module("torch")
        module = torch.nn.Linear(4, 2, bias=False)
        module.weight.data = torch.from_numpy(trials.WEIGHTS.T.copy())
        path = Path(folder, "policy.pt")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls TorchScript deprecated
            torch.jit.trace(module.eval(), torch.zeros(1, 4)).save(str(path))
        check(path, "input", trials.WEIGHTS)


if __name__ == "__main__":
    main()
