"""Runs as Parquet files, and back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from relevo.errors import TrajectoryError
from relevo.trajectories.episode_data import EpisodeData, read_run
from relevo.trajectories.export_result import ExportResult
from relevo.trajectories.files import Counter, refuse_existing, removed_on_failure
from relevo.trajectories.packages import needed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from relevo._core import Run

READ_ROWS = 16_384


def write(run: Run, path: Path, progress: Callable[[int, int], None] | None) -> ExportResult:
    """See `relevo.trajectories.to_parquet`."""
    parquet = _parquet("writing Parquet")
    from relevo.trajectories.table import batches_of

    refuse_existing(path)
    counter = Counter(progress)
    metadata = {"relevo.run": json.dumps(run.info)}
    writers: dict[Any, Any] = {}
    paths: list[Path] = []
    with removed_on_failure() as made:
        try:
            for batch in batches_of(counter.counted(read_run(run))):
                schema = batch.schema.with_metadata(metadata)
                # Written as a string: types compare equal only with their metadata, and this is the whole of it.
                key = schema.to_string(show_field_metadata=True, show_schema_metadata=False)
                if key not in writers:
                    paths.append(path if not paths else path.with_stem(f"{path.stem}-{len(paths)}"))
                    refuse_existing(paths[-1])
                    made.append(_partial(paths[-1]))
                    writers[key] = parquet.ParquetWriter(made[-1], schema, compression="zstd")
                writers[key].write_batch(batch.replace_schema_metadata(metadata))
        finally:
            for writer in writers.values():
                writer.close()
        if not paths:
            raise TrajectoryError(f"{run.path} holds no episodes, so that the columns of a Parquet file are not known")
        for final in paths:
            _partial(final).replace(final)
    return ExportResult(tuple(paths), counter.episodes, counter.steps)


def read(path: Path) -> Iterator[EpisodeData]:
    """See `relevo.trajectories.from_parquet`."""
    parquet = _parquet("reading Parquet")
    from pyarrow import ArrowException

    from relevo.trajectories.table import episodes_of

    try:
        with parquet.ParquetFile(path) as file:
            yield from episodes_of(file.iter_batches(READ_ROWS))
    except TrajectoryError as error:
        raise TrajectoryError(f"{path}: {error}") from None
    except (OSError, ArrowException) as error:
        raise TrajectoryError(f"{path} cannot be read as Parquet: {error}") from error


def run_info(path: Path) -> dict[str, Any] | None:
    """`run.json` of the run that `to_parquet` wrote into the file; None in files of others.

    Raises:
        ConfigError: pyarrow is not installed.
        TrajectoryError: the file cannot be read.
    """
    parquet = _parquet("reading Parquet")
    from pyarrow import ArrowException

    try:
        text = (parquet.read_schema(path).metadata or {}).get(b"relevo.run")
        info: dict[str, Any] | None = None if text is None else json.loads(text)
    except (OSError, ArrowException, ValueError) as error:
        raise TrajectoryError(f"{path} cannot be read as Parquet: {error}") from error
    return info


def _parquet(purpose: str) -> Any:  # noqa: ANN401  (a module)
    return needed("pyarrow.parquet", "parquet", purpose)


def _partial(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")
