"""A worker as the process that started it sees it: started, asked, waited for with a time-out, killed."""

from __future__ import annotations

import contextlib
import enum
import multiprocessing
import os
import pickle
import select
import signal
import socket
import struct
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, cast

from relevo.envs import worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from relevo.envs.shared_arrays import Memory

CONTEXT = multiprocessing.get_context("spawn")
"""Processes that begin empty: a fork copies locks in whatever state they are, and not the threads that hold them."""

CLOSE_SECONDS = 5.0
"""How long workers may take to close their environments."""


class _Waited(enum.Enum):
    """What came of waiting."""

    MESSAGE = enum.auto()
    """The pipe has a message, or is broken."""
    ENDED = enum.auto()
    """The process has ended; the pipe does not show it."""
    TOO_LONG = enum.auto()


class WorkerFailureError(Exception):
    """A worker is of no use any more. Its message completes the sentence `worker 3 (environments 8 to 15) …`."""

    def __init__(self, what: str, traceback: str | None = None, raised: worker.Raised | None = None) -> None:
        super().__init__(what)
        self.traceback = traceback
        """The environment's, where it raised an exception."""
        self.raised = raised
        """The exception, where it came in a reset, after which the worker still answers."""


@dataclass(frozen=True)
class Timeouts:
    """In seconds."""

    start: float
    """How long a worker may take to import what it needs, and again to make its environments."""
    step: float | None
    """How long it may take for anything else; None is for ever."""


class WorkerProcess:
    """One worker. What it is asked it answers once, and is asked nothing else before."""

    def __init__(self, assignment: worker.Assignment, memory: Memory, timeouts: Timeouts) -> None:
        """Starts the process; as `start`."""
        self.assignment = assignment
        self._memory = memory
        self._timeouts = timeouts
        self.start()

    def start(self) -> None:
        """Starts the process, anew if there was one; to be followed by `assign`."""
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(
            target=worker.main,
            args=(theirs, self._memory),
            name=f"relevo environment worker {self.assignment.worker}",
            # An interpreter that ends without `close` ends its workers, rather than wait for them.
            daemon=True,
        )
        process.start()
        # Only the worker holds its end, so that the pipe breaks with it.
        theirs.close()
        self._connection, self._process = ours, process
        self._wait = _waiter(ours, process.sentinel)
        self._stalled = False
        _bound_transfers(ours, self._timeouts.start)
        self.asked = True
        """Whether an answer is due."""

    def assign(self) -> None:
        """Tells it what it is to do, once it is there; `await_start` is to follow.

        Raises:
            WorkerFailureError: it ended before.
        """
        self.receive(self._timeouts.start, deadline_in(self._timeouts.start))
        self.send(pickle.dumps(self.assignment, pickle.HIGHEST_PROTOCOL))

    def await_start(self) -> None:
        """Returns when its environments are made.

        Raises:
            WorkerFailureError: they could not be made.
        """
        self.understand(self.receive(self._timeouts.start, deadline_in(self._timeouts.start)))
        _bound_transfers(self._connection, self._timeouts.step)

    @property
    def name(self) -> str:
        """What an error calls it."""
        rows = self.assignment.rows
        environments = f"environment {rows[0]}" if len(rows) == 1 else f"environments {rows[0]} to {rows[-1]}"
        return f"worker {self.assignment.worker} ({environments})"

    def send(self, message: bytes) -> None:
        """Asks it; one that is gone is noticed by `receive`."""
        self.asked = True
        try:
            self._connection.send_bytes(message)
        except BlockingIOError:
            self.kill()
            self._stalled = True
        except OSError:
            pass
        except BaseException:
            # Half a message: the pipe cannot be used again.
            self._process.kill()
            raise

    def receive(self, seconds: float | None, deadline: float | None) -> bytes:
        """Its answer.

        Args:
            seconds: the time-out, for the error's text; None waits for ever.
            deadline: when it is over, by `time.monotonic`.

        Raises:
            WorkerFailureError: it ended, told of an exception, or did not answer in time; it is no more.
        """
        if self._stalled:
            raise WorkerFailureError(f"took in nothing of what it was sent for {seconds:g} s, and was killed")
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        waited = self._wait(left)
        if waited is _Waited.TOO_LONG:
            self.kill()
            raise WorkerFailureError(f"gave no answer within {seconds:g} s, and was killed")
        if waited is _Waited.ENDED:
            # Without its pipe: a process that the environment has forked holds that.
            raise WorkerFailureError(self._how_it_ended())
        try:
            message = self._connection.recv_bytes()
        except BlockingIOError:
            self.kill()
            raise WorkerFailureError(f"went on with nothing of its answer for {seconds:g} s, and was killed") from None
        except (EOFError, OSError):
            raise WorkerFailureError(self._how_it_ended()) from None
        except BaseException:
            # As above.
            self._process.kill()
            raise
        self.asked = False
        return message

    def ask(self, message: bytes, seconds: float | None) -> bytes:
        """Sends a message and gives the answer."""
        self.send(message)
        return self.receive(seconds, deadline_in(seconds))

    def reports(self, reply: bytes) -> list[worker.Report]:
        """What the answer to a reset says.

        Raises:
            WorkerFailureError: it tells of an exception.
        """
        kind, content = self.understand(reply)
        if kind == worker.RAISED:
            raise WorkerFailureError(f"raised an exception while {content.doing}", content.traceback, content)
        return cast("list[worker.Report]", content)

    def understand(self, reply: bytes) -> tuple[str, Any]:
        """The kind of an answer, and what it says.

        Raises:
            WorkerFailureError: it tells of an exception that was the worker's last.
        """
        if reply == worker.DONE:
            return worker.REPORTS, []
        # Made by the user's own environments, in a process that was started here.
        kind, content = pickle.loads(reply)  # noqa: S301
        if kind == worker.FAILED:
            doing, traceback = content
            # It closes its environments.
            self._process.join(1.0)
            self.kill()
            raise WorkerFailureError(f"raised an exception while {doing}", traceback)
        return kind, content

    def hang_up(self) -> None:
        """Closes the pipe, upon which the worker closes its environments and ends."""
        self._connection.close()

    def kill(self, deadline: float = 0.0) -> None:
        """Waits for it to end until `deadline`, by `time.monotonic`; then kills it."""
        self._process.join(max(0.0, deadline - time.monotonic()))
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join(CLOSE_SECONDS)
        self._connection.close()

    def _how_it_ended(self) -> str:
        self.kill(time.monotonic() + CLOSE_SECONDS)
        code = self._process.exitcode
        if code is None:
            return "closed its pipe and cannot be killed"
        if code >= 0:
            return f"ended with exit code {code}"
        with contextlib.suppress(ValueError):
            return f"was killed by the signal {signal.Signals(-code).name}"
        return f"was killed by the signal {-code}"


