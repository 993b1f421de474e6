"""One call for 1, 64 and 1,024 actors of a TorchScript module: the module called from Python, and ours.

Needs `make test-torch` or `make demo-torch` before, which install torch and the TorchScript backend into `.venv`.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from report import Report, main
from rounds import Rounds, goal

import relevo

try:
    import torch
except ImportError:
    sys.exit("torch is not installed here; `make demo-torch` installs it and the TorchScript backend")

if TYPE_CHECKING:
    from collections.abc import Callable

    from rounds import Samples

TOLERANCE = 5e-5
PYTHON = "the module, called from Python"
ACT = "relevo, act"

# By actors: calls of a round, and the factor that the whole `act` may take.
CASES = {1: (2_000, 0.9), 64: (1_000, 1.1), 1_024: (150, 1.1)}


def run(folder: Path, quick: bool) -> Report:  # noqa: ARG001 : the ONNX policies are not needed here
    """Measures all cases."""
    report = Report("torchscript: MLP 8 → 64 → 64 → 4, one thread")
    report.versions = {"torch": torch.__version__, "relevo": relevo.__version__}
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4)]
    with tempfile.TemporaryDirectory() as own:
        path = str(Path(own) / "mlp.pt")
        torch.jit.trace(torch.nn.Sequential(*layers).eval(), torch.zeros(2, 8)).save(path)
        module, model = torch.jit.load(path).eval(), relevo.ModelModule.load_from_path(path)
    for actors, (calls, factor) in CASES.items():
        obs = np.random.default_rng(actors).standard_normal((actors, 8)).astype(np.float32)
        case = f"{actors:,} actor{'s' if actors > 1 else ''}"
        with relevo.AgentBuilder().default_model(model).actor_count(actors).build() as agent, torch.no_grad():
            handle = agent.actors()
            rounds = Rounds([python_calls(module, obs, calls), relevo_calls(handle, obs, calls)], 4 if quick else 20)
            difference = np.abs(handle.act(obs).action - module(torch.from_numpy(obs)).numpy()).max()
        report.check(f"{case}: actions are the module's results to {TOLERANCE:g}", bool(difference <= TOLERANCE))
        report.figures += [rounds.figure(case, side, "µs") for side in (PYTHON, ACT)]
        ratios = rounds.medians(ACT) / rounds.medians(PYTHON)
        report.goals.append(goal(case, f"{ACT} ≤ {factor} × the module", ratios, factor, at_most=True))
    return report


def python_calls(module: torch.jit.ScriptModule, obs: np.ndarray, calls: int) -> Callable[[], Samples]:
    """The module called with a tensor that is there already."""
    tensor = torch.from_numpy(obs)

    def turn() -> Samples:
        spent, clock = np.empty(calls), time.perf_counter_ns
        for call in range(calls):
            begin = clock()
            module(tensor)
            spent[call] = clock() - begin
        return {PYTHON: spent / 1_000}

    return turn


def relevo_calls(actors: relevo.Actors, obs: np.ndarray, calls: int) -> Callable[[], Samples]:
    """The whole call: the observation into the block, the module, the head, the recorded row."""

    def turn() -> Samples:
        spent, clock, act = np.empty(calls), time.perf_counter_ns, actors.act
        for call in range(calls):
            begin = clock()
            act(obs)
            spent[call] = clock() - begin
        return {ACT: spent / 1_000}

    return turn


if __name__ == "__main__":
    main(run)
