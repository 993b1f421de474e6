"""100,000 actors with an observation of 8 numbers and no recording: what they weigh, and how long adding them takes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime
import policies
from report import Figure, Report, main
from rounds import goal

import relevo

ACTORS = 100_000
WIDTH = 8
MEGABYTES = 100
SECONDS = 0.5


def run(folder: Path, quick: bool) -> Report:
    """Measures in fresh processes."""
    report = Report(f"{ACTORS:,} actors, observations of {WIDTH} numbers, no recording")
    report.versions = {"onnxruntime": onnxruntime.__version__, "relevo": relevo.__version__}
    command = [sys.executable, __file__, "--child", str(folder / policies.MLP)]
    rounds = [
        json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for _ in range(3 if quick else 7)
    ]
    measured = {name: np.array([each[name] for each in rounds]) for name in rounds[0]}
    case = f"{ACTORS:,} actors"
    for name, side, unit in (
        ("added", "relevo, new_actors", "s"),
        ("grown_by_adding", "relevo, memory of the actors alone", "MB"),
        ("grown", "relevo, memory after one act for all", "MB"),
        ("peak", "relevo, at most until then", "MB"),
        ("first_act", "relevo, first act for all", "ms"),
    ):
        values = measured[name]
        report.figures.append(
            Figure(case, side, unit, float(np.median(values)), float(values.min()), float(values.max()))
        )
    report.goals += [
        goal(case, "memory above the library's start, after one act", measured["grown"], MEGABYTES, at_most=True),
        goal(case, "the same at its peak", measured["peak"], MEGABYTES, at_most=True),
        goal(case, "time to add them", measured["added"], SECONDS, at_most=True),
    ]
    report.check(f"{ACTORS:,} actions came, each what numpy.argmax says", bool(measured["right"].all()))
    return report


def child(model: Path) -> dict[str, float]:
    """One measurement. The library's start is over when it is imported and the model has run."""
    loaded = relevo.ModelModule.load_from_path(model)
    agent = relevo.AgentBuilder().default_model(loaded, head="argmax").actor_count(0).keep_in_memory(0).build()
    obs = np.random.default_rng(1).standard_normal((ACTORS, WIDTH)).astype(np.float32)
    with agent:
        start, _ = _memory()
        begin = time.perf_counter()
        agent.new_actors(ACTORS)
        added = time.perf_counter() - begin
        grown_by_adding, _ = _memory()
        actors = agent.actors()
        begin = time.perf_counter()
        batch = actors.act(obs)
        first_act = time.perf_counter() - begin
        grown, peak = _memory()
        rows = slice(0, ACTORS, 97)
        expected = loaded.forward({"obs": obs[rows]})["logits"].argmax(axis=1)
        right = len(batch) == ACTORS and np.array_equal(batch.action[rows], expected)
    return {
        "added": added,
        "grown_by_adding": grown_by_adding - start,
        "grown": grown - start,
        "peak": peak - start,
        "first_act": first_act * 1_000,
        "right": float(right),
    }


def _memory() -> tuple[float, float]:
    """Resident now and at most so far, in MB."""
    status = Path("/proc/self/status").read_text(encoding="ascii")

    def megabytes(name: str) -> float:
        found = re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE)
        if found is None:
            sys.exit(f"/proc/self/status has no {name}: memory can be measured on Linux alone")
        return int(found[1]) * 1_024 / 1e6

    return megabytes("VmRSS"), megabytes("VmHWM")


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        json.dump(child(Path(sys.argv[2])), sys.stdout)
    else:
        main(run)
