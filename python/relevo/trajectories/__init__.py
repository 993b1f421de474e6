"""Recorded trajectories in the formats of other tools, and back.

Nothing but NumPy is imported before a function is called; each names the packages that it needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from relevo._core import Run, repair_run
from relevo.errors import ConfigError
from relevo.trajectories.episode_data import EpisodeData
from relevo.trajectories.export_result import ExportResult

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import gymnasium
    import numpy.typing as npt
    import torch

    from relevo._core import Episode
    from relevo.record_settings import Compression

__all__ = [
    "EpisodeData",
    "ExportResult",
    "from_csv",
    "from_minari",
    "from_parquet",
    "repair",
    "to_csv",
    "to_minari",
    "to_parquet",
    "to_run",
    "to_torch",
]


def repair(path: str | os.PathLike[str], *, progress: Callable[[int], object] | None = None) -> dict[str, Any]:
    """Makes the run in a folder whole again; again, it changes nothing.

    Segments that are damaged, or were never closed, are written anew from the batches that are whole; where that loses
    something, the old file stays as `NNNNNN.arrow.damaged`. Files of which nothing can be read are renamed to
    `NNNNNN.arrow.unreadable`.

    Args:
        path: the run folder, which nobody writes to.
        progress: called after each batch with the number of bytes that were read.

    Returns:
        What was found, as `Run.verify` tells it.

    Raises:
        TrajectoryError: it is no run folder, another program writes to it, or a file cannot be written.
    """
    return repair_run(path, progress)


def to_run(
    episodes: Iterable[EpisodeData | Episode],
    path: str | os.PathLike[str],
    *,
    compression: Compression = "none",
    seed: int = 0,
    config: dict[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ExportResult:
    """Writes episodes into a run folder: `to_run(from_minari("cartpole/expert-v0"), "runs/expert")`.

    Numbers and actors are kept where they are known. Else numbers count on, actors are the id of zeros, times are 1970.
    An episode that ended in a way that is not known counts as truncated. `relevo.RunWriter` takes episodes one by one.

    Args:
        episodes: what to write, such as what the functions `from_…` give, or `run.episodes(returns=(200, None))`.
        path: the folder, which must not be there.
        compression: how batches are packed: `"none"`, `"lz4"` or `"zstd"`.
        seed: what `run.json` tells as the seed.
        config: what it tells as the configuration, such as where the episodes come from.
        progress: called now and then with the numbers of episodes and steps that are done.

    Raises:
        ConfigError: something is at `path`, or there is no such compression.
        TrajectoryError: an episode cannot be read or written, or there is none. Nothing is left of the folder.
    """
    from relevo.trajectories import run_folder

    return run_folder.write(episodes, Path(path), compression=compression, seed=seed, config=config, progress=progress)


def to_torch(batch: Mapping[str, npt.NDArray[Any]]) -> dict[str, torch.Tensor]:
    """A batch of steps as tensors, such as each of `for batch in run.steps(["observation", "action"])`.

    Tensors share the memory of the arrays: nothing is copied here. What iteration over `run.steps()` copies is said
    there: booleans, and numbers of which some are missing; all of a run that is compressed. Texts are left out, times
    become int64, nanoseconds since 1970.

    Do not write to such a tensor: it may be the file itself, mapped into memory for reading, and a write in place would
    end the process. `tensor.clone()` gives one of your own; `.to("cuda")` copies anyway.

    Raises:
        ConfigError: torch is not installed.
    """
    from relevo.trajectories import torch_batch

    return torch_batch.tensors(batch)


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

    return parquet.write(_checked(run), Path(path), progress)


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

    return relayrl_csv.write(_checked(run), Path(path), progress)


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
    return minari_dataset.write(_checked(run), dataset_id, given, progress)


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


def _checked(run: object) -> Run:
    if not isinstance(run, Run):
        kind = type(run).__name__
        raise ConfigError(
            f"an export takes a run, as relevo.open_run gives it, but {kind} came; for some of its episodes write "
            "to_run(run.episodes(…), folder) first, and export that"
        )
    return run
