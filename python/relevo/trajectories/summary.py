"""`Summary`: a run in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from relevo._core import Run
    from relevo.trajectories.index import EpisodeIndex


SQUARES_FIT = 1e150


@dataclass(frozen=True)
class Spread:
    """How numbers are spread."""

    mean: float
    std: float
    min: float
    median: float
    max: float

    @classmethod
    def of(cls, numbers: npt.NDArray[Any]) -> Spread | None:
        """None where there are none."""
        if not len(numbers):
            return None
        # In units of the largest one where squares would be beyond what floats hold.
        largest = float(np.abs(numbers).max())
        unit = largest if largest > SQUARES_FIT else 1.0
        scaled = numbers / unit
        return cls(
            mean=float(scaled.mean()) * unit,
            std=float(scaled.std()) * unit,
            min=float(numbers.min()),
            median=float(np.median(numbers)),
            max=float(numbers.max()),
        )


@dataclass(frozen=True)
class VersionSummary:
    """What one version of a policy played: the episodes in which it was the lowest that acted."""

    policy: str
    version: int
    episodes: int
    """Those that ended."""
    steps: int
    """Steps in all of them, ended or not."""
    mean_return: float | None
    """Mean of those that ended with a finite return."""


@dataclass(frozen=True)
class Summary:
    """A run in numbers; the fields are those of `--json`."""

    path: str
    run_id: str
    created: str
    library_version: str
    seed: int
    episodes: int
    """All that are recorded."""
    steps: int
    terminated: int
    """Episodes that the environment's rules ended."""
    truncated: int
    """Episodes that something else ended, and that had not terminated."""
    unfinished: int
    """Episodes that were under way when their actor was removed or the run was closed."""
    returns: Spread | None
    """Of the episodes that ended, where the return is finite."""
    returns_not_finite: int
    """Episodes that ended with another return."""
    lengths: Spread | None
    """Steps of the episodes that ended."""
    versions: list[VersionSummary]
    began: str | None
    """When the first action was chosen, UTC."""
    ended: str | None
    """When the last one was."""
    seconds: float
    """From the one to the other."""
    rewards_missing: int
    """Steps whose reward never came."""
    rewards_nan: int
    """Steps whose reward came, and is NaN."""
    rewards_infinite: int
    segments: int
    """Files with steps."""
    bytes: int
    """Size of the run folder."""
    bytes_per_step: float | None
    problems: list[str]
    """What is wrong with the files, as far as that is known without reading all steps."""

    @classmethod
    def of(cls, run: Run, index: EpisodeIndex) -> Summary:
        """The summary of a run whose index was read."""
        ended = index[index.complete]
        finite = ended.returns[np.isfinite(ended.returns)]
        steps = int(index.steps.sum())
        files = [file for file in run.path.rglob("*") if file.is_file()]
        size = sum(file.stat().st_size for file in files)
        began, last = (index.begins.min(), index.ends.max()) if len(index) else (None, None)
        return cls(
            path=str(run.path),
            **{name: run.info[name] for name in ("run_id", "created", "library_version", "seed")},
            episodes=len(index),
            steps=steps,
            terminated=int(ended.terminated.sum()),
            truncated=int((ended.truncated & ~ended.terminated).sum()),
            unfinished=len(index) - len(ended),
            returns=Spread.of(finite),
            returns_not_finite=len(ended) - len(finite),
            lengths=Spread.of(ended.steps),
            versions=_versions(index),
            began=None if began is None else _time(began),
            ended=None if last is None else _time(last),
            seconds=0.0 if began is None or last is None else float((last - began) / np.timedelta64(1, "s")),
            rewards_missing=int(index.rewards_missing.sum()),
            rewards_nan=int(index.rewards_nan.sum()),
            rewards_infinite=int(index.rewards_infinite.sum()),
            segments=sum(file.suffix == ".arrow" for file in files),
            bytes=size,
            bytes_per_step=size / steps if steps else None,
            problems=run.problems,
        )


def _time(moment: np.datetime64) -> str:
    return f"{np.datetime_as_string(moment, unit='s')}Z"


def _versions(index: EpisodeIndex) -> list[VersionSummary]:
    """By policy in the order in which they began, and version."""
    groups, group_of = np.unique(
        np.stack([index.policies.astype(np.uint64), index.versions]), axis=1, return_inverse=True
    )
    count = groups.shape[1]
    finite = index.complete & np.isfinite(index.returns)
    ended = np.bincount(group_of, index.complete, count).astype(int)
    steps = np.bincount(group_of, index.steps, count).astype(int)
    counted = np.bincount(group_of, finite, count)
    # Divided first: a sum may be beyond what floats hold where the mean is not.
    shares = np.where(finite, index.returns, 0.0) / np.maximum(counted, 1)[group_of]
    means = np.bincount(group_of, shares, count)
    return [
        VersionSummary(
            policy=index.policy_names[int(policy)],
            version=int(version),
            episodes=int(ended[place]),
            steps=int(steps[place]),
            mean_return=float(means[place]) if counted[place] else None,
        )
        for place, (policy, version) in enumerate(groups.T)
    ]
