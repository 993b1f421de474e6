import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt

from relevo._core.episode import Episode
from relevo._core.steps import Steps

@final
class Run:
    """A run folder, to be read; also while it is written, and after a crash. It is as it was when it was opened.

    Opening reads the sidecars of the segments, not the steps. Bytes are compared with their checksums when they are
    read: what is damaged is an error, with the file and the place, and never a wrong row.
    """

    @staticmethod
    def open(path: str | os.PathLike[str]) -> Run:
        """Opens the run folder `path`; also as `relevo.open_run`.

        Raises:
            TrajectoryError: it is no run folder, or one of a newer format.
        """

    @property
    def path(self) -> Path:
        """The folder."""

    @property
    def info(self) -> dict[str, Any]:
        """What `run.json` says: run id, seed, resolved configuration, models with their hashes, library version."""

    @property
    def step_count(self) -> int:
        """Steps of all episodes."""

    @property
    def nbytes(self) -> int:
        """Bytes of the segments on the disk."""

    @property
    def problems(self) -> list[str]:
        """What is wrong with the files, as far as that is known without reading all steps; `verify` reads them."""

    def __len__(self) -> int:
        """Number of episodes."""

    def episode(self, number: int) -> Episode:
        """The episode with this number, without a copy where segments are not compressed.

        Raises:
            TrajectoryError: there is none, or its steps are damaged.
        """

    def episodes(
        self,
        *,
        numbers: int | Iterable[int] | None = None,
        policy_versions: int | tuple[int | None, int | None] | None = None,
        returns: float | tuple[float | None, float | None] | None = None,
    ) -> Episodes:
        """Episodes in the order in which they ended, behind them those that never did.

        A few batches are in memory at a time.

        Args:
            numbers: only those with these numbers.
            policy_versions: only those in which this version acted, or one between these two, both included; `None`
                stands for no bound.
            returns: only those whose return lies between these two, both included.

        Raises:
            TrajectoryError: while iterating: a batch is damaged. The iteration may go on; the episodes of that batch
                are left out.
        """

    def steps(
        self,
        columns: list[str] | None = None,
        *,
        numbers: int | Iterable[int] | None = None,
        policy_versions: int | tuple[int | None, int | None] | None = None,
        returns: float | tuple[float | None, float | None] | None = None,
    ) -> Steps:
        """The rows of the segments, as an Arrow stream or as NumPy arrays; the columns stand in docs/run-folder.md.

        Args:
            columns: only these, in this order. Columns that some segments lack are null in their rows.
            numbers: as in `episodes`, and so are the others: they choose whole episodes.
            policy_versions: see there.
            returns: see there.

        Raises:
            ContractError: there is no such column.
            TrajectoryError: segments have columns of one name and different types.
        """

    def index(self) -> dict[str, npt.NDArray[np.generic]]:
        """One row for each episode, by number, from the sidecars alone.

        `number`, `actor_id` (uint8 [N, 16]), `steps`, `episode_return`, `terminated`, `truncated`, `complete`,
        `rewards_missing`, `rewards_nan`, `rewards_infinite` (numbers of steps), `policy` (the name of the one that
        acted first), `lowest_policy_version`, `highest_policy_version`, `first_timestamp`, `last_timestamp`
        (datetime64[ns]).
        """

    def verify(self, tell: Callable[[int], object] | None = None) -> dict[str, Any]:
        """Reads every byte and compares it with what was written.

        Args:
            tell: called after each batch, with the bytes read so far.

        Returns:
            `sound`; `batches` and `bytes` that were compared; `unclosed_segments`; `problems`, with which all steps are
            there, and `lost`, each a list of texts; `lost_episodes` and `lost_steps`, how much lies in what cannot be
            read, as far as sidecars tell.
        """

@final
class Episodes:
    """Episodes of a run, one after the other."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> Episode: ...

def repair_run(path: str | os.PathLike[str], tell: Callable[[int], object] | None = None) -> dict[str, Any]:
    """Makes the run in a folder whole again; `relevo.trajectories.repair` is the way to it.

    Args:
        path: the run folder, which nobody writes to.
        tell: called after each batch, with the bytes read so far.

    Returns:
        What was found, as `Run.verify` gives it.
    """
