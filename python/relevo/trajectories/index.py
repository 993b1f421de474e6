"""`EpisodeIndex`: what is known of each episode of a run, without its steps."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from relevo._core import Run


@dataclass(frozen=True)
class EpisodeIndex:
    """One entry for each of E episodes, by number, which is the order in which they began."""

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
    """The lowest version that acted in each: that of its beginning, unless versions were set back."""
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
    """In the order in which they began episodes."""

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, rows: npt.NDArray[Any]) -> EpisodeIndex:
        """The entries that a mask or an array of places selects."""
        columns = {field.name: getattr(self, field.name)[rows] for field in fields(self)[:-1]}
        return EpisodeIndex(**columns, policy_names=self.policy_names)

    @classmethod
    def of(cls, run: Run) -> EpisodeIndex:
        """The index of a run, from its sidecars alone."""
        index: dict[str, npt.NDArray[Any]] = run.index()
        places: dict[str, int] = {}
        policies = [places.setdefault(name, len(places)) for name in index["policy"].tolist()]
        return cls(
            numbers=index["number"],
            steps=index["steps"].astype(np.int64),
            returns=index["episode_return"],
            terminated=index["terminated"],
            truncated=index["truncated"],
            complete=index["complete"],
            policies=np.array(policies, np.int64),
            versions=index["lowest_policy_version"],
            begins=index["first_timestamp"],
            ends=index["last_timestamp"],
            rewards_missing=index["rewards_missing"].astype(np.int64),
            rewards_nan=index["rewards_nan"].astype(np.int64),
            rewards_infinite=index["rewards_infinite"].astype(np.int64),
            policy_names=list(places),
        )
