"""Folders that look like site-packages with the backend `backends/linear.c` in them, and programs that find it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

SOURCES = Path(__file__).with_name("backends")
LINEAR = "linear 2 3\n 1 2 3\n 4 5 6\n 0.5 0 -0.5\n"


def site(folder: Path, *defines: str, entry: str = "linear_backend:backend", module: str | None = None) -> Path:
    """A folder that looks like site-packages with one backend in it."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler here")
    folder.mkdir()
    include = SOURCES.parent.parent / "crates" / "relevo-abi" / "include"
    subprocess.run(
        [
            *(compiler, "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{include}"),
            *(*defines, SOURCES / "linear.c", "-o", folder / "liblinear.so"),
        ],
        check=True,
    )
    if module is None:
        shutil.copy(SOURCES / "linear_backend.py", folder)
    else:
        (folder / "linear_backend.py").write_text(dedent(module))
    metadata = folder / "relevo_linear-0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: relevo-linear\nVersion: 0.1\n")
    (metadata / "entry_points.txt").write_text(f"[relevo.model_backends]\nlinear = {entry}\n")
    return folder


def run(folder: Path, code: str, *arguments: str) -> str:
    """What a program prints that finds the backend in `folder`."""
    done = subprocess.run(
        [sys.executable, "-c", dedent(code), *arguments],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
