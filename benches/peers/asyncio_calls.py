"""1,000 asyncio tasks with an actor each: batched by hand on their own loop, and by ours; asyncio's loop and uvloop."""

from __future__ import annotations

import asyncio
import collections
import itertools
import time
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime
import policies
import uvloop
from callers import EPISODE_STEPS, Callers
from report import Report, main
from rounds import Rounds, goal
from sessions import one_thread_session

import relevo

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from pathlib import Path

    from rounds import Samples

    Caller = Callable[["Crowd", list[np.ndarray], list[int]], Coroutine[None, None, None]]
    """One task: it calls with its observations, again and again, and keeps the actions, while the crowd is running."""

TASKS = 1_000

BATCHER = "Python micro-batcher on the loop"
RECORDING_BATCHER = "the same, keeping trajectories in memory"
FLOOR = "tasks alone: all wait for one future, no policy (floor)"
ACT = "relevo, act_async"
ACT_OBSERVE = "relevo, act_async + observe, recorded in memory"
TIMES = 3

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio's own loop": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def run(folder: Path, quick: bool) -> Report:
    """Measures both loops."""
    report = Report(f"{TASKS:,} asyncio tasks, single calls, argmax, MLP 8 → 64 → 64 → 4")
    report.versions = {
        "uvloop": uvloop.__version__,
        "onnxruntime": onnxruntime.__version__,
        "relevo": relevo.__version__,
    }
    session = one_thread_session(folder / policies.MLP)
    turns, seconds = (2, 0.5) if quick else (9, 1.0)
    for case, new_loop in LOOPS.items():
        callers = Callers.draw(session, TASKS)
        builder = relevo.AgentBuilder().default_model(folder / policies.MLP, head="argmax").actor_count(TASKS)
        with builder.build() as recording, builder.keep_in_memory(0).build() as unrecorded:
            batcher, awakening = LoopBatcher(session), Awakening()
            sides: dict[str, list[Caller]] = {
                BATCHER: [awaiting(batcher.act)] * TASKS,
                RECORDING_BATCHER: [awaiting_and_observing(RecordingBatcher(batcher)) for _ in range(TASKS)],
                FLOOR: [awaiting(awakening.act)] * TASKS,
                ACT: [acting(unrecorded.actors([actor])) for actor in unrecorded.get_actor_ids()],
                ACT_OBSERVE: [acting_and_observing(recording.actors([actor])) for actor in recording.get_actor_ids()],
            }
            rounds = Rounds(
                [task_calls(side, loops, callers, new_loop, seconds) for side, loops in sides.items()], turns
            )
        del callers.compared[FLOOR]
        callers.check(report, case)
        steps = recording.stats()["steps_recorded"]
        report.check(f"{case}: {steps:,} steps recorded, as many as taken", steps == callers.compared[ACT_OBSERVE])
        # No call is timed by itself: with all tasks always waiting, one takes as long as 1,000 need together.
        report.figures += [rounds.figure(case, side, "calls/s") for side in sides]
        for ours, peer in ((ACT, BATCHER), (ACT_OBSERVE, RECORDING_BATCHER)):
            ratios = rounds.medians(ours) / rounds.medians(peer)
            report.goals.append(goal(case, f"{ours}: calls/s, times those of: {peer}", ratios, TIMES, at_most=False))
    return report


class LoopBatcher:
    """Batching on the loop that the callers run on: the first who calls has the batch run when the loop turns."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self._session = session
        self._observations: list[np.ndarray] = []
        self._futures: list[asyncio.Future[int]] = []

    def act(self, obs: np.ndarray) -> asyncio.Future[int]:
        """The action for one observation `[1, width]`."""
        loop = asyncio.get_running_loop()
        if not self._futures:
            loop.call_soon(self._flush)
        future = loop.create_future()
        self._observations.append(obs)
        self._futures.append(future)
        return future

    def _flush(self) -> None:
        observations, self._observations = self._observations, []
        futures, self._futures = self._futures, []
        actions = self._session.run(None, {"obs": np.concatenate(observations)})[0].argmax(axis=1).tolist()
        for future, action in zip(futures, actions, strict=True):
            if not future.cancelled():
                future.set_result(action)


class RecordingBatcher:
    """One actor's calls by the batcher, and the last few episodes of them, as ours keeps them by default."""

    def __init__(self, batcher: LoopBatcher) -> None:
        self._batcher = batcher
        self._steps: list[tuple[np.ndarray, int, float, float]] = []
        self._episodes: collections.deque[dict[str, np.ndarray]] = collections.deque(maxlen=8)
        self._open: tuple[np.ndarray, int, float] | None = None

    async def act(self, obs: np.ndarray) -> int:
        """The action for one observation `[1, width]`."""
        action = await self._batcher.act(obs)
        self._open = (obs.copy(), action, time.time())
        return action

    def observe(self, reward: float, *, terminated: bool = False) -> None:
        """What the action earned, and whether the episode ended."""
        if self._open is not None:
            self._steps.append((*self._open, reward))
            self._open = None
        if terminated:
            observations, actions, times, rewards = zip(*self._steps, strict=True)
            self._episodes.append(
                {
                    "observations": np.concatenate(observations),
                    "actions": np.array(actions),
                    "times": np.array(times),
                    "rewards": np.array(rewards),
                }
            )
            self._steps.clear()


