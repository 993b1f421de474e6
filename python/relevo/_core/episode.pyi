import os
from typing import Any, final
from uuid import UUID

import numpy as np
import numpy.typing as npt

@final
class Episode:
    """The steps of one actor from a reset to an end, T of them.

    Arrays are views of memory that the episode owns, and cannot be written to.
    """

    @property
    def number(self) -> int:
        """Ordinal within the run, unique."""

    @property
    def actor_id(self) -> UUID:
        """The actor's id when the episode began."""

    @property
    def observations(self) -> npt.NDArray[Any] | dict[str, npt.NDArray[Any]]:
        """`[T + 1, …]` as the policy got them, the final one last; `[T, …]` where that is not known.

        A dict by name for policies with several observations.
        """

    @property
    def actions(self) -> npt.NDArray[Any] | dict[str, npt.NDArray[Any]]:
        """`[T, …]`; a dict by name for policies with several kinds of actions."""

    @property
    def action_masks(self) -> npt.NDArray[np.uint8] | None:
        """`[T, actions]`, 1 where an action was allowed; None where no mask was used."""

    @property
    def rewards(self) -> npt.NDArray[np.float64]:
        """`[T]`, what each action earned; NaN where the reward never came."""

    @property
    def rewards_known(self) -> npt.NDArray[np.bool_] | None:
        """`[T]`, false where the reward never came; None where all came. A reward of NaN that came is true here."""

    @property
    def log_probs(self) -> npt.NDArray[np.float32] | None:
        """`[T]`, log-probability of each action when it was chosen; None where the policy told none."""

    @property
    def values(self) -> npt.NDArray[np.float32] | None:
        """`[T]`, the policy's value of each observation; None where it told none."""

    @property
    def extras(self) -> dict[str, npt.NDArray[Any] | list[str]]:
        """What was given for each of the agent's extra columns, by name: `[T, …]`, or T texts."""

    @property
    def texts(self) -> dict[str, list[str]]:
        """The observations that are texts, by name: T of them, and the final one last where that is known."""

    @property
    def policy_versions(self) -> npt.NDArray[np.uint64]:
        """`[T]`, the version of the policy that acted."""

    @property
    def policy_runs(self) -> list[tuple[int, str, int]]:
        """Which policy acted from which step on: first step, name, version."""

    @property
    def policies(self) -> list[str]:
        """Names of the policies that acted, in their order."""

    @property
    def timestamps(self) -> npt.NDArray[np.datetime64]:
        """`[T]`, when each action was chosen, in UTC."""

    @property
    def terminated(self) -> bool:
        """Whether the environment's rules ended the episode."""

    @property
    def truncated(self) -> bool:
        """Whether something else ended it, such as a time limit."""

    @property
    def complete(self) -> bool:
        """Whether it ended at all; False where its actor was removed or the run closed in its midst."""

    @property
    def has_final_observation(self) -> bool:
        """Whether the observation after the last action is known."""

    @property
    def episode_return(self) -> float:
        """Sum of the rewards that came, undiscounted."""

    def _write_csv(self, path: os.PathLike[str]) -> None:
        """For `relevo.trajectories.to_csv`."""

    def __len__(self) -> int: ...
