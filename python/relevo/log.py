"""The engine's events, as records of Python's `logging`.

The loggers are `relevo.runtime`, `relevo.policy`, `relevo.trajectory` and `relevo.onnx`. Each record has the event's
fields as a dict, `record.relevo`.

What a call logs is logged when the call returns, by the thread that made it. What the engine's own threads log comes
through a queue, which a thread of Python's empties: handlers are Python code, and none may hold the engine up.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading

from relevo._core import close_events, next_event

LONGEST_WAIT = 5.0
"""Seconds that the interpreter's end waits for handlers to take what is in the queue."""

_silent = logging.NullHandler()
logging.getLogger("relevo").addHandler(_silent)


def deliver(  # noqa: PLR0917  (called from Rust, by position)
    name: str,
    level: int,
    message: str,
    fields: dict[str, bool | int | float | str],
    file: str | None,
    line: int,
    thread: str | None,
) -> None:
    """Logs one event. A handler's fault is reported as `logging` does, and is no fault of the engine's caller.

    Args:
        name: the logger's name.
        level: as `logging` numbers them.
        message: the text, complete.
        fields: what `record.relevo` holds.
        file: the Rust file that it comes from.
        line: the line in it.
        thread: name of the thread that it comes from; None for this one.
    """
    logger = logging.getLogger(name)
    if not logger.isEnabledFor(level):
        return
    record = logger.makeRecord(name, level, file or "", line, message, (), None, extra={"relevo": fields})
    if thread is not None:
        # Python has no number for it.
        record.threadName, record.thread = thread, None
    try:
        logger.handle(record)
    except Exception:  # noqa: BLE001  (whatever a handler or a filter raises)
        _silent.handleError(record)


class _Queue:
    """The thread that delivers what the engine's own threads log."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._deliver_all, name="relevo-log", daemon=True)
                # None starts while the interpreter ends; an agent that is built as late as that need not log.
                with contextlib.suppress(RuntimeError):
                    thread.start()
                    self._thread = thread

    def finish(self) -> None:
        close_events()
        if self._thread is not None:
            # Not for ever: a handler that hangs must not keep the program from ending.
            self._thread.join(LONGEST_WAIT)

    @staticmethod
    def _deliver_all() -> None:
        while (event := next_event()) is not None:
            deliver(*event)


_queue = _Queue()


def start() -> None:
    """Sees to it that what the engine's threads log is delivered from now on."""
    _queue.start()


def finish() -> None:
    """Delivers what is in the queue, and ends it; for the interpreter's end."""
    _queue.finish()


def _forget() -> None:
    """In a child that was forked off: the thread stayed in the parent."""
    global _queue  # noqa: PLW0603
    _queue = _Queue()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
