"""64 Python threads with an actor each: TorchRL's `InferenceServer` and ours, on the same policy."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime
import policies
import torch
from callers import Callers, add_figures, fastest, thread_calls
from report import Report, main
from rounds import Rounds, goal
from sessions import one_thread_session
from single_calls import ACT, THREADS, acting
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.modules.inference_server import InferenceServer, SlotTransport, ThreadingTransport

import relevo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from callers import Call

CASE = "MLP 8 → 64 → 64 → 4"
WIDTHS = (8, 64, 64, 4)
DOCUMENTED = "TorchRL, as documented"
TUNED = "TorchRL, slots, gathers 64 or 2 ms, own collation"
TIMES = 8


def run(folder: Path, quick: bool) -> Report:
    """Measures TorchRL as its documentation starts it, and in the fastest way that was found; both in this process.

    A server process of its own came to no more than 0.4 of the fastest: callers copy their requests into shared memory,
    tensor by tensor.
    """
    torch.set_num_threads(1)
    report = Report(f"{THREADS} threads, single calls, argmax: TorchRL's InferenceServer")
    report.versions = {
        **{name: version(name) for name in ("torch", "torchrl", "tensordict")},
        "onnxruntime": onnxruntime.__version__,
        "relevo": relevo.__version__,
    }
    session = one_thread_session(folder / policies.MLP)
    callers = Callers.draw(session, THREADS)
    network = torch_mlp()
    rows = callers.rows.reshape(-1, WIDTHS[0])
    difference = np.abs(network(torch.from_numpy(rows)).numpy() - session.run(None, {"obs": rows})[0]).max()
    report.check("torch's logits are onnxruntime's to 1e-5", bool(difference <= 1e-5))  # noqa: PLR2004

    policy = TensorDictModule(lambda obs: network(obs).argmax(dim=-1), ["observation"], ["action"])
    slots = SlotTransport(THREADS)
    gathering = {"min_batch_size": THREADS, "timeout": 0.002, "collate_fn": stacked, "collect_stats": False}
    documented = InferenceServer(policy, ThreadingTransport(), max_batch_size=THREADS)
    tuned = InferenceServer(policy, slots, max_batch_size=THREADS, policy_version_key=None, **gathering)
    builder = relevo.AgentBuilder().default_model(folder / policies.MLP, head="argmax").actor_count(THREADS)
    with documented, tuned, builder.keep_in_memory(0).build() as agent:
        sides = {
            DOCUMENTED: [asking(documented.client()) for _ in range(THREADS)],
            TUNED: [asking(tuned.client()) for _ in range(THREADS)],
            ACT: [acting(agent.actors([actor])) for actor in agent.get_actor_ids()],
        }
        turns, seconds = (2, 1.0) if quick else (7, 2.0)
        rounds = Rounds([thread_calls(side, calls, callers, seconds) for side, calls in sides.items()], turns)
    callers.check(report, CASE)
    add_figures(report, rounds, CASE, sides)
    server = fastest(rounds, (DOCUMENTED, TUNED))
    ratios = rounds.medians(ACT) / rounds.medians(server)
    report.goals.append(goal(CASE, f"calls/s, times those of: {server}", ratios, TIMES, at_most=False))
    return report


def torch_mlp() -> Callable[[torch.Tensor], torch.Tensor]:
    """The policy as PyTorch has it."""
    layers: list[torch.nn.Module] = []
    for weight in policies.random_weights(WIDTHS):
        linear = torch.nn.Linear(*weight.shape, bias=True)
        linear.weight.data = torch.from_numpy(np.ascontiguousarray(weight.T))
        linear.bias.data.zero_()
        layers += [linear, torch.nn.Tanh()]
    return torch.nn.Sequential(*layers[:-1]).requires_grad_(requires_grad=False)


def stacked(requests: list[TensorDict]) -> TensorDict:
    """One batch of the requests' observations. TorchRL's own way costs a third of the calls a second."""
    return TensorDict({"observation": torch.stack([request["observation"] for request in requests])}, [len(requests)])


def asking(client: Callable[[TensorDict], TensorDict]) -> Call:
    """A request as TorchRL takes it, of an observation as an environment gives it; the action as a number."""

    def call(obs: np.ndarray) -> int:
        return client(TensorDict({"observation": torch.from_numpy(obs[0])}))["action"].item()

    return call


if __name__ == "__main__":
    main(run)
