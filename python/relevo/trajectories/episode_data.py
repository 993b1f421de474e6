"""`EpisodeData`: one episode as plain arrays, whatever it was read from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from relevo._core import Episode, Run

Arrays: TypeAlias = npt.NDArray[Any] | dict[str, npt.NDArray[Any]]
"""One array, or several by name."""


@dataclass(frozen=True)
class EpisodeData:
    """One episode of T steps as plain arrays."""

    observations: Arrays
    """`[T + 1, …]`, the final one last; `[T, …]` where that is not known. A dict by name for several."""
    actions: Arrays
    """`[T, …]`; a dict by name for several kinds."""
    rewards: npt.NDArray[np.float64]
    """`[T]`, what each action earned; NaN where the reward never came."""
    rewards_known: npt.NDArray[np.bool_]
    """`[T]`, false where the reward never came."""
    terminated: bool
    """Whether the environment's rules ended the episode."""
    truncated: bool
    """Whether something else ended it, such as a time limit."""
    complete: bool
    """Whether it ended at all."""
    policies: list[str]
    """`[T]`, the name of the policy that acted; empty names where it is not known."""
    policy_versions: npt.NDArray[np.uint64]
    """`[T]`, its version; 0 where it is not known."""
    timestamps: npt.NDArray[np.datetime64] | None
    """`[T]` in nanoseconds, UTC: when each action was chosen; None where it is not known."""
    action_masks: npt.NDArray[np.uint8] | None = None
    """`[T, actions]`, 1 where an action was allowed; None where no mask was used."""
    log_probs: npt.NDArray[np.float32] | None = None
    """`[T]`, log-probability of each action; None where it is not known."""
    values: npt.NDArray[np.float32] | None = None
    """`[T]`, the policy's value of each observation; None where it is not known."""
    actor_id: UUID | None = None
    """The actor that played it; None where it is not known."""
    number: int | None = None
    """Its number in its run; None where it is not known."""
    extras: dict[str, npt.NDArray[Any] | list[str]] = field(default_factory=dict)
    """Columns of the user's own by name: `[T, …]`, or T texts."""
    texts: dict[str, list[str]] = field(default_factory=dict)
    """Observations that are texts, by name: as many as there are observations."""

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def has_final_observation(self) -> bool:
        """Whether the observation after the last action is known."""
        return len(first(self.observations)) == len(self) + 1

    @property
    def episode_return(self) -> float:
        """Sum of the rewards that came, undiscounted."""
        with np.errstate(over="ignore", invalid="ignore"):
            return float(self.rewards[self.rewards_known].sum())

    @classmethod
    def of(cls, episode: Episode) -> EpisodeData:
        """The episode of a run. Arrays are not copied."""
        known = episode.rewards_known
        return cls(
            observations=episode.observations,
            actions=episode.actions,
            rewards=episode.rewards,
            rewards_known=np.ones(len(episode), np.bool_) if known is None else known,
            terminated=episode.terminated,
            truncated=episode.truncated,
            complete=episode.complete,
            policies=_policies(episode),
            policy_versions=episode.policy_versions,
            timestamps=episode.timestamps,
            action_masks=episode.action_masks,
            log_probs=episode.log_probs,
            values=episode.values,
            actor_id=episode.actor_id,
            number=episode.number,
            extras=episode.extras,
            texts=episode.texts,
        )


def read_run(run: Run) -> Iterator[EpisodeData]:
    """All episodes of a run, in the order in which they ended."""
    return map(EpisodeData.of, run.episodes())


def first(arrays: Arrays) -> npt.NDArray[Any]:
    """The array, or the first of several."""
    return next(iter(arrays.values())) if isinstance(arrays, dict) else arrays


def named(prefix: str, arrays: Arrays) -> dict[str, npt.NDArray[Any]]:
    """By column: `prefix`, or `prefix.name` for each of several."""
    if isinstance(arrays, dict):
        return {f"{prefix}.{name}": array for name, array in arrays.items()}
    return {prefix: arrays}


def unnamed(prefix: str, columns: dict[str, npt.NDArray[Any]]) -> Arrays:
    """What `named` was given."""
    return columns[prefix] if prefix in columns else {name[len(prefix) + 1 :]: part for name, part in columns.items()}


def _policies(episode: Episode) -> list[str]:
    """The policy of each step."""
    runs = episode.policy_runs
    ends = [*(first for first, _, _ in runs[1:]), len(episode)]
    return [name for (first, name, _), end in zip(runs, ends, strict=True) for _ in range(first, end)]
