"""What `ProcessVectorEnv` leaves behind, however it ends: no process, and no shared memory."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import worlds

from relevo.envs import ProcessVectorEnv

if TYPE_CHECKING:
    pass

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 : looked into, never written to


SCRIPT = """
import os, sys, time, signal
import numpy as np
import worlds
from relevo.envs import ProcessVectorEnv

def main():
    envs = ProcessVectorEnv(worlds.Faulty, 4, 2)
    envs.reset(seed=0)
    envs.step(np.zeros(4, np.int64))
    print(*[each._process.pid for each in envs._workers], flush=True)
    {then}

if __name__ == "__main__":
    main()
"""


def run_script(folder: Path, then: str) -> tuple[subprocess.Popen[str], list[int]]:
    """Starts a program with environments, and gives their workers' process ids."""
    script = folder / "script.py"
    script.write_text(SCRIPT.format(then=then))
    program = subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # As a terminal starts it; a signal to the group must not reach these tests.
        process_group=0,
        env=worlds.environment(),
    )
    assert program.stdout is not None
    line = b""
    # Byte by byte: `communicate` does not see what a buffer has taken of the lines after.
    while not line.endswith(b"\n") and (byte := os.read(program.stdout.fileno(), 1)):
        line += byte
    return program, [int(word) for word in line.split()]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    # A container's first process may leave the dead lying about.
    return state != "Z"


def shared_memory() -> set[str]:
    """Names of the kinds that Python gives to shared memory and semaphores."""
    return {file.name for file in SHARED_MEMORY.iterdir() if file.name.startswith(("psm_", "pym-", "sem.mp"))}


def await_gone(pids: list[int], before: set[str]) -> None:
    deadline = time.monotonic() + 20
    while any(map(is_running, pids)) or shared_memory() - before:
        assert time.monotonic() < deadline, (list(filter(is_running, pids)), shared_memory() - before)
        time.sleep(0.02)


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc and /dev/shm")


@linux_only
@pytest.mark.parametrize("way", ["close", "collected", "killed worker"])
def test_nothing_is_left_in_this_process(way: str) -> None:
    before = shared_memory()
    envs = ProcessVectorEnv(worlds.Faulty, 4, 2)
    envs.reset(seed=0)
    if way == "killed worker":
        envs.step(np.array([worlds.FAULTS.index("SIGKILL"), 0, 0, 0]))
    pids = [each._process.pid or 0 for each in envs._workers]
    assert all(map(is_running, pids))
    # Not even while it lives: what has no name cannot be left.
    assert shared_memory() <= before
    if way == "collected":
        del envs
        gc.collect()
    else:
        envs.close()
        envs.close()
    await_gone(pids, before)
    assert multiprocessing.active_children() == []


@linux_only
@pytest.mark.parametrize(
    ("then", "code"),
    [
        ("sys.exit(4)", 4),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        # The terminal sends it to all processes.
        ("os.kill(0, signal.SIGINT) or time.sleep(60)", -signal.SIGINT),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os._exit(5)", 5),
    ],
    ids=["exit", "KeyboardInterrupt", "Ctrl-C", "SIGKILL", "_exit"],
)
def test_nothing_is_left_of_a_program(then: str, code: int, tmp_path: Path) -> None:
    before = shared_memory()
    program, pids = run_script(tmp_path, then)
    _, errors = program.communicate(timeout=60)
    assert program.returncode == code, errors
    assert len(pids) == 2
    assert errors.count("Traceback") <= 1, errors
    await_gone(pids, before)


@linux_only
def test_a_hanging_worker_ends_with_its_parent_even_if_a_fork_holds_the_pipe(tmp_path: Path) -> None:
    before = shared_memory()
    then = (
        "envs.step_async(np.full(4, worlds.FAULTS.index('hang'))); forked = os.fork(); forked or time.sleep(60); "
        "print(forked, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    program, pids = run_script(tmp_path, then)
    assert program.stdout is not None
    forked = int(program.stdout.readline())
    try:
        assert program.wait(60) == -signal.SIGKILL
        await_gone(pids, before)
        assert is_running(forked)
    finally:
        for pid in filter(is_running, [forked, *pids]):
            os.kill(pid, signal.SIGKILL)
        program.communicate(timeout=60)


@linux_only
def test_a_fork_cannot_use_the_environments_and_does_not_end_them(tmp_path: Path) -> None:
    then = """
    if os.fork() == 0:
        try:
            envs.step(np.zeros(4, np.int64))
        except relevo.EnvironmentWorkerError as error:
            print("refused:", error, flush=True)
        envs.close()
        os._exit(0)
    os.wait()
    print("steps on:", envs.step(np.zeros(4, np.int64))[1].tolist(), envs.restarts)
    """
    program, pids = run_script(tmp_path, "import relevo" + then)
    output, errors = program.communicate(timeout=60)
    assert program.returncode == 0, errors
    assert "refused: the environments belong to the process" in output
    assert "steps on: [1.0, 1.0, 1.0, 1.0] 0" in output
    await_gone(pids, set())
