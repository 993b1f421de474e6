"""RelayRL (the Rust crate) and ours: one call for 1 and 64 actors, trajectories in memory on both sides."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime
import policies
from act import ACT, ACT_OBSERVE, CASES, WIDTH, build, relevo_calls
from report import Report, main
from rounds import Rounds
from sessions import one_thread_session

import relevo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rounds import Samples

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
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
    program = _build()
    obs = (np.arange(1, WIDTH + 1, dtype=np.float32) / WIDTH)[None]
    logits = one_thread_session(folder / policies.MLP).run(None, {"obs": obs})[0][0]
    for actors in ACTORS:
        calls, case = CASES[actors][0], f"{actors:,} actor{'s' if actors > 1 else ''}"
        with (
            _started(program, folder / policies.MLP, actors, calls) as peer,
            build(folder, actors, "categorical") as agent,
        ):
            output = np.array(_answer(peer))
            report.check(
                f"{case}: RelayRL's output is onnxruntime's logits to 1e-5",
                bool(np.allclose(output, logits, atol=1e-5)),
            )
            ours = relevo_calls(agent.actors(), np.repeat(obs, actors, axis=0), calls)
            rounds = Rounds([_relayrl_calls(peer), ours], 3 if quick else 10)
        report.figures += [rounds.figure(case, side, "µs") for side in (RELAYRL, ACT, ACT_OBSERVE)]
    return report


def _build() -> Path:
    """Builds the Rust program that drives RelayRL; gives its path."""
    if shutil.which("cargo") is None:
        sys.exit("RelayRL is a Rust crate: this workload needs cargo")
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "relayrl"
    program = target / "release" / "relevo-peer-relayrl"
    if not program.exists():
        print("==> building RelayRL (five minutes or so the first time)", file=sys.stderr, flush=True)
    subprocess.run(
        ["cargo", "build", "--release", "--quiet", "--locked", "--target-dir", target],
        cwd=HERE / "relayrl",
        check=True,
        stdout=sys.stderr,
    )
    return program


@contextlib.contextmanager
def _started(program: Path, model: Path, actors: int, calls: int) -> Iterator[subprocess.Popen[str]]:
    # The same ONNX Runtime on both sides.
    library = next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))
    process = subprocess.Popen(
        [program, model, str(actors), str(calls)],
        env=os.environ | {"ORT_DYLIB_PATH": str(library)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process
        # It ends when its input does.


def _answer(peer: subprocess.Popen[str]) -> list[float]:
    assert peer.stdout is not None  # noqa: S101 : it was asked for
    line = peer.stdout.readline()
    if not line:
        sys.exit("RelayRL's program ended without an answer; its message is above")
    return [float(value) for value in line.split()]


def _relayrl_calls(peer: subprocess.Popen[str]) -> Callable[[], Samples]:
    def turn() -> Samples:
        assert peer.stdin is not None  # noqa: S101 : it was asked for
        peer.stdin.write("\n")
        peer.stdin.flush()
        return {RELAYRL: np.array(_answer(peer)) / 1_000}

    return turn


if __name__ == "__main__":
    main(run)
