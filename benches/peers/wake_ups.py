"""Ways to wake two processes, let them work, and wait for both: what `ProcessVectorEnv` could stand on."""

from __future__ import annotations

import ctypes
import functools
import multiprocessing
import os
import platform
import select
import time
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

import numpy as np
from report import Report, main
from rounds import Rounds

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.synchronize import Semaphore
    from pathlib import Path

    from rounds import Samples

WORKERS = 2
WORK = 8_000
"""Numbers that are summed when woken: about 0.1 ms. Without work, the wake-up alone shows."""
CONTEXT = multiprocessing.get_context("spawn")


def run(_policies: Path, quick: bool) -> Report:
    """Measures each way with work and without."""
    report = Report(f"Waking {WORKERS} processes and waiting for them")
    report.versions = {"Python": platform.python_version()}
    calls = 300 if quick else 1_000
    for case, work in (("no work", 0), ("0.1 ms of work in each", WORK)):
        ways: dict[str, Callable[[], None]] = {
            "pipe, one poll object for each": _pipes(work, _polled),
            "pipe, multiprocessing's wait": _pipes(work, _waited),
            "two semaphores for each": _semaphores(work),
            "spinning with sched_yield": _spinning(work),
        }
        rounds = Rounds([_turn(name, once, calls) for name, once in ways.items()], 3 if quick else 15)
        report.figures += [rounds.figure(case, name, "µs") for name in ways]
        for process in multiprocessing.active_children():
            process.kill()
            process.join()
    return report


def _turn(name: str, once: Callable[[], None], calls: int) -> Callable[[], Samples]:
    def turn() -> Samples:
        times = np.empty(calls)
        for call in range(calls):
            begin = time.perf_counter()
            once()
            times[call] = time.perf_counter() - begin
        return {name: times * 1e6}

    return turn


def _start(target: Callable[..., None], *arguments: Any) -> int:  # noqa: ANN401 : whatever the target takes
    process = CONTEXT.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process.sentinel


def _pipes(work: int, waiter: Callable[[Connection, int], Callable[[], object]]) -> Callable[[], None]:
    ends: list[tuple[Connection, Callable[[], object]]] = []
    for _ in range(WORKERS):
        ours, theirs = CONTEXT.Pipe()
        ends.append((ours, waiter(ours, _start(_serve_pipe, theirs, work))))
        theirs.close()

    def once() -> None:
        for connection, _ in ends:
            connection.send_bytes(b"s")
        for connection, ready in ends:
            ready()
            connection.recv_bytes()

    return once


def _polled(connection: Connection, sentinel: int) -> Callable[[], object]:
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    poll.register(sentinel, select.POLLIN)
    return functools.partial(poll.poll, 60_000)


def _waited(connection: Connection, sentinel: int) -> Callable[[], object]:
    return functools.partial(wait, [connection, sentinel], 60)


def _serve_pipe(connection: Connection, work: int) -> None:
    while True:
        connection.recv_bytes()
        sum(range(work))
        connection.send_bytes(b"d")


def _semaphores(work: int) -> Callable[[], None]:
    pairs = [(CONTEXT.Semaphore(0), CONTEXT.Semaphore(0)) for _ in range(WORKERS)]
    for pair in pairs:
        _start(_serve_semaphores, *pair, work)

    def once() -> None:
        for begin, _ in pairs:
            begin.release()
        for _, done in pairs:
            done.acquire(timeout=60)

    return once


def _serve_semaphores(begin: Semaphore, done: Semaphore, work: int) -> None:
    while True:
        begin.acquire()
        sum(range(work))
        done.release()


def _spinning(work: int) -> Callable[[], None]:
    flags = [CONTEXT.RawArray(ctypes.c_ubyte, 128) for _ in range(WORKERS)]
    for flag in flags:
        _start(_serve_spinning, flag, work)

    def once() -> None:
        for flag in flags:
            flag[0] = 1
        for flag in flags:
            while not flag[64]:
                os.sched_yield()
            flag[64] = 0

    return once


def _serve_spinning(flag: Any, work: int) -> None:  # noqa: ANN401 : a ctypes array
    while True:
        while not flag[0]:
            os.sched_yield()
        flag[0] = 0
        sum(range(work))
        flag[64] = 1


if __name__ == "__main__":
    main(run)
