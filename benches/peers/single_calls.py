"""64 Python threads with an actor each: batched by hand in Python, not batched at all, and batched by ours."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import onnxruntime
import policies
from callers import EPISODE_STEPS, LATENCY, Callers, add_figures, fastest, thread_calls
from microbatcher import MicroBatcher
from report import Report, main
from rounds import Rounds, goal
from sessions import one_thread_session

import relevo

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from callers import Call

THREADS = 64

WAITING = "Python micro-batcher, takes what waits"
GATHERED = "Python micro-batcher, gathers 64 or 1 ms"
DIRECT = "each thread calls session.run"
ACT = "relevo, act"
ACT_OBSERVE = "relevo, act + observe, recorded in memory"
SIDES = (WAITING, GATHERED, DIRECT, ACT, ACT_OBSERVE)


def run(folder: Path, quick: bool) -> Report:
    """Measures both policies, and the smaller one with callers that think."""
    report = Report(f"{THREADS} threads, single calls, argmax")
    report.versions = {"onnxruntime": onnxruntime.__version__, "relevo": relevo.__version__}
    turns, seconds = (2, 0.4) if quick else (7, 1.0)

    case = "MLP 8 → 64 → 64 → 4"
    rounds = measure(report, case, folder / policies.MLP, turns, seconds)
    batcher = fastest(rounds, (WAITING, GATHERED))
    rates, tails = rounds.medians(ACT), rounds.p99s(ACT + LATENCY)
    report.goals += [
        goal(case, f"calls/s, times those of: {batcher}", rates / rounds.medians(batcher), 2, at_most=False),
        goal(case, f"calls/s, times those where {DIRECT}", rates / rounds.medians(DIRECT), 1.3, at_most=False),
        goal(case, f"p99, part of that of: {batcher}", tails / rounds.p99s(batcher + LATENCY), 0.8, at_most=True),
    ]

    case = "MLP 64 → 256 → 256 → 16"
    rounds = measure(report, case, folder / policies.LARGE_MLP, turns, seconds)
    batcher = fastest(rounds, (WAITING, GATHERED))
    rates = rounds.medians(ACT)
    report.goals += [
        goal(case, f"calls/s, times those of: {batcher}", rates / rounds.medians(batcher), 1.5, at_most=False),
        goal(case, f"calls/s, times those where {DIRECT}", rates / rounds.medians(DIRECT), 1.5, at_most=False),
    ]

    case = "MLP 8 → 64 → 64 → 4, 0 to 1 ms between calls"
    measure(report, case, folder / policies.MLP, 2 if quick else 4, seconds, think=True)
    return report


def measure(report: Report, case: str, model: Path, turns: int, seconds: float, *, think: bool = False) -> Rounds:
    """All sides with one policy."""
    session = one_thread_session(model)
    callers = Callers.draw(session, THREADS)
    with contextlib.ExitStack() as stack:
        waiting = stack.enter_context(MicroBatcher(session, THREADS, gathers=False))
        gathered = stack.enter_context(MicroBatcher(session, THREADS, gathers=True))
        builder = relevo.AgentBuilder().default_model(model, head="argmax").actor_count(THREADS)
        recording = stack.enter_context(builder.build())
        unrecorded = stack.enter_context(builder.keep_in_memory(0).build())
        sides = {
            WAITING: [waiting.caller() for _ in range(THREADS)],
            GATHERED: [gathered.caller() for _ in range(THREADS)],
            DIRECT: [direct(session)] * THREADS,
            ACT: [acting(unrecorded.actors([actor])) for actor in unrecorded.get_actor_ids()],
            ACT_OBSERVE: [acting_and_observing(recording.actors([actor])) for actor in recording.get_actor_ids()],
        }
        rounds = Rounds(
            [thread_calls(side, calls, callers, seconds, think=think) for side, calls in sides.items()], turns
        )
    callers.check(report, case)
    steps = recording.stats()["steps_recorded"]
    report.check(f"{case}: {steps:,} steps recorded, as many as taken", steps == callers.compared[ACT_OBSERVE])
    add_figures(report, rounds, case, SIDES)
    return rounds


def direct(session: onnxruntime.InferenceSession) -> Call:
    """The session for all threads at once: its `run` may be called from any."""

    def call(obs: np.ndarray) -> int:
        return session.run(None, {"obs": obs})[0].argmax()

    return call


def acting(actor: relevo.Actors) -> Call:
    """The action as a number, as the other sides give it."""
    act = actor.act

    def call(obs: np.ndarray) -> int:
        return act(obs)[0]

    return call


def acting_and_observing(actor: relevo.Actors) -> Call:
    """As in a real loop: every step earns something, and every 200th ends an episode."""
    act, observe, step = actor.act, actor.observe, 0

    def call(obs: np.ndarray) -> int:
        nonlocal step
        action = act(obs)[0]
        step += 1
        if step % EPISODE_STEPS:
            observe(1.0)
        else:
            observe(1.0, terminated=True, final_obs=obs)
        return action

    return call


if __name__ == "__main__":
    main(run)
