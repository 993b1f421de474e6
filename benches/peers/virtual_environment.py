"""Virtual environments of the peers: made when they are missing, and given our newest wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def python_of(name: str) -> Path:
    """The interpreter of the environment `.venv-<name>`, with what `<name>.txt` asks for and our wheel."""
    requirements, folder = HERE / f"{name}.txt", HERE / f".venv-{name}"
    python = folder / "bin" / "python"
    if _changed(folder / ".made", requirements):
        duration = "half a minute, or five with PyTorch"
        print(f"==> setting up {folder.relative_to(ROOT)} from {requirements.name} ({duration})", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        _pip(python, "install", "--requirement", str(requirements))
        _stamp(folder / ".made", requirements)
    wheel = _wheel()
    if _changed(folder / ".wheel", wheel):
        print(f"==> installing {wheel.name} into {folder.relative_to(ROOT)}", flush=True)
        _pip(python, "install", "--no-deps", "--force-reinstall", str(wheel))
        _stamp(folder / ".wheel", wheel)
    return python


def _wheel() -> Path:
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    wheels = sorted((target / "wheels").glob("relevo-*.whl"), key=lambda wheel: wheel.stat().st_mtime)
    if not wheels:
        sys.exit(f"there is no wheel in {target / 'wheels'}; build it by: make wheel")
    return wheels[-1]


def _changed(stamp: Path, source: Path) -> bool:
    return not stamp.exists() or stamp.read_text(encoding="utf-8") != _identity(source)


def _stamp(stamp: Path, source: Path) -> None:
    stamp.write_text(_identity(source), encoding="utf-8")


def _identity(source: Path) -> str:
    return f"{source.name} {source.stat().st_mtime_ns}"


def _pip(python: Path, *arguments: str) -> None:
    subprocess.run([python, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments], check=True)
