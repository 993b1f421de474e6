import os
from pathlib import Path
from typing import Any, Self, final

from relevo._core.episode import Episode

@final
class Run:
    """A run folder, to be read; also while it is written, and after a crash."""

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

    def episodes(self) -> Episodes:
        """All episodes, as they were written, read one batch at a time.

        Raises:
            TrajectoryError: a segment is damaged; the message names the file and the batch.
        """

@final
class Episodes:
    """Episodes of a run, one after the other."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> Episode: ...
