"""Recorded trajectories in the formats of other tools, and back.

Nothing but NumPy is imported before a function is called; each names the packages that it needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from relevo.trajectories.episode_data import EpisodeData
from relevo.trajectories.export_result import ExportResult

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    import gymnasium

    from relevo._core import Run

__all__ = [
    "EpisodeData",
    "ExportResult",
    "from_csv",
    "from_minari",
    "from_parquet",
    "to_csv",
    "to_minari",
    "to_parquet",
]


def to_parquet(
    run: Run, path: str | os.PathLike[str], *, progress: Callable[[int, int], None] | None = None
) -> ExportResult:
    """Writes a run as Parquet, with the columns and rows of the run folder, compressed by Zstandard.

    All episodes with the same columns go into one file. The first set of columns gets `path`, further ones
    `path` with -1, -2 … before the suffix: such as those of another policy, or of episodes with masks. Rows of an
    episode lie together, in order; `run.json` is in the schema's metadata under `relevo.run`. Nothing is lost.

    Args:
        run: what to write.
        path: the file, which must not be there.
        progress: called now and then with the numbers of episodes and steps that are done.

    Raises:
        ConfigError: the file is there already, or pyarrow is not installed.
        TrajectoryError: the run cannot be read, or the file cannot be written. Nothing is left of it.
    """
    from relevo.trajectories import parquet

    return parquet.write(run, Path(path), progress)


def from_parquet(path: str | os.PathLike[str]) -> Iterator[EpisodeData]:
    """Episodes of one Parquet file, as `to_parquet` writes it, one after the other.

    Files of others are read too where they have the columns `episode`, `step`, `reward`, `terminated`, `truncated`,
    one or more `observation…` and `action…`, and each episode's rows together; lists of fixed size pass for tensors of
    one dimension.

    Raises:
        ConfigError: pyarrow is not installed.
        TrajectoryError: the file cannot be read, or its rows are no episodes; the message names the row.
    """
    from relevo.trajectories import parquet

    return parquet.read(Path(path))


def to_csv(
    run: Run, path: str | os.PathLike[str], *, progress: Callable[[int, int], None] | None = None
) -> ExportResult:
    """Writes a run as a folder of CSV files with RelayRL's columns, one for each episode: `episode_000012.csv`.

    RelayRL 0.5 reads them (`CsvTrajectory::from_csv`). As it has it, the reward in a row is what the action *before*
    earned, and a row without an action closes the episode. What has no column of its own is in `aux_data`: the exact
    time, log-probability, value, policy and version, several observations or actions by name.

    RelayRL itself reads less than there is: rewards as float32, times as whole seconds, truncated as done. Reading by
    `from_csv` gives everything back.

    Args:
        run: what to write.
        path: the folder, which must not be there.
        progress: called now and then with the numbers of episodes and steps that are done.

    Raises:
        ConfigError: the folder is there already.
        TrajectoryError: the run cannot be read, the folder cannot be written, or observations have a type that RelayRL
            has no name for (uint16, uint32, uint64). Nothing is left of it.
    """
    from relevo.trajectories import relayrl_csv

    return relayrl_csv.write(run, Path(path), progress)


def from_csv(path: str | os.PathLike[str]) -> Iterator[EpisodeData]:
    """Episodes of CSV files with RelayRL's columns: of one file, or of all in a folder in the order of their names.

    RelayRL's own files are read too. There, whether an episode was truncated is not known, so that it counts as
    terminated; times are whole seconds; policies are nameless.

    Raises:
        TrajectoryError: a file cannot be read, or its rows are no episode; the message names the file and the line.
    """
    from relevo.trajectories import relayrl_csv

    return relayrl_csv.read(Path(path))


def to_minari(
    run: Run,
    dataset_id: str,
    *,
    env: str | gymnasium.Env[object, object] | None = None,
    observation_space: gymnasium.Space[object] | None = None,
    action_space: gymnasium.Space[object] | None = None,
    policy: str | None = None,
    description: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ExportResult:
    """Writes a run as a local Minari dataset, in HDF5, images without loss.

    Log-probabilities, values, masks, policies, versions, times and which rewards are known are in the episodes'
    `infos`, with one row more than there are steps, as Minari has it; actor and number in their metadata.

    Minari cannot hold an episode whose final observation is not known: such episodes are left out, and counted. It has
    one pair of spaces for a dataset, so all episodes must have the same observations and actions.

    Args:
        run: what to write.
        dataset_id: Minari's name of the dataset, such as `cartpole/expert-v0`, which must not be there.
        env: the environment, or Gymnasium's id of it, which is noted in the dataset, and whose spaces are taken.
        observation_space: the space of observations. Without it and `env`, a `Box` of the recorded shape and type,
            without bounds for floats; a `Dict` of such for several.
        action_space: the space of actions. Without it and `env`, a `Discrete` or `MultiDiscrete` for whole numbers, as
            large as the largest action in the run; a `Box` without bounds for others; a `Dict` for several kinds.
        policy: only episodes that this policy played; for runs whose policies observe or act differently.
        description: of the dataset.
        progress: called now and then with the numbers of episodes and steps that are done.

    Raises:
        ConfigError: Minari or h5py is not installed, the dataset is there already, its name is none, or a space does
            not fit.
        TrajectoryError: the run cannot be read, no episode can be held, or they differ in their columns. Nothing is
            left of it.
    """
    from relevo.trajectories import minari_dataset

    given = minari_dataset.Given(env, observation_space, action_space, policy, description)
    return minari_dataset.write(run, dataset_id, given, progress)


def from_minari(dataset_id: str) -> Iterator[EpisodeData]:
    """Episodes of a local Minari dataset, one after the other; of `to_minari` or of others.

    Observations and actions of nested spaces get the names of their parts, joined by dots. Datasets of others have no
    log-probabilities, values, times or actors; their policies are nameless, of version 0.

    Raises:
        ConfigError: Minari or h5py is not installed, or there is no such dataset.
        TrajectoryError: the dataset holds what episodes cannot: observations that are no arrays.
    """
    from relevo.trajectories import minari_dataset

    return minari_dataset.read(dataset_id)
