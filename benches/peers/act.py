"""One call for 1, 64 and 1,024 actors: ONNX Runtime alone, and ours with head, sampling and recording in memory."""

from __future__ import annotations

import time
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
    from pathlib import Path

    from rounds import Samples

WIDTH = 8
EPISODE_STEPS = 200
TOLERANCE = 1e-5

PYTHON = "onnxruntime, session.run"
FLOOR = "ONNX Runtime, all bound before (floor)"
ACT = "relevo, act"
ACT_ARRAY = "relevo, act + np.asarray"
ACT_OBSERVE = "relevo, act + np.asarray + observe"

# By actors: calls of a round, factor on the floor, nanoseconds a row on top.
CASES = {1: (4_000, 1.3, 0), 64: (2_000, 1.15, 30), 1_024: (300, 1.1, 20)}


def run(folder: Path, quick: bool) -> Report:
    """Measures all cases."""
    report = Report("act: MLP 8 → 64 → 64 → 4, one thread")
    report.versions = {"onnxruntime": onnxruntime.__version__, "relevo": relevo.__version__}
    session = one_thread_session(folder / policies.MLP)
    for actors, (calls, factor, nanoseconds) in CASES.items():
        obs = np.random.default_rng(actors).standard_normal((actors, WIDTH)).astype(np.float32)
        check_argmax(report, folder, session, actors)
        agent, turns = build(folder, actors, "categorical"), 4 if quick else 20
        with agent:
            ours = relevo_calls(agent.actors(), obs, calls)
            rounds = Rounds([python_calls(session, obs, calls), floor_calls(session, obs, calls), ours], turns)
        taken = calls * (turns + 1) * actors  # with the turn that warms up
        check_memory(report, agent, session, actors, all_there=agent.stats()["steps_recorded"] == taken)
        case = f"{actors:,} actor{'s' if actors > 1 else ''}"
        report.figures += [rounds.figure(case, side, "µs") for side in (PYTHON, FLOOR, ACT, ACT_ARRAY, ACT_OBSERVE)]
        limit = rounds.medians(FLOOR) * factor + actors * nanoseconds / 1_000
        asked = f"act ≤ {factor} × the floor" + (f" + {actors:,} × {nanoseconds} ns" if nanoseconds else "")
        asked += f" = {np.median(limit):.1f} µs; as a part of that"
        report.goals.append(goal(case, asked, rounds.medians(ACT) / limit, 1, at_most=True))
    check_sampling(report, folder, session)
    return report


def build(folder: Path, actors: int, head: str) -> relevo.Agent:
    """An agent as `AgentBuilder` makes it by default: the last 1,000 trajectories stay in memory."""
    return relevo.AgentBuilder().default_model(folder / policies.MLP, head=head).actor_count(actors).seed(7).build()


def python_calls(session: onnxruntime.InferenceSession, obs: np.ndarray, calls: int) -> Callable[[], Samples]:
    """`session.run`, as one writes it in Python."""

    def turn() -> Samples:
        spent, clock = np.empty(calls), time.perf_counter_ns
        for call in range(calls):
            begin = clock()
            session.run(None, {"obs": obs})
            spent[call] = clock() - begin
        return {PYTHON: spent / 1_000}

    return turn


def floor_calls(session: onnxruntime.InferenceSession, obs: np.ndarray, calls: int) -> Callable[[], Samples]:
    """The least that ONNX Runtime takes from Python: input and output bound once, its own object called directly."""
    binding = session.io_binding()
    observation = onnxruntime.OrtValue.ortvalue_from_numpy(obs)
    logits = onnxruntime.OrtValue.ortvalue_from_shape_and_type([len(obs), 4], np.float32)
    binding.bind_ortvalue_input("obs", observation)
    binding.bind_ortvalue_output("logits", logits)
    raw_session, raw_binding = session._sess, binding._iobinding  # noqa: SLF001 : below the wrapper is the floor

    def turn() -> Samples:
        # `logits` and `observation` own what the binding points to.
        assert logits.shape()[0] == observation.shape()[0]  # noqa: S101
        spent, clock, bound_run = np.empty(calls), time.perf_counter_ns, raw_session.run_with_iobinding
        for call in range(calls):
            begin = clock()
            bound_run(raw_binding, None)
            spent[call] = clock() - begin
        return {FLOOR: spent / 1_000}

    return turn


