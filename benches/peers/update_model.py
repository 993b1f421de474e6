"""A module of a training loop is handed to a policy that serves, while another thread acts."""

from __future__ import annotations

import importlib.util
import itertools
import tempfile
import threading
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from report import Report, main
from rounds import Rounds, goal

import relevo
import relevo.export

if TYPE_CHECKING:
    from collections.abc import Callable

    from rounds import Samples

CASE = "MLP 8 → 256 → 256 → 4, with a value"
WIDTH, HIDDEN, CHOICES = 8, 256, 4
NEEDS = ("torch", "relevo_torch")
MOST_MILLISECONDS, LONGEST_WAIT = 30.0, 1.0
PAUSE = 0.0002
"""Seconds between the requests of the thread that acts."""


def run(_policies: Path, quick: bool) -> Report:
    """Measures updates of a module that was never seen, of one that was, and how long a request waits meanwhile."""
    report = Report("update_model with a PyTorch module")
    absent = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if absent:
        report.title += f": not measured, as {' and '.join(absent)} are not installed; make demo-torch installs them"
        return report
    import torch

    report.versions = {"torch": metadata.version("torch"), "relevo-torch": metadata.version("relevo-torch")}
    torch.set_num_threads(1)
    updates = 3 if quick else 10
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.onnx"
        relevo.export.to_onnx(_module(torch), path, np.zeros((1, WIDTH)), outputs=["logits", "value"])
        with relevo.AgentBuilder().default_model(path, head="argmax").actor_count(2).build() as agent:
            served = _Served(torch, agent)
            turns: list[Callable[[], Samples]] = [
                lambda: served.updates("a new module", updates, fresh=True),
                lambda: served.updates("the same module again", updates, fresh=False),
                lambda: served.idle(updates),
            ]
            rounds = Rounds(turns, 3 if quick else 15)
    for side in ("a new module", "the same module again"):
        report.figures.append(rounds.figure(CASE, side, "ms"))
        report.goals.append(
            goal(f"{CASE}: {side}", "≤ 30 ms", rounds.medians(side), MOST_MILLISECONDS, at_most=True, unit="ms")
        )
    for side in ("a new module", "the same module again", "no update"):
        report.figures.append(rounds.figure("longest wait of a request", f"{side}: wait", "ms"))
    for side in ("a new module", "the same module again"):
        waits = rounds.medians(f"{side}: wait")
        report.goals.append(goal(f"wait, {side}", "≤ 1 ms", waits, LONGEST_WAIT, at_most=True, unit="ms"))
    report.check(f"after each of {served.checked} updates, actions are the argmax of the module's logits", True)
    return report


class _Served:
    """An agent with a thread that acts, and the module that it serves."""

    def __init__(self, torch: Any, agent: relevo.Agent) -> None:  # noqa: ANN401 : imported where it is there
        self.torch, self.agent = torch, agent
        self.module = _module(torch)
        mine, other = (agent.actors([actor]) for actor in agent.get_actor_ids())
        self.mine, self.other = mine, other
        self.checked = 0

    def updates(self, side: str, count: int, *, fresh: bool) -> Samples:
        took, waits = [], []
        for _ in range(count):
            if fresh:
                self.module = _module(self.torch)
            with self.torch.no_grad():
                for weights in self.module.parameters():
                    weights.normal_(std=0.1)
            took.append(self._while_acting(waits, lambda: self.agent.update_model(self.module)))
            self._check()
        return {side: np.array(took), f"{side}: wait": np.array(waits)}

    def idle(self, count: int) -> Samples:
        waits: list[float] = []
        for _ in range(count):
            self._while_acting(waits, lambda: time.sleep(0.02))
        return {"no update: wait": np.array(waits)}

    def _while_acting(self, waits: list[float], operation: Callable[[], object]) -> float:
        """Runs it while the other thread acts; gives its milliseconds, and notes the longest request."""
        stop = threading.Event()
        began = threading.Event()
        longest = 0.0

        def act() -> None:
            nonlocal longest
            observation = np.zeros((1, WIDTH), np.float32)
            for call in itertools.count():
                begin = time.perf_counter()
                self.other.act(observation, record=False)
                took = time.perf_counter() - begin
                # The first calls of a thread are slow for reasons of their own.
                if call > 10:  # noqa: PLR2004
                    began.set()
                    longest = max(longest, took)
                if stop.is_set():
                    return
                time.sleep(PAUSE)

        thread = threading.Thread(target=act)
        thread.start()
        began.wait()
        begin = time.perf_counter()
        operation()
        took = time.perf_counter() - begin
        stop.set()
        thread.join()
        waits.append(longest * 1e3)
        return took * 1e3

    def _check(self) -> None:
        rows = np.random.default_rng(self.checked).standard_normal((32, WIDTH)).astype(np.float32)
        with self.torch.no_grad():
            logits = self.module(self.torch.from_numpy(rows))[0].numpy()
        for row, expected in zip(rows, logits, strict=True):
            best, second = np.sort(expected)[[-1, -2]]
            found = int(np.asarray(self.mine.act(row[None], record=False))[0])
            if best - second > 1e-4 and found != expected.argmax():  # noqa: PLR2004 : nearly equal ones may swap
                raise SystemExit(f"after an update, the action is {found} instead of {expected.argmax()}")
        self.checked += 1


def _module(torch: Any) -> Any:  # noqa: ANN401
    nn = torch.nn

    class ActorCritic(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh())
            self.actor, self.critic = nn.Linear(HIDDEN, CHOICES), nn.Linear(HIDDEN, 1)

        def forward(self, obs: Any) -> Any:  # noqa: ANN401
            hidden = self.body(obs)
            return self.actor(hidden), self.critic(hidden)

    return ActorCritic()


if __name__ == "__main__":
    main(run)