class Awakening:
    """The least that can be done: the loop turns, and one future wakes everybody. There is no action in it."""

    def __init__(self) -> None:
        self._future: asyncio.Future[int] | None = None

    def act(self, _obs: np.ndarray) -> asyncio.Future[int]:
        """Gives 0 when the loop has turned."""
        if self._future is None:
            loop = asyncio.get_running_loop()
            self._future = loop.create_future()
            loop.call_soon(self._wake)
        return self._future

    def _wake(self) -> None:
        future, self._future = self._future, None
        if future is not None:
            future.set_result(0)


class Crowd:
    """What the tasks of one turn share."""

    def __init__(self) -> None:
        self.running = True

    def stop(self) -> None:
        """Lets each task end after the call it is in."""
        self.running = False


def task_calls(
    side: str,
    loops: list[Caller],
    callers: Callers,
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    seconds: float,
) -> Callable[[], Samples]:
    """A turn of `seconds` with a task for each of `loops`, on a loop of its own."""
    rows = [list(each) for each in callers.rows]

    async def tasks() -> tuple[list[list[int]], float]:
        crowd, answers = Crowd(), [[] for _ in loops]
        asyncio.get_running_loop().call_later(seconds, crowd.stop)
        begin = time.perf_counter()
        await asyncio.gather(
            *(loop(crowd, mine, given) for loop, mine, given in zip(loops, rows, answers, strict=True))
        )
        return answers, time.perf_counter() - begin

    def turn() -> Samples:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            answers, elapsed = runner.run(tasks())
        callers.compare(side, answers)
        return {side: np.array([sum(map(len, answers)) / elapsed])}

    return turn


def awaiting(act: Callable[[np.ndarray], Awaitable[int]]) -> Caller:
    """Calls that give the action as a number."""

    async def caller(crowd: Crowd, rows: list[np.ndarray], answers: list[int]) -> None:
        for row in itertools.cycle(rows):
            if not crowd.running:
                break
            answers.append(await act(row))

    return caller


def awaiting_and_observing(actor: RecordingBatcher) -> Caller:
    """The batcher in a real loop, as `acting_and_observing` is ours."""

    async def caller(crowd: Crowd, rows: list[np.ndarray], answers: list[int]) -> None:
        act, observe = actor.act, actor.observe
        for step, row in enumerate(itertools.cycle(rows), start=1):
            if not crowd.running:
                break
            answers.append(await act(row))
            observe(1.0, terminated=step % EPISODE_STEPS == 0)

    return caller


def acting(actor: relevo.Actors) -> Caller:
    """Calls of ours; the action is taken out as a number, as the batcher gives it."""

    async def caller(crowd: Crowd, rows: list[np.ndarray], answers: list[int]) -> None:
        act = actor.act_async
        for row in itertools.cycle(rows):
            if not crowd.running:
                break
            answers.append((await act(row))[0])

    return caller


def acting_and_observing(actor: relevo.Actors) -> Caller:
    """As in a real loop: every step earns something, and every 200th ends an episode."""

    async def caller(crowd: Crowd, rows: list[np.ndarray], answers: list[int]) -> None:
        act, observe = actor.act_async, actor.observe
        for step, row in enumerate(itertools.cycle(rows), start=1):
            if not crowd.running:
                break
            answers.append((await act(row))[0])
            if step % EPISODE_STEPS:
                observe(1.0)
            else:
                observe(1.0, terminated=True, final_obs=row)

    return caller


if __name__ == "__main__":
    main(run)
