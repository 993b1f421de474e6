"""Five minutes of everything at once, every action held against what its version gives.

64 threads and 200 tasks with single calls, a vectorised caller, routers scaled between 1 and 4, models exchanged every
100 ms, actors added and removed, recording paused.

    .venv/bin/python benches/soak.py [--seconds 300] [--json FILE]

Exits with 1 after any error, where an action is not its version's, where a call is lost, and where memory grows.
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
            .actor_count(THREADS + TASKS + ROWS)
            .seed(7)
            .build()
        )
        self.ends = time.monotonic() + seconds
        self.seconds = seconds
        self.calls: dict[str, int] = {}
        self.errors: list[str] = []
        self.memory: list[tuple[float, float]] = []
        self.changes = dict.fromkeys(("updates", "scalings", "added", "removed", "pauses"), 0)

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
            half = THREADS + TASKS // 2
            threads += [
                self.start("tasks 1", self.tasks, handles[THREADS:half], 1_000),
                self.start("tasks 2", self.tasks, handles[half:], 2_000),
                self.start("vectorised", self.vectorised, self.agent.actors(ids[THREADS + TASKS :]), 3),
                self.start("updates", self.updates, None, 4),
                self.start("life", self.life, None, 5),
                self.start("watch", self.watch, None, 6),
            ]
            late = []
            for thread in threads:
                thread.join(max(0.0, self.ends - time.monotonic()) + 30)
                late += [thread.name] if thread.is_alive() else []
            stats = self.agent.stats()
        single = sum(calls for name, calls in self.calls.items() if name.startswith("thread"))
        warm = [mebibytes for seconds, mebibytes in self.memory if seconds <= self.seconds / 5]
        growth = self.memory[-1][1] - warm[-1] if warm else 0.0
        report = {
            "seconds": self.seconds,
            "calls": {
                "threads": single,
                "tasks": self.calls.get("tasks 1", 0) + self.calls.get("tasks 2", 0),
                "vectorised rows": self.calls.get("vectorised", 0),
                "short-lived actors": self.calls.get("life", 0),
            },
            "changes": self.changes,
            "errors": self.errors,
            "hanging": late,
            "policy errors": stats["policies"]["default"]["errors"],
            "router restarts": sum(router["restarts"] for router in stats["routers"]),
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
