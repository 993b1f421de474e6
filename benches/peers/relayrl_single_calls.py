"""64 callers in Rust, threads and tokio's tasks, with an actor each: RelayRL and ours, with one router and with two."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime
import policies
import programs
from callers import LATENCY, Callers, add_figures, fastest
from report import Report, main
from rounds import Rounds, goal
from sessions import one_thread_session

import relevo

if TYPE_CHECKING:
    from collections.abc import Callable

    from rounds import Samples

CALLERS = 64
RELAYRL = {routers: f"RelayRL, request_action, {routers} router{'s'[: routers - 1]}" for routers in (1, 2)}
RELEVO = {routers: f"relevo, act + observe, {routers} router{'s'[: routers - 1]}" for routers in (1, 2)}
TIMES = 4
TIMES_OF_ONE_ROUTER = 1.6


def run(folder: Path, quick: bool) -> Report:
    """Measures threads and tasks; both sides keep trajectories in memory, with an episode's end every 200 steps."""
    report = Report(f"{CALLERS} callers in Rust, single calls, MLP 8 → 64 → 64 → 4")
    report.versions = {
        "relayrl_framework": "0.5.0-rc.1",
        "onnxruntime": onnxruntime.__version__,
        "relevo": relevo.__version__,
    }
    peer, ours = programs.relayrl(), programs.relevo("single-calls")
    model = folder / policies.MLP
    turns, calls = (2, 500) if quick else (9, 2_000)
    for case in ("threads", "tasks"):
        with tempfile.TemporaryDirectory(prefix="relevo-rows-") as temporary, contextlib.ExitStack() as stack:
            rows = write_rows(Callers.draw(one_thread_session(model), CALLERS), Path(temporary))
            sides = [
                single_calls(
                    side,
                    stack.enter_context(programs.started(program, "single-calls", model, rows, case, calls, routers)),
                )
                for program, named in ((peer, RELAYRL), (ours, RELEVO))
                for routers, side in named.items()
            ]
            rounds = Rounds(sides, turns)
        # Each program compares every action with the one in its row, and ends on a wrong one.
        taken = (turns + 1) * calls * CALLERS
        report.check(f"{case}: {taken:,} actions on each side are NumPy's argmax of onnxruntime's logits", holds=True)
        add_figures(report, rounds, case, [*RELAYRL.values(), *RELEVO.values()])
        relayrl, rates = fastest(rounds, RELAYRL.values()), rounds.medians(RELEVO[2])
        report.goals += [
            goal(
                case,
                f"calls/s with 2 routers, times those of: {relayrl}",
                rates / rounds.medians(relayrl),
                TIMES,
                at_most=False,
            ),
            goal(
                case,
                "calls/s with 2 routers, times those with 1",
                rates / rounds.medians(RELEVO[1]),
                TIMES_OF_ONE_ROUTER,
                at_most=False,
            ),
        ]
    return report


def write_rows(callers: Callers, folder: Path) -> Path:
    """What each caller asks for, and what it should get: float32 `[callers, DIFFERENT, width + 1]`, the action last."""
    rows = folder / "rows.f32"
    observations = callers.rows.squeeze(axis=2)
    rows.write_bytes(np.concatenate([observations, callers.expected[..., None]], axis=2).astype("<f4").tobytes())
    return rows


def single_calls(side: str, program: programs.Program) -> Callable[[], Samples]:
    """A turn of a program: the nanoseconds that all callers took together come first, then those of each call."""

    def turn() -> Samples:
        together, *each = program.turn()
        return {side: np.array([len(each) / together * 1e9]), side + LATENCY: np.array(each) / 1_000}

    return turn


if __name__ == "__main__":
    main(run)
