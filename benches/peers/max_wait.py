"""Which `max_wait` and `max_batch` serve 64 Python threads best: without a pause, and with 0 to 1 ms between calls."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import onnxruntime
import policies
from callers import LATENCY, Callers, thread_calls
from report import Report, main
from rounds import Rounds
from sessions import one_thread_session
from single_calls import THREADS, acting

import relevo

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = [(256, wait) for wait in (0, 0.0001, 0.0002, 0.0005, 0.001)] + [(16, 0.0005)]
"""`max_batch` and `max_wait` of each side."""


def run(folder: Path, quick: bool) -> Report:
    """Measures both kinds of callers; there is no goal, it is for choosing the defaults."""
    report = Report(f"{THREADS} threads, single calls, argmax, MLP 8 → 64 → 64 → 4: max_batch and max_wait")
    report.versions = {"onnxruntime": onnxruntime.__version__, "relevo": relevo.__version__}
    turns, seconds = (2, 0.4) if quick else (6, 0.7)
    session = one_thread_session(folder / policies.MLP)
    for case, think in (("no pause", False), ("0 to 1 ms between calls", True)):
        callers = Callers.draw(session, THREADS)
        agents = {}
        with contextlib.ExitStack() as stack:
            builder = relevo.AgentBuilder().default_model(folder / policies.MLP, head="argmax").actor_count(THREADS)
            for max_batch, max_wait in SETTINGS:
                agent = builder.keep_in_memory(0).max_batch(max_batch).max_wait(max_wait).build()
                agents[f"max_batch {max_batch}, max_wait {max_wait * 1e3} ms"] = stack.enter_context(agent)
            sides = [
                thread_calls(
                    side,
                    [acting(agent.actors([actor])) for actor in agent.get_actor_ids()],
                    callers,
                    seconds,
                    think=think,
                )
                for side, agent in agents.items()
            ]
            rounds = Rounds(sides, turns)
        callers.check(report, case)
        for side, agent in agents.items():
            counters = agent.stats()["policies"]["default"]
            note = f"{counters['rows'] / counters['calls']:.1f} rows a forward pass"
            report.figures += [
                rounds.figure(case, side, "calls/s", note),
                rounds.figure(case, side + LATENCY, "µs"),
            ]
    return report


if __name__ == "__main__":
    main(run)
