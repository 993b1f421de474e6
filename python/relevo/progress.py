"""What a collection has come to, while it runs and at its end."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class CollectResult:
    """What a collection came to."""

    steps: int
    """Environment steps, over all actors."""
    episodes: int
    """Episodes that ended."""
    mean_return: float
    """Mean return of those episodes; NaN if none ended."""
    mean_length: float
    """Mean number of their steps; NaN if none ended."""
    returns: npt.NDArray[np.float64]
    """Return of each of them, in the order in which they ended."""
    seconds: float
    """How long it took."""

    @property
    def steps_per_second(self) -> float:
        """Environment steps a second, over all actors."""
        return self.steps / self.seconds if self.seconds > 0 else 0.0


class Progress:
    """How far a collection is. Its numbers move on while it runs."""

    def __init__(self, actors: int) -> None:
        self.steps = 0
        """Environment steps, over all actors."""
        self.episodes = 0
        """Episodes that ended."""
        self._began = time.perf_counter()
        self._returns: list[npt.NDArray[np.float64]] = []
        self._lengths: list[npt.NDArray[np.int64]] = []
        self._running_return = np.zeros(actors)
        # A counter of calls and when each episode began on it: cheaper than adding one to every length at every step.
        self._calls = 0
        self._first_call = np.zeros(actors, np.int64)

    @property
    def seconds(self) -> float:
        """Time since the beginning."""
        return time.perf_counter() - self._began

    def recent_return(self, episodes: int = 100) -> float:
        """Mean return of the last episodes that ended, NaN if there are none."""
        recent: list[float] = []
        for returns in reversed(self._returns):
            recent.extend(returns[::-1].tolist())
            if len(recent) >= episodes:
                break
        return float(np.mean(recent[:episodes])) if recent else float("nan")

    def result(self) -> CollectResult:
        """The numbers as they are now."""
        returns = np.concatenate([np.empty(0), *self._returns])
        lengths = np.concatenate([np.empty(0, np.int64), *self._lengths])
        return CollectResult(
            steps=self.steps,
            episodes=self.episodes,
            mean_return=float(returns.mean()) if len(returns) else float("nan"),
            mean_length=float(lengths.mean()) if len(lengths) else float("nan"),
            returns=returns,
            seconds=self.seconds,
        )

    def count(self, reward: npt.NDArray[Any], steps: int) -> None:
        """Adds one step of the vector, in which `steps` environments took one."""
        self.steps += steps
        self._calls += 1
        self._running_return += reward

    def end(self, rows: npt.NDArray[np.intp]) -> None:
        """Notes that the episodes in `rows` ended with the step that was counted last."""
        self.episodes += len(rows)
        self._returns.append(self._running_return[rows])
        self._lengths.append(self._calls - self._first_call[rows])
        self.begin(rows)

    def begin(self, rows: npt.NDArray[np.intp]) -> None:
        """Notes that episodes begin in `rows` after the step that was counted last."""
        self._running_return[rows] = 0.0
        self._first_call[rows] = self._calls
