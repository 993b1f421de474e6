"""One single call with nothing else running: `onnxruntime` from Python, and an actor's own handle on ours."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime
import policies
from act import PYTHON, build, python_calls
from callers import Callers
from report import Report, main
from rounds import Rounds, goal
from sessions import one_thread_session

import relevo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rounds import Samples

ALONE = "relevo, act, the only actor"
AMONG_IDLE = "relevo, act, 63 idle actors beside it"
CASE = "1 call at a time"
MICROSECONDS = 6
CALLS = 4_000


def run(folder: Path, quick: bool) -> Report:
    """Measures the call alone; what happens to its result is `act`'s business."""
    report = Report("one single call: MLP 8 → 64 → 64 → 4, argmax")
    report.versions = {"onnxruntime": onnxruntime.__version__, "relevo": relevo.__version__}
    session = one_thread_session(folder / policies.MLP)
    callers = Callers.draw(session, 1)
    with build(folder, 1, "argmax") as one, build(folder, 64, "argmax") as many:
        sides = [
            python_calls(session, callers.rows[0, 0], CALLS),
            single_calls(ALONE, one, callers),
            single_calls(AMONG_IDLE, many, callers),
        ]
        rounds = Rounds(sides, 4 if quick else 20)
    callers.check(report, CASE)
    report.figures += [rounds.figure(CASE, side, "µs") for side in (PYTHON, ALONE, AMONG_IDLE)]
    report.goals += [
        goal(CASE, side, rounds.medians(side), MICROSECONDS, at_most=True, unit="µs") for side in (ALONE, AMONG_IDLE)
    ]
    return report


def single_calls(side: str, agent: relevo.Agent, callers: Callers) -> Callable[[], Samples]:
    """Calls for the agent's first actor; rewards are told between them, untimed."""
    actor = agent.actors(agent.get_actor_ids()[:1])
    rows = list(callers.rows[0])

    def turn() -> Samples:
        spent, clock, act, observe = np.empty(CALLS), time.perf_counter_ns, actor.act, actor.observe
        batches = []
        for call in range(CALLS):
            row = rows[call % len(rows)]
            begin = clock()
            batch = act(row)
            spent[call] = clock() - begin
            batches.append(batch[0])
            observe(1.0)
        callers.compare(side, [batches])
        return {side: spent / 1_000}

    return turn


if __name__ == "__main__":
    main(run)
