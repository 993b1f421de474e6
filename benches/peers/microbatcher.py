"""Batching single calls in plain Python, as one writes it around `onnxruntime`."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnxruntime

    Request = tuple[np.ndarray, threading.Lock, list[int]]

LONGEST_WAIT = 0.001


class MicroBatcher:
    """A thread that takes what waits, runs it as one batch, and wakes each caller with its own action.

    Of the ways tried it is the fastest: one `SimpleQueue` for the requests, and for each caller a bare lock that it
    sleeps on. An event for each request came to 0.65 of its calls a second and an event for each batch to 0.8; a
    `SimpleQueue` for each caller's answers, or a caller who runs the batch instead of a thread, to no more than it.
    """

    def __init__(self, session: onnxruntime.InferenceSession, max_batch: int, *, gathers: bool) -> None:
        """With `gathers` it waits for `max_batch` requests, for a millisecond at most; else it takes what is there."""
        self._session, self._max_batch = session, max_batch
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve_gathered if gathers else self._serve_waiting)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._requests.put(None)
        self._thread.join()

    def caller(self) -> Callable[[np.ndarray], int]:
        """A function that asks for one action; for one thread at a time."""
        answered, answer = threading.Lock(), []
        answered.acquire()
        put, wait, take = self._requests.put, answered.acquire, answer.pop

        def call(obs: np.ndarray) -> int:
            put((obs, answered, answer))
            wait()
            return take()

        return call

    def _serve_waiting(self) -> None:
        get = self._requests.get_nowait
        while (first := self._requests.get()) is not None:
            batch = [first]
            with contextlib.suppress(queue.Empty):
                while len(batch) < self._max_batch and (request := get()) is not None:
                    batch.append(request)
            self._run(batch)

    def _serve_gathered(self) -> None:
        get, clock = self._requests.get, time.perf_counter
        while (first := self._requests.get()) is not None:
            batch, end = [first], clock() + LONGEST_WAIT
            with contextlib.suppress(queue.Empty):
                while len(batch) < self._max_batch and (request := get(timeout=max(0, end - clock()))) is not None:
                    batch.append(request)
            self._run(batch)

    def _run(self, batch: list[Request]) -> None:
        observations = np.concatenate([obs for obs, _, _ in batch])
        actions = self._session.run(None, {"obs": observations})[0].argmax(axis=1).tolist()
        for (_, answered, answer), action in zip(batch, actions, strict=True):
            answer.append(action)
            answered.release()