def deadline_in(seconds: float | None) -> float | None:
    """The time, by `time.monotonic`, that is so many seconds from now."""
    return None if seconds is None else time.monotonic() + seconds


def _bound_transfers(connection: Connection, seconds: float | None) -> None:
    """Has what is sent and received fail with a `BlockingIOError` where for so long no byte of it moves.

    A worker that is stopped takes in no message that is larger than what the pipe holds, and may stop within an answer.
    On Windows, whose pipes know no such time-out, it is waited for.
    """
    if sys.platform == "win32":
        return
    # None is 0, which the system takes for no limit.
    microseconds = 0 if seconds is None else max(1, round(seconds * 1_000_000))
    limit = struct.pack("@ll", *divmod(microseconds, 1_000_000))
    with socket.socket(fileno=os.dup(connection.fileno())) as pipe:
        pipe.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        pipe.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def _waiter(connection: Connection, sentinel: int) -> Callable[[float | None], _Waited]:
    """A function that waits, at most so many seconds, for an answer or the end of the process."""
    if not hasattr(select, "poll"):

        def wait_anew(seconds: float | None) -> _Waited:
            ready = wait([connection, sentinel], seconds)
            if not ready:
                return _Waited.TOO_LONG
            return _Waited.MESSAGE if connection in ready else _Waited.ENDED

        return wait_anew
    # What `wait` does, with its selector made once: 7 µs less for each worker and step.
    poll, pipe = select.poll(), connection.fileno()
    poll.register(pipe, select.POLLIN)
    poll.register(sentinel, select.POLLIN)

    def wait_again(seconds: float | None) -> _Waited:
        ready = poll.poll(None if seconds is None else seconds * 1_000)
        if not ready:
            return _Waited.TOO_LONG
        return _Waited.MESSAGE if any(handle == pipe for handle, _ in ready) else _Waited.ENDED

    return wait_again
