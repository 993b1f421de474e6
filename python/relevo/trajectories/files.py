"""Files and folders that appear whole, or not at all."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING, TypeVar

from relevo.errors import ConfigError, TrajectoryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from relevo._core import Episode
    from relevo.trajectories.episode_data import EpisodeData


AnyEpisode = TypeVar("AnyEpisode", "EpisodeData", "Episode")


def refuse_existing(path: Path) -> None:
    """Raises a `ConfigError` where something is at `path`."""
    if path.exists():
        raise ConfigError(f"{path} is there already; remove it, or name another place")


@contextlib.contextmanager
def removed_on_failure(*paths: Path) -> Iterator[list[Path]]:
    """A list of files and folders, `paths` first, that are removed where the block fails; an OSError gets our type."""
    made = list(paths)
    try:
        yield made
    except BaseException as error:
        for path in made:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, TrajectoryError):
            raise TrajectoryError(f"{made[0] if made else 'the file'} cannot be written: {error}") from error
        raise


class Counter:
    """Counts the episodes that pass through, and tells `progress` of them now and then."""

    EVERY = 256
    """Episodes from one call to the next."""

    def __init__(self, progress: Callable[[int, int], None] | None) -> None:
        self.episodes = 0
        self.steps = 0
        self._progress = progress

    def counted(self, episodes: Iterable[AnyEpisode]) -> Iterator[AnyEpisode]:
        """The same episodes."""
        for episode in episodes:
            yield episode
            self.episodes += 1
            self.steps += len(episode)
            if self._progress is not None and self.episodes % self.EVERY == 0:
                self._progress(self.episodes, self.steps)
        if self._progress is not None:
            self._progress(self.episodes, self.steps)
