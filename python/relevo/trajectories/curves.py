"""Returns over time, brought down to as many points as a picture can show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from relevo.trajectories.histogram import LARGEST

if TYPE_CHECKING:
    from relevo.trajectories.index import EpisodeIndex

MOST_POINTS = 2_000
"""Episodes that are points of their own; of more, stretches of the run are."""
STRETCHES = 200
AVERAGED = 100
"""Episodes in a moving average at most, as in the progress bar of `relevo run`; more where stretches are drawn."""

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Points:
    """What one version of one policy reached."""

    policy: str
    version: int
    at: Numbers
    """Steps recorded until then."""
    returns: Numbers
    """An episode's return, or the mean of a stretch."""
    episodes: npt.NDArray[np.int64]
    """How many each point stands for."""


@dataclass(frozen=True)
class Average:
    """The moving average of one policy's returns."""

    policy: str
    at: Numbers
    returns: Numbers
    episodes: int
    """How many are averaged."""


@dataclass(frozen=True)
class Curves:
    """Returns over time."""

    points: list[Points]
    averages: list[Average]
    band: tuple[Numbers, Numbers, Numbers] | None
    """Where points are means of stretches: the place, and between which returns eight tenths of the episodes lie."""
    left_out: int
    """Episodes that ended with a return that is NaN, infinite or beyond `LARGEST`."""


def return_curves(index: EpisodeIndex) -> Curves:
    """Of the episodes that ended, in the order of time."""
    order = np.argsort(index.ends, kind="stable")
    at = np.cumsum(index.steps[order]).astype(np.float64)
    ended = index.complete[order]
    drawn = ended & (np.abs(index.returns[order]) < LARGEST)
    rows, at = order[drawn], at[drawn]
    returns, policies, versions = index.returns[rows], index.policies[rows], index.versions[rows]
    many = len(rows) > MOST_POINTS
    stretch = _stretches(at) if many else np.arange(len(rows))
    points, averages = [], []
    for policy in np.unique(policies):
        name, own = index.policy_names[int(policy)], policies == policy
        averages.append(_average(name, at[own], returns[own]))
        for version in np.unique(versions[own]):
            chosen = own & (versions == version)
            points.append(Points(name, int(version), *_means(stretch[chosen], at[chosen], returns[chosen])))
    return Curves(points, averages, _band(stretch, at, returns) if many else None, int(ended.sum() - drawn.sum()))


def _stretches(at: Numbers) -> npt.NDArray[np.int64]:
    """The stretch of the run in which each episode ended."""
    width = (at[-1] - at[0]) / STRETCHES or 1.0
    stretch: npt.NDArray[np.int64] = np.minimum((at - at[0]) / width, STRETCHES - 1).astype(np.int64)
    return stretch


def _means(
    stretch: npt.NDArray[np.int64], at: Numbers, returns: Numbers
) -> tuple[Numbers, Numbers, npt.NDArray[np.int64]]:
    """Of each stretch: the mean place, the mean return, and the number of episodes."""
    _, group = np.unique(stretch, return_inverse=True)
    counts = np.bincount(group)
    return np.bincount(group, at) / counts, np.bincount(group, returns) / counts, counts


def _average(policy: str, at: Numbers, returns: Numbers) -> Average:
    count = len(returns)
    # A fifth of a short run, so that the line has a course at all; a fiftieth of a very long one.
    window = max(1, min(AVERAGED, count // 5), count // 50)
    # From the mean on, so that a long sum of large numbers loses nothing that would show.
    centre = returns.mean()
    sums = np.concatenate([[0.0], np.cumsum(returns - centre)])
    means = centre + (sums[window:] - sums[:-window]) / window
    shown = np.unique(np.linspace(0, len(means) - 1, min(len(means), MOST_POINTS)).astype(np.int64))
    return Average(policy, at[window - 1 :][shown], means[shown], window)


def _band(stretch: npt.NDArray[np.int64], at: Numbers, returns: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    starts = np.flatnonzero(np.diff(stretch, prepend=-1))
    parts = np.split(returns, starts[1:])
    quantiles = np.array([np.quantile(part, (0.1, 0.9)) for part in parts])
    return _means(stretch, at, returns)[0], quantiles[:, 0], quantiles[:, 1]
