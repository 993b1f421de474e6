"""TorchScript policies: one that other people exported, with memory in its buffers, and a traced network on CartPole.

    python examples/torch/demo.py

It needs `pip install "relevo[torch,envs]"`; `make demo-torch` sees to that.
"""

import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch

import relevo

ACTORS = 64
STEPS = 20_000
SHARED = Path(__file__).resolve().parents[3] / "shared" / "policies"


def walk(path: Path) -> None:
    """Runs a humanoid's recurrent policy for several actors, and each actor alone; both must give the same."""
    model = relevo.ModelModule.load_from_path(path)
    print(model.contract)
    observations = np.random.default_rng(0).standard_normal((20, 8, 47)).astype(np.float32)
    with relevo.AgentBuilder().default_model(model).actor_count(8).build() as agent:
        together = [agent.actors().act(step).action for step in observations]
    module = torch.jit.load(str(path)).eval()
    for actor in range(8):
        module.reset_memory()
        with torch.no_grad():
            alone = [module(torch.from_numpy(step[actor : actor + 1])).numpy()[0] for step in observations]
        np.testing.assert_allclose([step[actor] for step in together], alone, rtol=5e-5, atol=5e-5)
    print("verified: 8 actors over 20 steps, each with a memory of its own, got what each gets alone\n")


def balance(folder: Path) -> None:
    """Records CartPole with a traced network, and compares the recorded actions with the network's own."""
    torch.manual_seed(7)
    network = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2)).eval()
    policy = folder / "policy.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls TorchScript deprecated
        torch.jit.trace(network, torch.zeros(1, 4)).save(str(policy))

    envs = relevo.envs.make_vector("CartPole-v1", ACTORS)
    builder = relevo.AgentBuilder().default_model(policy, head="argmax").actor_count(ACTORS).seed(7)
    begun = time.perf_counter()
    with builder.record(folder / "run").keep_in_memory(0).build() as agent:
        result = relevo.collect(agent, envs, steps=STEPS, seed=7)
    seconds = time.perf_counter() - begun

    checked = 0
    for episode in relevo.open_run(folder / "run").episodes():
        with torch.no_grad():
            expected = network(torch.from_numpy(np.array(episode.observations[: len(episode)]))).argmax(1)
        np.testing.assert_array_equal(episode.actions, expected.numpy())
        checked += len(episode)
    if checked != result.steps:
        raise AssertionError(f"{result.steps} steps were taken, but {checked} were read back")
    print(f"{ACTORS} actors took {checked:,} steps in {seconds:.1f} s")
    print("verified: every recorded action is what the network gives for the recorded observation")


def main() -> None:
    """Runs both."""
    policy = SHARED / "unitree_g1_lstm.pt"
    if policy.is_file():
        walk(policy)
    else:
        print(f"skipped: {policy} is not here")
    with tempfile.TemporaryDirectory(prefix="relevo-demo-torch-") as folder:
        balance(Path(folder))


if __name__ == "__main__":
    main()
