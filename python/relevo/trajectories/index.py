"""`EpisodeIndex`: what is known of each episode of a run, without its steps."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from relevo.errors import TrajectoryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from relevo._core import Episode, Run

EVERY = 256
"""Episodes from one call of `progress` to the next."""


@dataclass(frozen=True)
class EpisodeIndex:
    """One entry for each of E episodes, in the order in which they ended."""

    numbers: npt.NDArray[np.uint64]
    steps: npt.NDArray[np.int64]
    returns: npt.NDArray[np.float64]
    """Sums of the rewards that came; NaN or infinite where one was."""
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    complete: npt.NDArray[np.bool_]
    policies: npt.NDArray[np.int64]
    """The policy that began each, as a place in `policy_names`."""
    versions: npt.NDArray[np.uint64]
    """The version with which each began."""
    last_versions: npt.NDArray[np.uint64]
    """The version with which each ended."""
    begins: npt.NDArray[np.datetime64]
    """When the first action was chosen."""
    ends: npt.NDArray[np.datetime64]
    """When the last action was chosen."""
    rewards_missing: npt.NDArray[np.int64]
    """Steps whose reward never came."""
    rewards_nan: npt.NDArray[np.int64]
    """Steps whose reward came, and is NaN."""
    rewards_infinite: npt.NDArray[np.int64]
    policy_names: list[str]

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, rows: npt.NDArray[Any]) -> EpisodeIndex:
        """The entries that a mask or an array of places selects."""
        columns = {field.name: getattr(self, field.name)[rows] for field in fields(self)[:-1]}
        return EpisodeIndex(**columns, policy_names=self.policy_names)


DTYPES = (
    np.uint64, np.int64, np.float64, np.bool_, np.bool_, np.bool_, np.int64, np.uint64, np.uint64, "datetime64[ns]",
    "datetime64[ns]", np.int64, np.int64, np.int64,
)  # fmt: skip


def episode_index(run: Run, progress: Callable[[int, int], None] | None = None) -> EpisodeIndex:
    """The index of a run. `progress` is called now and then with the numbers of episodes and steps that were read.

    Raises:
        TrajectoryError: the run is damaged.
    """
    # Kept as one record each: 93 bytes an episode, where a row of Python's objects would take ten times that.
    record = np.dtype([(field.name, dtype) for field, dtype in zip(fields(EpisodeIndex), DTYPES, strict=False)])
    names: dict[str, int] = {}
    chunks = [np.empty(0, record)]
    rows: list[tuple[Any, ...]] = []
    episodes = steps = 0
    for episode in run.episodes():
        rows.append(_row(episode, names))
        episodes, steps = episodes + 1, steps + len(episode)
        if len(rows) == EVERY:
            chunks.append(np.array(rows, record))
            rows = []
            if progress is not None:
                progress(episodes, steps)
    all_rows = np.concatenate([*chunks, np.array(rows, record)])
    if progress is not None:
        progress(episodes, steps)
    return EpisodeIndex(**{name: all_rows[name] for name in record.names or ()}, policy_names=list(names))


def find_episode(run: Run, number: int) -> Episode:
    """The episode of this number.

    Raises:
        TrajectoryError: there is none.
    """
    numbers = []
    for episode in run.episodes():
        if episode.number == number:
            return episode
        numbers.append(episode.number)
    there = f"its episodes are {min(numbers)} to {max(numbers)}" if numbers else "it has none at all"
    raise TrajectoryError(f"{run.path} has no episode {number}; {there}")


def actions_of(run: Run) -> Iterator[Any]:
    """The actions of each episode: an array, or a dict of arrays by name."""
    return (episode.actions for episode in run.episodes())


def _row(episode: Episode, names: dict[str, int]) -> tuple[Any, ...]:
    rewards, known, times = episode.rewards, episode.rewards_known, episode.timestamps
    came = rewards if known is None else rewards[known]
    # A sum is finite only if all that it sums are, but for overflow.
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(came.sum())
    finite = np.isfinite(total)
    return (
        episode.number,
        len(rewards),
        total,
        episode.terminated,
        episode.truncated,
        episode.complete,
        names.setdefault(episode.policies[0], len(names)),
        episode.policy_versions[0],
        episode.policy_versions[-1],
        times[0],
        times[-1],
        len(rewards) - len(came),
        0 if finite else np.isnan(came).sum(),
        0 if finite else np.isinf(came).sum(),
    )
