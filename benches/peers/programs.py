"""Programs in Rust that measure themselves: each is told when to begin a turn, and answers with a line of numbers."""

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

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


def relayrl() -> Path:
    """Builds the program that drives RelayRL; gives its path."""
    target = TARGET / "relayrl"
    program = target / "release" / "relevo-peer-relayrl"
    if not program.exists():
        print("==> building RelayRL (five minutes or so the first time)", file=sys.stderr, flush=True)
    _build("--locked", "--target-dir", target, folder=HERE / "relayrl")
    return program


def relevo(name: str) -> Path:
    """Builds our own, `benches/src/bin/<name>.rs`; gives its path."""
    # The whole workspace is named: on a part of it, dependencies would get fewer features and be compiled anew.
    _build("--workspace", "--bin", name, "--target-dir", TARGET, folder=ROOT)
    return TARGET / "release" / name


def _build(*options: str | Path, folder: Path) -> None:
    if shutil.which("cargo") is None:
        sys.exit("this workload is a program in Rust, so it needs cargo")
    subprocess.run(["cargo", "build", "--release", "--quiet", *options], cwd=folder, check=True, stdout=sys.stderr)


class Program:
    """One that runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def turn(self) -> npt.NDArray[np.float64]:
        """Has it take a turn; gives what it prints of it."""
        assert self._process.stdin is not None  # noqa: S101 : it was asked for
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> npt.NDArray[np.float64]:
        """The next line that it prints."""
        assert self._process.stdout is not None  # noqa: S101 : it was asked for
        line = self._process.stdout.readline()
        if not line:
            sys.exit("the program ended without an answer; its message is above")
        return np.array(line.split(), dtype=np.float64)


@contextlib.contextmanager
def started(program: Path, *arguments: str | Path | int) -> Iterator[Program]:
    """Starts a program, with the ONNX Runtime that all sides use."""
    library = next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))
    process = subprocess.Popen(
        [program, *map(str, arguments)],
        env=os.environ | {"ORT_DYLIB_PATH": str(library)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield Program(process)
        # It ends when its input does.
