"""64 actors on graphs that are declared for a batch of 1: ours rewrites them when it loads them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime
import policies
from report import Report, main
from rounds import Rounds, goal
from sessions import one_thread_session

import relevo

if TYPE_CHECKING:
    from collections.abc import Callable

    from rounds import Samples

ACTORS = 64
CALLS = 60
TOLERANCE = 1e-5
TIMES = 10

PYTHON = "onnxruntime from Python, row by row"
ROWS = "relevo, act, row by row (a copy that it cannot rewrite)"
REWRITTEN = "relevo, act, rewritten when loaded"

GO1 = Path(__file__).resolve().parents[3] / "shared" / "policies" / "mujoco_go1.onnx"
"""A real file: 48 → 512 → 256 → 128 → 24. It is not part of the repository."""


def run(folder: Path, quick: bool) -> Report:
    """Each file in turn."""
    report = Report(f"batch of 1 in the file, {ACTORS} actors")
    report.versions = {"onnxruntime": onnxruntime.__version__, "relevo": relevo.__version__}
    files = {"MLP 8 → 64 → 64 → 4": folder / policies.FIXED_MLP}
    if GO1.is_file():
        files["MuJoCo Playground's Go1, 48 → 512 → 256 → 128 → 24"] = GO1
    for case, path in files.items():
        measure(report, case, path, folder, quick=quick)
    return report


def measure(report: Report, case: str, path: Path, folder: Path, *, quick: bool) -> None:
    """One file: times, and that the actions are what the file gives each row alone."""
    session = one_thread_session(path)
    width = session.get_inputs()[0].shape[1]
    obs = np.random.default_rng(5).standard_normal((ACTORS, width)).astype(np.float32)
    name = session.get_inputs()[0].name
    expected = np.concatenate([session.run(None, {name: row[None]})[0] for row in obs])
    kept = policies.with_unused_noise(path, folder / "kept.onnx")
    with build(path) as rewritten, build(kept) as rows:
        for agent, side in ((rewritten, REWRITTEN), (rows, ROWS)):
            off = np.abs(np.asarray(agent.actors().act(obs)) - expected)
            held = bool((off <= TOLERANCE * (1 + np.abs(expected))).all())
            report.check(f"{case}: {side}: outputs are those of each row alone to 1e-5", held)
        batches = [relevo.ModelModule.load_from_path(each).contract.batch for each in (path, kept)]
        report.check(f"{case}: the file is rewritten, the copy is not", batches == ["dynamic", "one"])
        sides = [python_calls(session, name, obs), act_calls(REWRITTEN, rewritten, obs), act_calls(ROWS, rows, obs)]
        rounds = Rounds(sides, 4 if quick else 20)
    report.figures += [rounds.figure(case, side, "µs") for side in (PYTHON, ROWS, REWRITTEN)]
    for side in (PYTHON, ROWS):
        times = rounds.medians(side) / rounds.medians(REWRITTEN)
        report.goals.append(goal(case, f"times faster than {side}", times, TIMES, at_most=False))


def build(path: Path) -> relevo.Agent:
    """An agent whose actions are the graph's output as it is."""
    return relevo.AgentBuilder().default_model(path, head="raw").actor_count(ACTORS).build()


def python_calls(session: onnxruntime.InferenceSession, name: str, obs: np.ndarray) -> Callable[[], Samples]:
    """What a user does with such a file and many environments."""
    rows = [row[None] for row in obs]

    def turn() -> Samples:
        spent, clock = np.empty(CALLS), time.perf_counter_ns
        for call in range(CALLS):
            begin = clock()
            np.concatenate([session.run(None, {name: row})[0] for row in rows])
            spent[call] = clock() - begin
        return {PYTHON: spent / 1_000}

    return turn


def act_calls(side: str, agent: relevo.Agent, obs: np.ndarray) -> Callable[[], Samples]:
    """Calls of `act` for all actors; rewards are told between them, untimed."""
    actors = agent.actors()
    rewards = np.ones(ACTORS)

    def turn() -> Samples:
        spent, clock = np.empty(CALLS), time.perf_counter_ns
        for call in range(CALLS):
            begin = clock()
            np.asarray(actors.act(obs))
            spent[call] = clock() - begin
            actors.observe(rewards)
        return {side: spent / 1_000}

    return turn


if __name__ == "__main__":
    main(run)
