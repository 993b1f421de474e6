import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self, final
from uuid import UUID

import numpy.typing as npt

@final
class RunWriter:
    """Writes episodes that were played elsewhere into a run folder, which `open_run` and `relevo trajectories` read.

    `with RunWriter("runs/demo") as writer: writer.add(observations, actions, rewards, terminated=True)`

    What was added is gathered to batches of about 8 MiB. It is on the disk when the writer is closed; what was written
    until a crash stays readable. Threads may share a writer.
    """

    def __new__(
        cls,
        path: str | os.PathLike[str],
        *,
        compression: Literal["none", "lz4", "zstd"] = "none",
        seed: int = 0,
        config: dict[str, Any] | None = None,
    ) -> Self:
        """Makes the folder.

        Args:
            path: the folder, which must hold no run.
            compression: how batches are packed.
            seed: what `run.json` tells as the seed.
            config: what it tells as the configuration, such as where the episodes come from.

        Raises:
            ConfigError: there is no such compression.
            TrajectoryError: the folder holds a run, another program writes to it, or it cannot be written.
        """

    @property
    def path(self) -> Path:
        """The folder."""

    @property
    def step_count(self) -> int:
        """Steps of all episodes that were added."""

    def __len__(self) -> int:
        """Number of episodes that were added."""

    def add(
        self,
        observations: npt.ArrayLike | dict[str, Any],
        actions: npt.ArrayLike | dict[str, Any],
        rewards: npt.ArrayLike,
        *,
        terminated: bool = False,
        truncated: bool = False,
        rewards_known: npt.ArrayLike | None = None,
        log_probs: npt.ArrayLike | None = None,
        values: npt.ArrayLike | None = None,
        action_masks: npt.ArrayLike | None = None,
        policy_runs: Sequence[tuple[int, str, int]] | None = None,
        timestamps: npt.ArrayLike | None = None,
        actor_id: UUID | None = None,
        number: int | None = None,
        extras: dict[str, npt.NDArray[Any] | list[str]] | None = None,
        texts: dict[str, list[str]] | None = None,
    ) -> int:
        """Adds one episode of T steps. Arrays are copied.

        Args:
            observations: `[T + 1, …]` with the final one last, or `[T, …]` where that is not known; a dict by name for
                several. Numbers or booleans, whose type is kept.
            actions: `[T, …]`; a dict by name for several kinds. Types are kept.
            rewards: `[T]`, what each action earned; stored as float64.
            terminated: whether the environment's rules ended the episode.
            truncated: whether something else did. An episode that neither ended is unfinished, and has no final
                observation.
            rewards_known: `[T]`, false where a reward never came.
            log_probs: `[T]`, stored as float32.
            values: `[T]`, stored as float32.
            action_masks: `[T, actions]`, 1 or true where an action was allowed.
            policy_runs: which policy acted from which step on: first step, name, version. One without a name, of
                version 0, where it is not given.
            timestamps: `[T]` of datetime64, in UTC; 1970 where they are not given.
            actor_id: who played; the id of zeros where it is not given.
            number: the episode's number, which no other one has; the next one where it is not given.
            extras: columns of your own by name: arrays `[T, …]` of numbers, or lists of T texts.
            texts: observations that are texts, by name: lists of as many as there are observations.

        Returns:
            The episode's number.

        Raises:
            ContractError: an array has another shape or cannot be stored, or the number is taken. Nothing is added.
            TrajectoryError: the policy's runs do not cover the steps in order: nothing is added; or the disk failed:
                what was written before stays readable, and nothing more is taken.
            AgentStateError: the writer is closed, or belongs to the process that this one was forked off from.
        """

    def close(self) -> None:
        """Writes what has gathered, and closes the folder. Again, it does nothing.

        Raises:
            TrajectoryError: the disk failed, now or before.
        """

    def __enter__(self) -> Self: ...
    def __exit__(self, *_error: object) -> None:
        """Closes the folder, after an error too: what was added is kept."""
