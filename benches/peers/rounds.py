"""Measuring in rounds: every side has its turn in each, so that what else the machine does meets all of them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
from report import Figure, Goal

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Samples = dict[str, npt.NDArray[np.float64]]
    """Measurements of one turn, by the name of what was measured."""


class Rounds:
    """The measurements of some sides, round by round."""

    def __init__(self, sides: list[Callable[[], Samples]], count: int) -> None:
        """Lets each side run once to warm up, and then `count` times, in turns: A B A B."""
        self._samples: dict[str, list[npt.NDArray[np.float64]]] = defaultdict(list)
        for side in sides:
            side()
        for _ in range(count):
            for side in sides:
                for name, samples in side().items():
                    self._samples[name].append(samples)

    def medians(self, name: str) -> npt.NDArray[np.float64]:
        """The median of each round."""
        return np.array([np.median(samples) for samples in self._samples[name]])

    def p99s(self, name: str) -> npt.NDArray[np.float64]:
        """The 99th percentile of each round."""
        return np.array([np.percentile(samples, 99) for samples in self._samples[name]])

    def figure(self, case: str, side: str, unit: str, note: str = "") -> Figure:
        """What the side `side` came to."""
        rounds = self._samples[side]
        pooled, medians = np.concatenate(rounds), self.medians(side)
        p99 = float(np.percentile(pooled, 99)) if len(pooled) > len(rounds) else None
        return Figure(case, side, unit, float(np.median(pooled)), float(medians.min()), float(medians.max()), p99, note)


def goal(
    case: str, asked: str, ratios: npt.NDArray[np.float64], bound: float, *, at_most: bool, unit: str = ""
) -> Goal:
    """A goal on something that was measured in every round."""
    return Goal(case, asked, float(np.median(ratios)), float(ratios.min()), float(ratios.max()), bound, at_most, unit)
