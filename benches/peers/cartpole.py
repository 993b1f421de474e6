"""CartPole in a vector environment: a bare loop around ONNX Runtime, and `relevo.collect`, recording or not."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
from rounds import Rounds, goal
from sessions import one_thread_session

import relevo

if TYPE_CHECKING:
    from collections.abc import Callable

    from report import Report
    from rounds import Samples

BARE = "bare loop: session.run, argmax, env.step"
UNRECORDED = "relevo.collect, no recording"
RECORDED = "relevo.collect, Arrow, until all is on disk"
PROCESSOR = ", processor time"
# Logits that are closer than this may swap places: a forward pass of another size adds up in another order.
NEARLY_EQUAL = 1e-5


@dataclass(frozen=True)
class Workload:
    """A vector environment, a policy, and for how long."""

    case: str
    policy: Path
    make_envs: Callable[[], Any]
    """Environments that reset in the step after the one that ends an episode."""
    envs: int
    vector_steps: int
    """Of one turn."""
    turns: int
    bound_recorded: float
    bound_unrecorded: float


def compare(report: Report, workload: Workload) -> None:
    """Measures the three sides; a step that only resets an environment counts on all of them."""
    with tempfile.TemporaryDirectory(prefix="relevo-bench-") as folder:
        check_recorded_run(report, workload, Path(folder) / "checked")
        turns = [bare_loop(workload), collection(workload, None), collection(workload, Path(folder))]
        rounds = Rounds(turns, workload.turns)
    for side in (BARE, UNRECORDED, RECORDED):
        report.figures.append(rounds.figure(workload.case, side, "env steps/s"))
    for side in (BARE, UNRECORDED, RECORDED):
        report.figures.append(rounds.figure(workload.case, side + PROCESSOR, "ns/step"))
    bare = rounds.medians(BARE)
    for side, bound, name in (
        (RECORDED, workload.bound_recorded, "recording to Arrow on"),
        (UNRECORDED, workload.bound_unrecorded, "recording off"),
    ):
        asked = f"{name}, part of the bare loop's speed"
        report.goals.append(goal(workload.case, asked, rounds.medians(side) / bare, bound, at_most=False))


def bare_loop(workload: Workload) -> Callable[[], Samples]:
    """What one writes without a library, and what keeps nothing."""
    envs, session = workload.make_envs(), one_thread_session(workload.policy)

    def turn() -> Samples:
        begin, worked = time.perf_counter(), time.process_time()
        obs, _ = envs.reset()
        for _ in range(workload.vector_steps):
            actions = session.run(None, {"obs": obs})[0].argmax(axis=1)
            obs, _reward, _terminated, _truncated, _info = envs.step(actions)
        return _rates(BARE, workload.vector_steps * workload.envs, begin, worked)

    return turn


def collection(workload: Workload, folder: Path | None) -> Callable[[], Samples]:
    """`relevo.collect` with an agent of its own each time, timed until `shutdown` has written everything."""
    envs, model = workload.make_envs(), relevo.ModelModule.load_from_path(workload.policy)

    def turn() -> Samples:
        builder = relevo.AgentBuilder().default_model(model, head="argmax").actor_count(workload.envs)
        if folder is None:
            builder.keep_in_memory(0)
        else:
            builder.record(folder / f"run-{time.perf_counter_ns()}")
        agent = builder.build()
        agent.start()
        begin, worked = time.perf_counter(), time.process_time()
        # `steps` leaves out those that only reset an environment: the counter tells what was asked of it all the same.
        relevo.collect(agent, envs, steps=workload.vector_steps * workload.envs)
        agent.shutdown()
        side = UNRECORDED if folder is None else RECORDED
        return _rates(side, agent.stats()["policies"]["default"]["rows"], begin, worked)

    return turn


def _rates(side: str, steps: int, begin: float, worked: float) -> Samples:
    """Steps a second, and the processor time of a step in nanoseconds, over all threads of the process."""
    seconds, processor_seconds = time.perf_counter() - begin, time.process_time() - worked
    return {side: np.array([steps / seconds]), side + PROCESSOR: np.array([processor_seconds / steps * 1e9])}


class _Counted:
    """Vector environments that count their steps, independently of the library."""

    def __init__(self, envs: Any) -> None:  # noqa: ANN401 : Gymnasium's and EnvPool's have no type in common
        self._envs = envs
        self._resetting: np.ndarray | None = None
        self.steps = 0
        self.resets = 0
        self.episodes = 0

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._envs, name)

    def step(self, actions: np.ndarray) -> Any:  # noqa: ANN401
        """Steps them; where the step before ended an episode, this one only resets."""
        result = self._envs.step(actions)
        resets = 0 if self._resetting is None else int(self._resetting.sum())
        self.resets += resets
        self.steps += len(actions) - resets
        self._resetting = result[2] | result[3]
        self.episodes += int(self._resetting.sum())
        return result


def check_recorded_run(report: Report, workload: Workload, folder: Path) -> None:
    """Reads a recorded run back and compares it with what the environments counted and what the policy says."""
    envs = _Counted(workload.make_envs())
    agent = (
        relevo.AgentBuilder()
        .default_model(workload.policy, head="argmax")
        .actor_count(workload.envs)
        .record(folder)
        .build()
    )
    with agent:
        # Enough for the longest episodes of CartPole-v1 to end.
        relevo.collect(agent, envs, steps=600 * workload.envs)
    steps = ended = 0
    sample = []
    for episode in relevo.open_run(folder).episodes():
        steps += len(episode)
        ended += episode.complete
        if episode.number % 50 == 0:
            sample.append(episode)
    case = workload.case
    report.check(
        f"{case}: {steps:,} steps read back, as many as the environments took ({envs.steps + envs.resets:,}, of which "
        f"{envs.resets:,} only reset)",
        steps == envs.steps,
    )
    report.check(f"{case}: {ended:,} episodes read back, as many as ended", ended == envs.episodes)
    session, compared, wrong = one_thread_session(workload.policy), 0, 0
    for episode in sample:
        logits = session.run(None, {"obs": episode.observations[: len(episode)]})[0]
        margin = np.abs(logits[:, 0] - logits[:, 1])
        wrong += int(((logits.argmax(axis=1) != episode.actions) & (margin > NEARLY_EQUAL)).sum())
        compared += len(episode)
    report.check(
        f"{case}: each recorded action is the argmax of the policy on the recorded observation, {compared:,} compared",
        compared > 0 and wrong == 0,
    )


def versions() -> dict[str, str]:
    """Of what every comparison here uses."""
    return {"onnxruntime": onnxruntime.__version__, "relevo": relevo.__version__}
