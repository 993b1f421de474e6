"""Five minutes of everything at once, every action held against what its version gives.

64 threads and 200 tasks with single calls, 4 threads that call for 8 actors in turns, a vectorised caller, actors that
go back and forth between two policies, a policy that fails now and then, routers scaled between 1 and 4, models
exchanged every 100 ms, actors added and removed, recording paused.

    .venv/bin/python benches/soak.py [--seconds 300] [--json FILE]

Exits with 1 after any error (but those of the policy that fails, for its own actors, and for those rows alone that it
fails for), where an action is not its version's, where a call is lost, and where memory grows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import relevo

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

THREADS, TASKS, ROWS = 64, 200, 32
OWNERS, OWNED = 4, 8
"""Threads that have several actors each, and how many."""
MOVING, FAILING = 8, 8
"""Actors that go back and forth between two policies; actors of the policy that fails."""
FAILS = 0.02
"""How often an actor of that policy observes what it fails for."""
WIDTH, CHOICES, MODELS = 8, 16, 8
MARGIN = 1e-3
"""Logits nearer than this may change places by rounding, which depends on the batch; such observations are not used."""
GROWTH_MEBIBYTES = 32
"""What memory may grow by between the end of the first fifth, when all is warm, and the end."""


class Soak:
    """The agent, the models that it is given, and what was counted."""

    def __init__(self, folder: Path, seconds: float) -> None:
        draw = np.random.default_rng(1)
        self.matrices = [draw.standard_normal((WIDTH, CHOICES)).astype(np.float32) for _ in range(MODELS)]
        self.models = [
            relevo.ModelModule.load_from_path(_write(folder / f"{v}.onnx", m)) for v, m in enumerate(self.matrices)
        ]
        self.observations = self._clear_observations(draw)
        # Which action each model chooses for each of them.
        self.actions = np.stack([(self.observations @ matrix).argmax(axis=1) for matrix in self.matrices])
        self.agent = (
            relevo.AgentBuilder()
            .default_model(self.models[1], head="argmax")
            # One model for good: what its actors do tells which policy they follow.
            .policy("rival", self.models[0], head="argmax")
            .policy("failing", _write_failing(folder / "failing.onnx"), head="argmax")
            .actor_count(THREADS + TASKS + ROWS + OWNERS * OWNED + MOVING)
            .seed(7)
            .build()
        )
        self.ends = time.monotonic() + seconds
        self.seconds = seconds
        self.calls: dict[str, int] = {}
        self.errors: list[str] = []
        self.memory: list[tuple[float, float]] = []
        self.changes = dict.fromkeys(("updates", "scalings", "added", "removed", "pauses", "assigned"), 0)
        self.failed = [0] * FAILING

    def _clear_observations(self, draw: np.random.Generator) -> npt.NDArray[np.float32]:
        candidates = draw.standard_normal((4_096, WIDTH)).astype(np.float32)
        clear = np.ones(len(candidates), np.bool_)
        for matrix in self.matrices:
            logits = np.sort(candidates @ matrix, axis=1)
            clear &= logits[:, -1] - logits[:, -2] > MARGIN
        return candidates[clear]

    @property
    def running(self) -> bool:
        """Whether there is time left, and nothing has gone wrong."""
        return time.monotonic() < self.ends and not self.errors

    def check(self, batch: relevo.ActionBatch, rows: npt.NDArray[np.intp]) -> None:
        """Holds every action against what the version that it carries gives for its observation."""
        expected = self.actions[batch.policy_version.astype(np.intp) % MODELS, rows]
        if not np.array_equal(expected, batch.action):
            self.errors.append(f"{batch!r} should have the actions {expected}")

    def thread(self, actor: relevo.Actors, seed: int) -> int:
        """Single calls of a thread, with episodes of 50 steps and a pause now and then."""
        draw, calls = random.Random(seed), 0
        while self.running:
            row = draw.randrange(len(self.observations))
            self.check(actor.act(self.observations[row : row + 1]), np.array([row]))
            calls += 1
            actor.observe(1.0, terminated=calls % 50 == 0)
            if draw.random() < 0.01:  # noqa: PLR2004
                time.sleep(draw.random() / 1_000)
        return calls

    def owner(self, actors: list[relevo.Actors], seed: int) -> int:
        """Single calls of a thread that has several actors, one after the other."""
        draw, calls = random.Random(seed), 0
        while self.running:
            for actor in actors:
                row = draw.randrange(len(self.observations))
                self.check(actor.act(self.observations[row : row + 1]), np.array([row]))
                actor.observe(1.0, terminated=draw.random() < 0.02)  # noqa: PLR2004
                calls += 1
        return calls

    def mover(self, actor: relevo.Actors, seed: int) -> int:
        """Single calls of an actor that is assigned to another policy now and then: it holds from the next call on."""
        draw, calls, policy = random.Random(seed), 0, "default"
        while self.running:
            if draw.random() < 0.05:  # noqa: PLR2004
                policy = "rival" if policy == "default" else "default"
                self.agent.assign(actor.ids, policy)
                self.changes["assigned"] += 1
            row = draw.randrange(len(self.observations))
            batch = actor.act(self.observations[row : row + 1])
            if policy == "default":
                self.check(batch, np.array([row]))
            elif (batch.action[0], batch.policy_version[0]) != (self.actions[0, row], 1):
                self.errors.append(f"{batch!r} should be the rival's, {self.actions[0, row]}")
            calls += 1
            actor.observe(1.0, terminated=calls % 50 == 0)
        return calls

    def failing(self, actor: relevo.Actors, seed: int) -> int:
        """Single calls of an actor whose policy chooses what it observes, and fails where there is no such choice."""
        draw, calls, index = random.Random(seed), 0, seed - 4_000
        while self.running:
            fails = draw.random() < FAILS
            choice = 13 if fails else draw.randrange(4)
            answer: int | str
            try:
                answer = int(actor.act(np.array([[choice]], np.float32)).action[0])
            except relevo.InferenceError as error:
                answer = str(error)
            if not (f"actor {actor.ids[0]}" in str(answer) if fails else answer == choice):
                self.errors.append(f"{choice} was answered by {answer}")
            if fails:
                self.failed[index] += 1
                continue
            calls += 1
            actor.observe(1.0, terminated=calls % 50 == 0)
        return calls

    async def task(self, actor: relevo.Actors, seed: int) -> int:
        """Single calls of a task; one in a hundred is cancelled."""
        draw, calls = random.Random(seed), 0
        while self.running:
            row = draw.randrange(len(self.observations))
            pending: Any = actor.act_async(self.observations[row : row + 1])
            if draw.random() < 0.01:  # noqa: PLR2004
                pending.cancel()
                await asyncio.sleep(0)
                continue
            self.check(await pending, np.array([row]))
            calls += 1
            actor.observe(1.0, terminated=calls % 50 == 0)
            if draw.random() < 0.05:  # noqa: PLR2004
                await asyncio.sleep(draw.random() / 100)
        return calls

    def tasks(self, actors: list[relevo.Actors], seed: int) -> int:
        """A loop with its tasks."""

        async def gather() -> int:
            return sum(await asyncio.gather(*(self.task(actor, seed + index) for index, actor in enumerate(actors))))

        return asyncio.run(gather())

    def vectorised(self, actors: relevo.Actors, seed: int) -> int:
        """Calls for many actors at once."""
        draw, calls = np.random.default_rng(seed), 0
        while self.running:
            rows = draw.integers(len(self.observations), size=ROWS)
            self.check(actors.act(self.observations[rows]), rows)
            calls += ROWS
            actors.observe(np.ones(ROWS), draw.random(ROWS) < 0.02)  # noqa: PLR2004
            time.sleep(0.001)
        return calls

    def updates(self, _: None, seed: int) -> int:
        """A new model every 100 ms."""
        draw = random.Random(seed)
        version = 1
        while self.running:
            version += 1
            # Version v serves model v mod 8.
            if self.agent.update_model(self.models[version % MODELS]) != version:
                raise AssertionError("a version was left out")
            self.changes["updates"] += 1
            time.sleep(0.1 + draw.random() / 1_000)
        return 0

    def life(self, _: None, seed: int) -> int:
        """Actors that come, act a little and go; routers that come and go; recording that is paused."""
        draw, calls = random.Random(seed), 0
        while self.running:
            ids = self.agent.new_actors(4)
            handles = [self.agent.actors([actor]) for actor in ids]
            for _ in range(draw.randrange(20)):
                row = draw.randrange(len(self.observations))
                self.check(handles[calls % 4].act(self.observations[row : row + 1]), np.array([row]))
                calls += 1
            for actor in ids:
                self.agent.remove_actor(actor)
            self.changes["added"] += 4
            self.changes["removed"] += 4
            now = len(self.agent.stats()["routers"])
            self.agent.scale_throughput(draw.randint(1, 4) - now)
            self.changes["scalings"] += 1
            if draw.random() < 0.05:  # noqa: PLR2004
                self.agent.pause_recording()
                time.sleep(0.01)
                self.agent.resume_recording()
                self.changes["pauses"] += 1
            time.sleep(0.02)
        return calls

    def watch(self, _: None, _seed: int) -> int:
        """Memory, once a second, and how far it is."""
        begin = time.monotonic()
        while self.running:
            time.sleep(1)
            self.memory.append((time.monotonic() - begin, _resident_mebibytes()))
            if sys.stderr.isatty():
                seconds, mebibytes = self.memory[-1]
                print(f"\r{seconds:4.0f} s of {self.seconds:.0f}, {mebibytes:.0f} MiB", end="", file=sys.stderr)
        return 0

    def start(self, name: str, work: Callable[[Any, int], int], argument: object, seed: int) -> threading.Thread:
        """A thread that counts its calls under `name`, and whose error ends the soak."""

        def run() -> None:
            try:
                self.calls[name] = self.calls.get(name, 0) + work(argument, seed)
            except BaseException as error:  # noqa: BLE001 : whatever it is, it is what we look for
                self.errors.append(f"{name}: {type(error).__name__}: {error}")

        thread = threading.Thread(target=run, name=name)
        thread.start()
        return thread

    def run(self) -> dict[str, Any]:
        """Everything at once; the report."""
        with self.agent:
            ids = self.agent.get_actor_ids()
            handles = [self.agent.actors([actor]) for actor in ids[: THREADS + TASKS]]
            threads = [self.start(f"thread {index}", self.thread, handles[index], index) for index in range(THREADS)]
            vectorised = self.agent.actors(ids[THREADS + TASKS :][:ROWS])
            singles = [self.agent.actors([actor]) for actor in ids[THREADS + TASKS + ROWS :]]
            owned, moving = singles[: OWNERS * OWNED], singles[OWNERS * OWNED :]
            failing = [self.agent.actors([actor]) for actor in self.agent.new_actors(FAILING, policy="failing")]
            threads += [self.start(f"owner {at}", self.owner, owned[at::OWNERS], 3_000 + at) for at in range(OWNERS)]
            threads += [self.start(f"mover {at}", self.mover, actor, 3_500 + at) for at, actor in enumerate(moving)]
            threads += [
                self.start(f"failing {at}", self.failing, actor, 4_000 + at) for at, actor in enumerate(failing)
            ]
            half = THREADS + TASKS // 2
            threads += [
                self.start("tasks 1", self.tasks, handles[THREADS:half], 1_000),
                self.start("tasks 2", self.tasks, handles[half:], 2_000),
                self.start("vectorised", self.vectorised, vectorised, 3),
                self.start("updates", self.updates, None, 4),
                self.start("life", self.life, None, 5),
                self.start("watch", self.watch, None, 6),
            ]
            late = []
            for thread in threads:
                thread.join(max(0.0, self.ends - time.monotonic()) + 30)
                late += [thread.name] if thread.is_alive() else []
            stats = self.agent.stats()
        routers = [*stats["routers"], stats["retired_routers"]]

        def calls_of(kind: str) -> int:
            return sum(calls for name, calls in self.calls.items() if name.split()[0] == kind)

        warm = [mebibytes for seconds, mebibytes in self.memory if seconds <= self.seconds / 5]
        growth = self.memory[-1][1] - warm[-1] if warm else 0.0
        report = {
            "seconds": self.seconds,
            "calls": {
                "threads": calls_of("thread"),
                "tasks": calls_of("tasks"),
                "threads with several actors": calls_of("owner"),
                "actors of two policies": calls_of("mover"),
                "actors of a policy that fails": calls_of("failing"),
                "vectorised rows": calls_of("vectorised"),
                "short-lived actors": calls_of("life"),
            },
            "changes": self.changes,
            "errors": self.errors,
            "hanging": late,
            "policy errors": stats["policies"]["default"]["errors"] + stats["policies"]["rival"]["errors"],
            "rows that failed": sum(router["failed"] for router in routers),
            "router restarts": sum(router["restarts"] for router in routers),
            "steps recorded": stats["steps_recorded"],
            "memory MiB": {
                "after a fifth": round(warm[-1], 1) if warm else None,
                "at the end": round(self.memory[-1][1], 1),
                "growth": round(growth, 1),
            },
        }
        report["passed"] = not (
            self.errors
            or late
            or report["policy errors"]
            or report["router restarts"]
            # Every row that the routers counted as failed was told to its caller, and to nobody else.
            or report["rows that failed"] != sum(self.failed)
            or min(self.changes.values()) == 0
            or growth > GROWTH_MEBIBYTES
            or min(report["calls"].values()) == 0  # type: ignore[attr-defined]
        )
        return report


def _write(path: Path, matrix: npt.NDArray[np.float32]) -> Path:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["obs", "weights"], ["logits"])],
        "soak",
        [helper.make_tensor_value_info("obs", TensorProto.FLOAT, ["batch", WIDTH])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CHOICES])],
        [numpy_helper.from_array(matrix, "weights")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    return path


def _write_failing(path: Path) -> Path:
    """Logits from a table of 4 rows, by the row's number: the pass fails where there is no such row."""
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["obs"], ["row"], to=TensorProto.INT64),
            helper.make_node("Gather", ["table", "row"], ["rows"], axis=0),
            helper.make_node("Squeeze", ["rows", "axes"], ["logits"]),
        ],
        "failing",
        [helper.make_tensor_value_info("obs", TensorProto.FLOAT, ["batch", 1])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 4])],
        [numpy_helper.from_array(np.eye(4, dtype=np.float32), "table"), numpy_helper.from_array(np.array([1]), "axes")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    return path


def _resident_mebibytes() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4_096 / 2**20


def main() -> int:
    """Runs the soak and prints its report."""
    parser = argparse.ArgumentParser(description="Everything at once, for five minutes.")
    parser.add_argument("--seconds", type=float, default=300, help="how long; 300 by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes the report into FILE as well")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="relevo-soak-") as folder:
        report = Soak(Path(folder), options.seconds).run()
    text = json.dumps(report, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text, encoding="utf-8")
    return 0 if report["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
