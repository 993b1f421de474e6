"""One call for 256 actors of an LSTM: ONNX Runtime alone, and ours, which carries each actor's state along."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime
import policies
from act import EPISODE_STEPS
from report import Report, main
from rounds import Rounds, goal
from sessions import one_thread_session

import relevo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rounds import Samples

ACTORS = 256
WIDTH = 8
CALLS = 400
TOLERANCE = 1e-5
CASE = f"{ACTORS} actors"
FACTOR = 1.15

PYTHON = "onnxruntime, session.run, states fed back by hand"
FLOOR = "ONNX Runtime, all bound before (floor)"
ACT = "relevo, act"
ACT_OBSERVE = "relevo, act + observe"


def run(folder: Path, quick: bool) -> Report:
    """Measures one and two layers: with two, an actor's state lies in two places of a batch."""
    report = Report(f"recurrent: LSTM 8 → {policies.LSTM_HIDDEN} → 4, one thread, states of 1 and 2 layers")
    report.versions = {"onnxruntime": onnxruntime.__version__, "relevo": relevo.__version__}
    for layers, name in policies.LSTMS.items():
        path = folder / name
        session = one_thread_session(path)
        obs = np.random.default_rng(layers).standard_normal((ACTORS, WIDTH)).astype(np.float32)
        case = f"{CASE}, {layers} layer{'s' if layers > 1 else ''}"
        check(report, case, path, session)
        with relevo.AgentBuilder().default_model(path, head="argmax").actor_count(ACTORS).seed(7).build() as agent:
            sides = [
                python_calls(session, obs, layers),
                floor_calls(session, obs, layers),
                relevo_calls(agent.actors(), obs),
            ]
            rounds = Rounds(sides, 4 if quick else 20)
        report.figures += [rounds.figure(case, side, "µs") for side in (PYTHON, FLOOR, ACT, ACT_OBSERVE)]
        ratios = rounds.medians(ACT) / rounds.medians(FLOOR)
        report.goals.append(goal(case, f"{ACT} ≤ {FACTOR} × the floor", ratios, FACTOR, at_most=True))
    return report


def zeros(layers: int) -> dict[str, np.ndarray]:
    """The states at the beginning of an episode."""
    return {f"{name}_in": np.zeros((layers, ACTORS, policies.LSTM_HIDDEN), np.float32) for name in ("h", "c")}


def python_calls(session: onnxruntime.InferenceSession, obs: np.ndarray, layers: int) -> Callable[[], Samples]:
    """What one writes in Python."""

    def turn() -> Samples:
        spent, clock, states = np.empty(CALLS), time.perf_counter_ns, zeros(layers)
        for call in range(CALLS):
            begin = clock()
            _, h, c = session.run(None, {"obs": obs, **states})
            spent[call] = clock() - begin
            states = {"h_in": h, "c_in": c}
        return {PYTHON: spent / 1_000}

    return turn


def floor_calls(session: onnxruntime.InferenceSession, obs: np.ndarray, layers: int) -> Callable[[], Samples]:
    """The least that ONNX Runtime takes from Python: everything bound once, the same states again and again."""
    binding = session.io_binding()
    # Kept, as the binding points to them.
    given = {
        name: onnxruntime.OrtValue.ortvalue_from_numpy(value) for name, value in {"obs": obs, **zeros(layers)}.items()
    }
    for name, value in given.items():
        binding.bind_ortvalue_input(name, value)
    shape = [layers, ACTORS, policies.LSTM_HIDDEN]
    shapes = {"logits": [ACTORS, 4], "h_out": shape, "c_out": shape}
    taken = {
        name: onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, np.float32) for name, shape in shapes.items()
    }
    for name, value in taken.items():
        binding.bind_ortvalue_output(name, value)
    raw_session, raw_binding = session._sess, binding._iobinding  # noqa: SLF001 : below the wrapper is the floor

    def turn() -> Samples:
        assert len(given) == len(taken) == 3  # noqa: S101, PLR2004
        spent, clock, bound_run = np.empty(CALLS), time.perf_counter_ns, raw_session.run_with_iobinding
        for call in range(CALLS):
            begin = clock()
            bound_run(raw_binding, None)
            spent[call] = clock() - begin
        return {FLOOR: spent / 1_000}

    return turn


def relevo_calls(actors: relevo.Actors, obs: np.ndarray) -> Callable[[], Samples]:
    """Episodes of 200 steps, which end at different times."""
    rewards, nothing_ended = np.ones(ACTORS), np.zeros(ACTORS, np.bool_)
    phase = np.arange(ACTORS) % EPISODE_STEPS
    endings = [phase == step for step in range(EPISODE_STEPS)]
    outcomes = [(ended, obs if ended.any() else None) for ended in endings]

    def turn() -> Samples:
        acted, observed = np.empty(CALLS), np.empty(CALLS)
        clock, act, observe = time.perf_counter_ns, actors.act, actors.observe
        for call in range(CALLS):
            terminated, final_obs = outcomes[call % EPISODE_STEPS]
            begin = clock()
            act(obs)
            after_act = clock()
            observe(rewards, terminated, nothing_ended, final_obs)
            observed[call] = clock() - begin
            acted[call] = after_act - begin
        return {ACT: acted / 1_000, ACT_OBSERVE: observed / 1_000}

    return turn


def check(report: Report, case: str, path: Path, session: onnxruntime.InferenceSession) -> None:
    """The logits of a hundred steps, with episodes that end at random, against states fed back by hand."""
    draws, steps = np.random.default_rng(5), 100
    (layers,) = (count for count, name in policies.LSTMS.items() if name == path.name)
    states, furthest, ends = zeros(layers), 0.0, 0
    builder = relevo.AgentBuilder().default_model(path, head="argmax").actor_count(ACTORS).keep_outputs()
    with builder.build() as agent:
        actors = agent.actors()
        for _ in range(steps):
            obs = draws.standard_normal((ACTORS, WIDTH)).astype(np.float32)
            logits, h, c = session.run(None, {"obs": obs, **states})
            outputs = actors.act(obs).outputs
            furthest = max(furthest, float(np.abs((outputs or {})["logits"] - logits).max()))
            ended = draws.random(ACTORS) < 0.05  # noqa: PLR2004 : one episode in twenty
            actors.observe(np.ones(ACTORS), ended)
            h[:, ended] = c[:, ended] = 0
            ends += int(ended.sum())
            states = {"h_in": h, "c_in": c}
    what = f"{case}: logits of {steps} steps, {ends:,} episodes ended between, are onnxruntime's to {TOLERANCE:g}"
    report.check(what, furthest <= TOLERANCE)


if __name__ == "__main__":
    main(run)
