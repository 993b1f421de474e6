"""Histograms of actions, built up episode by episode in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

BINS = 128
MOST_KINDS = 64
"""Whole numbers further apart than this are binned like others."""
MOST_PARTS = 12
"""Elements of an action of which a histogram is made."""
LARGEST = 1e300
"""Sums and differences of numbers below it are finite."""
GATHERED_STEPS = 32_768
"""Steps that are counted at a time."""


class Histogram:
    """Counts of numbers in equal bins, whose width doubles until all that came are in their range.

    Whole numbers that lie within `MOST_KINDS` of each other have a bin each.
    """

    def __init__(self, name: str, *, whole: bool) -> None:
        self.name = name
        self.whole = whole
        """Whether each bin is one whole number."""
        self.counts = np.zeros(MOST_KINDS if whole else BINS, np.int64)
        self.not_finite = 0
        """NaN, infinite numbers, and those beyond `LARGEST`."""
        self._low = 0.0
        self._width = 0.0

    @property
    def edges(self) -> npt.NDArray[np.float64]:
        """The bins' edges, one more than bins; the bin of a whole number begins with it."""
        return np.float64(self._low) + self._width * np.arange(len(self.counts) + 1, dtype=np.float64)

    def add(self, numbers: npt.NDArray[Any]) -> None:
        """Counts them."""
        numbers = numbers.astype(np.float64).reshape(-1)
        finite = numbers[np.abs(numbers) < LARGEST]
        self.not_finite += len(numbers) - len(finite)
        if not len(finite):
            return
        low, high = float(finite.min()), float(finite.max())
        if not self._width:
            self._begin(low, high)
        self._widen(low, high)
        places = np.floor((finite - self._low) / self._width).astype(np.int64)
        # Rounding may put the largest one just beyond.
        self.counts += np.bincount(np.clip(places, 0, len(self.counts) - 1), minlength=len(self.counts))

    def _begin(self, low: float, high: float) -> None:
        if self.whole:
            self._low, self._width = low, 1.0
            return
        # A single number gets a range around it.
        width = (high - low) / BINS or max(abs(low), 1.0) * 1e-6
        self._low, self._width = low, width

    def _widen(self, low: float, high: float) -> None:
        """Merges bins two by two, to the side where there is too little room, until both numbers are in."""
        bins = len(self.counts)
        if self.whole and low < self._low and self._filled() + self._low - low <= bins:
            shift = int(self._low - low)
            self.counts = np.concatenate([np.zeros(shift, np.int64), self.counts[: bins - shift]])
            self._low = low
        while low < self._low or high > self._high or (self.whole and high == self._high):
            self.whole = False
            merged = self.counts.reshape(-1, 2).sum(axis=1)
            empty = np.zeros(bins // 2, np.int64)
            if low < self._low:
                self.counts = np.concatenate([empty, merged])
                self._low -= bins * self._width
            else:
                self.counts = np.concatenate([merged, empty])
            self._width *= 2

    @property
    def _high(self) -> float:
        return self._low + len(self.counts) * self._width

    def _filled(self) -> int:
        """The number of bins up to the last one that is not empty."""
        return int(np.flatnonzero(self.counts).max(initial=-1)) + 1


def action_histograms(
    actions: Iterable[Any], progress: Callable[[int, int], None] | None = None
) -> tuple[list[Histogram], int]:
    """A histogram for each element of an action, the first `MOST_PARTS`; and how many more elements there are.

    Actions of policies that act differently are told apart by name and size. `progress` is called now and then with
    the numbers of episodes and steps that were read.
    """
    histograms: dict[str, Histogram] = {}
    left_out: set[str] = set()
    gathered: dict[tuple[str, int, str], list[npt.NDArray[Any]]] = {}
    episodes = steps = waiting = 0

    def count() -> None:
        for (name, size, kind), parts in gathered.items():
            columns = np.concatenate(parts)
            for place in range(size):
                own = f"{name}[{place}]" if size > 1 else name
                if own not in histograms and len(histograms) == MOST_PARTS:
                    left_out.add(own)
                    continue
                histogram = histograms.setdefault(own, Histogram(own, whole=kind in "iub"))
                histogram.add(columns[:, place])
        gathered.clear()

    for given in actions:
        for name, array in (given if isinstance(given, dict) else {"action": given}).items():
            rows = array.reshape(len(array), -1)
            gathered.setdefault((name, rows.shape[1], array.dtype.kind), []).append(rows)
            length = len(array)
        episodes, steps, waiting = episodes + 1, steps + length, waiting + length
        if waiting >= GATHERED_STEPS:
            count()
            waiting = 0
            if progress is not None:
                progress(episodes, steps)
    count()
    return list(histograms.values()), len(left_out)
