"""`relevo trajectories import`: a run folder of episodes that other tools wrote."""

from __future__ import annotations

from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from relevo import trajectories
from relevo.cli.terminal import facts, output, print_json
from relevo.cli.trajectories.export import Format
from relevo.cli.trajectories.reading import Json, ReadingBar
from relevo.record_settings import Compression
from relevo.trajectories.parquet import run_info

READERS = {
    Format.PARQUET: trajectories.from_parquet,
    Format.CSV: trajectories.from_csv,
    Format.MINARI: trajectories.from_minari,
}


def import_run(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="Parquet files; CSV files, or folders of them; names of Minari datasets.",
            show_default=False,
        ),
    ],
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The run folder to make, such as runs/b.", show_default=False)
    ],
    from_: Annotated[
        Format,
        typer.Option(
            "--from", metavar="FORMAT", help="parquet, csv (as RelayRL has it) or minari.", show_default=False
        ),
    ],
    compression: Annotated[Compression, typer.Option(metavar="HOW", help="none, lz4 (fast) or zstd (small).")] = "none",
    json: Json = False,
) -> None:
    """Makes a run folder of episodes that were exported, or that another tool wrote.

    [bold]Parquet files, back to a run:[/bold]

        relevo trajectories import a.parquet runs/b --from parquet

    [bold]A Minari dataset:[/bold]

        relevo trajectories import D4RL/door/human-v2 runs/door --from minari

    [bold]RelayRL's trajectories:[/bold]

        relevo trajectories import a-csv runs/c --from csv

    Nothing that is there is overwritten, and an import that fails leaves nothing.
    docs/trajectories.md says what each format does not tell.
    """
    config: dict[str, Any] = {"imported_from": from_.value, "sources": sources}
    original = run_info(Path(sources[0])) if from_ == Format.PARQUET else None
    if original is not None:
        config["run"] = original
    episodes = chain.from_iterable(READERS[from_](source) for source in sources)
    with ReadingBar(f"writing {folder}") as bar:
        result = trajectories.to_run(
            episodes,
            folder,
            compression=compression,
            seed=original["seed"] if original else 0,
            config=config,
            progress=bar.show,
        )
    if json:
        print_json(asdict(result) | {"paths": [str(path) for path in result.paths]})
        return
    rows = [
        ("written", f"{result.episodes:,} episodes, {result.steps:,} steps"),
        ("read by", f'relevo.open_run("{folder}")'),
    ]
    output().print(facts(rows, title=str(folder)))
