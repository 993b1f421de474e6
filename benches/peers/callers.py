"""Many callers with one actor each: every one asks for an action, waits for it, and asks again."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import onnxruntime
    from report import Report
    from rounds import Rounds, Samples

    Call = Callable[[np.ndarray], int]
    """One request: the observation `[1, width]` of one actor, and the action it gets."""

LATENCY = ", a call"
"""What follows a side's name where its calls were timed one by one, rather than counted."""
EPISODE_STEPS = 200
DIFFERENT = 16
"""Observations of a caller, which it goes through again and again; no two callers have one in common."""
CLEAR = 1e-3
"""How far the best logit is above the next: forward passes of other sizes add up in another order."""


@dataclass
class Callers:
    """The observations of all callers, what the policy says of each, and how their answers compared with that."""

    rows: np.ndarray
    """`[callers, DIFFERENT, 1, width]`, float32"""
    expected: np.ndarray
    """`[callers, DIFFERENT]`: NumPy's argmax of onnxruntime's logits."""
    compared: dict[str, int] = field(default_factory=dict)
    """Answers that were compared, by side."""
    wrong: dict[str, int] = field(default_factory=dict)

    @classmethod
    def draw(cls, session: onnxruntime.InferenceSession, count: int) -> Callers:
        """Draws observations for `count` callers of a policy."""
        width = session.get_inputs()[0].shape[1]
        # Some are left out, where two actions are nearly as good.
        drawn = np.random.default_rng(count).standard_normal((2 * count * DIFFERENT, width)).astype(np.float32)
        logits = session.run(None, {"obs": drawn})[0]
        second, best = np.sort(logits, axis=1)[:, -2:].T
        clear = np.flatnonzero(best - second > CLEAR)[: count * DIFFERENT]
        shape = (count, DIFFERENT)
        return cls(drawn[clear].reshape(*shape, 1, width), logits[clear].argmax(axis=1).reshape(shape))

    def compare(self, side: str, answers: Iterable[list[int]]) -> None:
        """Compares the answers that each caller got with what its own observations ask for."""
        for given, expected in zip(answers, self.expected, strict=True):
            actions = np.array(given, dtype=np.int64)
            self.compared[side] = self.compared.get(side, 0) + len(actions)
            self.wrong[side] = self.wrong.get(side, 0) + int((actions != np.resize(expected, len(actions))).sum())

    def check(self, report: Report, case: str) -> None:
        """Notes that every answer of every side was the right one."""
        for side, compared in self.compared.items():
            report.check(
                f"{case}: {side}: all of {compared:,} actions are NumPy's argmax of onnxruntime's logits for the "
                "caller's own observation",
                compared > 0 and self.wrong[side] == 0,
            )


def thread_calls(
    side: str, calls: list[Call], callers: Callers, seconds: float, *, think: bool = False
) -> Callable[[], Samples]:
    """A turn of `seconds` with a thread for each of `calls`; `think` has each wait up to 1 ms before its calls."""

    def turn() -> Samples:
        gate = threading.Barrier(len(calls) + 1)
        crowd = [_Caller(call, list(rows), gate, seconds) for call, rows in zip(calls, callers.rows, strict=True)]
        threads = [threading.Thread(target=each.run_thinking if think else each.run) for each in crowd]
        for thread in threads:
            thread.start()
        gate.wait()
        begin = time.perf_counter()
        for thread in threads:
            thread.join()
        elapsed = time.perf_counter() - begin
        callers.compare(side, [each.answers for each in crowd])
        spent = np.array(list(itertools.chain.from_iterable(each.spent for each in crowd)))
        return {side: np.array([len(spent) / elapsed]), side + LATENCY: spent * 1e6}

    return turn


class _Caller:
    """One thread's loop, with as little in it as can be."""

    def __init__(self, call: Call, rows: list[np.ndarray], gate: threading.Barrier, seconds: float) -> None:
        self._call, self._rows, self._gate, self._seconds = call, rows, gate, seconds
        self.spent: list[float] = []
        self.answers: list[int] = []

    def run(self) -> None:
        """Calls without a pause."""
        call, clock, keep_answer, keep_spent = self._call, time.perf_counter, self.answers.append, self.spent.append
        self._gate.wait()
        end = clock() + self._seconds
        for row in itertools.cycle(self._rows):
            begin = clock()
            if begin > end:
                break
            keep_answer(call(row))
            keep_spent(clock() - begin)

    def run_thinking(self) -> None:
        """Sleeps 0 to 1 ms before each call."""
        call, clock, keep_answer, keep_spent = self._call, time.perf_counter, self.answers.append, self.spent.append
        thoughts = (np.random.default_rng().random(1_000) / 1_000).tolist()
        self._gate.wait()
        end = clock() + self._seconds
        for row, thought in zip(itertools.cycle(self._rows), itertools.cycle(thoughts), strict=False):
            time.sleep(thought)
            begin = clock()
            if begin > end:
                break
            keep_answer(call(row))
            keep_spent(clock() - begin)


def add_figures(report: Report, rounds: Rounds, case: str, sides: Iterable[str]) -> None:
    """Calls a second, and how long a call took, for each side."""
    sides = list(sides)
    report.figures += [rounds.figure(case, side, "calls/s") for side in sides]
    report.figures += [rounds.figure(case, side + LATENCY, "µs") for side in sides]


def fastest(rounds: Rounds, sides: Iterable[str]) -> str:
    """The side with the most calls a second."""
    return max(sides, key=lambda side: float(np.median(rounds.medians(side))))