def relevo_calls(actors: relevo.Actors, obs: np.ndarray, calls: int) -> Callable[[], Samples]:
    """A loop as with real environments: episodes of 200 steps, which end at different times."""
    count = len(actors)
    rewards, nothing_ended = np.ones(count), np.zeros(count, np.bool_)
    phase = np.arange(count) % EPISODE_STEPS
    endings = [phase == step for step in range(EPISODE_STEPS)]
    # As in `relevo.collect`: final observations come with the steps in which an episode ends.
    outcomes = [(ended, obs if ended.any() else None) for ended in endings]

    def turn() -> Samples:
        acted, taken, observed = np.empty(calls), np.empty(calls), np.empty(calls)
        clock, act, observe = time.perf_counter_ns, actors.act, actors.observe
        for call in range(calls):
            terminated, final_obs = outcomes[call % EPISODE_STEPS]
            begin = clock()
            batch = act(obs)
            after_act = clock()
            np.asarray(batch)
            after_array = clock()
            observe(rewards, terminated, nothing_ended, final_obs)
            after_observe = clock()
            acted[call], taken[call] = after_act - begin, after_array - begin
            observed[call] = after_observe - begin
        return {ACT: acted / 1_000, ACT_ARRAY: taken / 1_000, ACT_OBSERVE: observed / 1_000}

    return turn


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """In float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def check_argmax(report: Report, folder: Path, session: onnxruntime.InferenceSession, actors: int) -> None:
    """The argmax head against NumPy's argmax of ONNX Runtime's logits."""
    obs = np.random.default_rng(1).standard_normal((20, actors, WIDTH)).astype(np.float32)
    with build(folder, actors, "argmax") as agent:
        acting = agent.actors()
        same = all(
            np.array_equal(np.asarray(acting.act(batch)), session.run(None, {"obs": batch})[0].argmax(axis=1))
            for batch in obs
        )
    report.check(f"{actors:,}: {20 * actors:,} argmax actions are NumPy's argmax of onnxruntime's logits", same)


def check_memory(
    report: Report, agent: relevo.Agent, session: onnxruntime.InferenceSession, actors: int, *, all_there: bool
) -> None:
    """What the timed loop has recorded."""
    episodes = agent.trajectories()[-10:]
    report.check(f"{actors:,}: as many steps recorded as taken", all_there and len(episodes) > 0)
    close = True
    for episode in episodes:
        steps = len(episode)
        expected = log_softmax(session.run(None, {"obs": episode.observations[:steps]})[0])
        told = episode.log_probs
        close &= bool(np.abs(told - expected[np.arange(steps), episode.actions]).max() <= TOLERANCE)
    report.check(f"{actors:,}: recorded log_probs are the log-softmax of onnxruntime's logits to 1e-5", close)


def check_sampling(report: Report, folder: Path, session: onnxruntime.InferenceSession) -> None:
    """The categorical head's log-probabilities, and how often each action comes."""
    calls, actors = 200, 1_024
    obs = np.random.default_rng(2).standard_normal((actors, WIDTH)).astype(np.float32)
    expected = log_softmax(session.run(None, {"obs": obs})[0])
    counts, furthest = np.zeros(expected.shape[1]), 0.0
    with build(folder, actors, "categorical") as agent:
        acting = agent.actors()
        for _ in range(calls):
            batch = acting.act(obs)
            furthest = max(furthest, float(np.abs(batch.log_prob - expected[np.arange(actors), batch.action]).max()))
            counts += np.bincount(batch.action, minlength=len(counts))
    probabilities = np.exp(expected)
    deviation = np.sqrt(calls * (probabilities * (1 - probabilities)).sum(axis=0))
    distance = float(np.abs((counts - calls * probabilities.sum(axis=0)) / deviation).max())
    report.check("log_prob is the log-softmax of onnxruntime's logits to 1e-5", furthest <= TOLERANCE)
    report.check(
        f"sampled actions come as often as the logits say: {distance:.1f} standard deviations off at most, of "
        f"{calls * actors:,} draws",
        distance < 5,  # noqa: PLR2004
    )


if __name__ == "__main__":
    main(run)
