"""What a machine is, and what is installed on it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from relevo._core import __version__, processors

PACKAGES = ("numpy", "onnxruntime", "onnxruntime-gpu", "gymnasium", "torch")
"""What is looked for, by its metadata alone: importing torch takes seconds."""

CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Machine:
    """What a machine is; the fields are those of `--json`."""

    os: str
    architecture: str
    processors: int
    """Those that the engine may use: affinity and a container's quota are counted."""
    processors_there: int | None
    memory: int | None
    """Bytes that this process may use at most: the machine's memory, or the container's limit."""
    onnxruntime_variable: str | None
    """`ORT_DYLIB_PATH`, which goes before an installed ONNX Runtime."""


def machine() -> Machine:
    """This machine."""
    return Machine(
        os=platform.platform(terse=True),
        architecture=platform.machine(),
        processors=processors(),
        processors_there=os.cpu_count(),
        memory=_memory(),
        onnxruntime_variable=os.environ.get("ORT_DYLIB_PATH") or None,
    )


def versions() -> dict[str, str | None]:
    """Versions by name; None for what is not installed."""
    found: dict[str, str | None] = {"relevo": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def _memory() -> int | None:
    try:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None  # Windows does not have it
    return min([there, *_cgroup_limits()])


def _cgroup_limits() -> list[int]:
    """Limits of this process's control groups, and of those around them, in bytes."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    limits = []
    for line in lines:
        # hierarchy:controllers:path, where version 2 has neither number nor controllers.
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, name = CGROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = CGROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = root / path.lstrip("/")
        # In a container the path may be that of the machine outside, where only the root is there.
        for folder in (group, *group.parents):
            if folder.is_relative_to(root):
                limits += _number_in(folder / name)
    return limits


def _number_in(file: Path) -> list[int]:
    try:
        return [int(file.read_text(encoding="utf-8"))]
    except (OSError, ValueError):
        return []  # not there, or "max"
