"""RelayRL (the Rust crate) and ours: one call for 1 and 64 actors, trajectories in memory on both sides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnxruntime
import policies
import programs
from act import ACT, ACT_OBSERVE, CASES, WIDTH, build, relevo_calls
from report import Report, main
from rounds import Rounds
from sessions import one_thread_session

import relevo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rounds import Samples

RELAYRL = "RelayRL, request_actions"
ACTORS = (1, 64)


def run(folder: Path, quick: bool) -> Report:
    """Measures all cases. RelayRL gets one observation for all of its actors: its call takes no more."""
    report = Report("RelayRL: MLP 8 → 64 → 64 → 4")
    report.versions = {
        "relayrl_framework": "0.5.0-rc.1",
        "onnxruntime": onnxruntime.__version__,
        "relevo": relevo.__version__,
    }
    program = programs.relayrl()
    obs = (np.arange(1, WIDTH + 1, dtype=np.float32) / WIDTH)[None]
    logits = one_thread_session(folder / policies.MLP).run(None, {"obs": obs})[0][0]
    for actors in ACTORS:
        calls, case = CASES[actors][0], f"{actors:,} actor{'s' if actors > 1 else ''}"
        with (
            programs.started(program, "actors", folder / policies.MLP, actors, calls) as peer,
            build(folder, actors, "categorical") as agent,
        ):
            report.check(
                f"{case}: RelayRL's output is onnxruntime's logits to 1e-5",
                bool(np.allclose(peer.answer(), logits, atol=1e-5)),
            )
            ours = relevo_calls(agent.actors(), np.repeat(obs, actors, axis=0), calls)
            rounds = Rounds([_relayrl_calls(peer), ours], 3 if quick else 10)
        report.figures += [rounds.figure(case, side, "µs") for side in (RELAYRL, ACT, ACT_OBSERVE)]
    return report


def _relayrl_calls(peer: programs.Program) -> Callable[[], Samples]:
    return lambda: {RELAYRL: peer.turn() / 1_000}


if __name__ == "__main__":
    main(run)
