"""What the benchmarks ran on."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

BUSY = 0.5
"""Load for each core above which figures are doubtful."""


def describe() -> dict[str, str]:
    """The machine in words, by what is described."""
    return {
        "processor": _processor(),
        "cores": str(_cores()),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": _system(),
        "Python": platform.python_version(),
        "rustc": _output("rustc", "--version"),
        "load at the start": ", ".join(f"{load:.2f}" for load in os.getloadavg()) + " (1, 5, 15 min)",
    }


def warning() -> str | None:
    """Says so where others use the machine as well."""
    load = os.getloadavg()[0] / _cores()
    if load <= BUSY:
        return None
    return f"the load is {load:.2f} for each core: others use this machine, so times are longer than they need be"


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or "not known"


def _system() -> str:
    try:
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, Linux {platform.release()}"
    except OSError:
        return platform.platform()


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "not installed"
