"""`relevo trajectories export`: a run in the formats of other tools."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from relevo import trajectories
from relevo._core import Run
from relevo.cli.terminal import facts, output, print_json
from relevo.cli.trajectories.reading import Folder, Json, ReadingBar


class Format(StrEnum):
    """What a run can be written as."""

    PARQUET = "parquet"
    CSV = "csv"
    MINARI = "minari"


def export(  # noqa: PLR0917  (typer's way)
    folder: Folder,
    target: Annotated[
        str,
        typer.Argument(
            metavar="OUT",
            help="The Parquet file; the folder of CSV files; the name of the Minari dataset.",
            show_default=False,
        ),
    ],
    to: Annotated[
        Format, typer.Option(metavar="FORMAT", help="parquet, csv (as RelayRL has it) or minari.", show_default=False)
    ],
    env: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Gymnasium's id of the environment, for minari.", show_default=False),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only what this policy played, for minari.", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Writes a run in the format of another tool.

    [bold]One Parquet file, with all columns of the run:[/bold]

        relevo trajectories export runs/a --to parquet a.parquet

    [bold]A Minari dataset, with the spaces of its environment:[/bold]

        relevo trajectories export runs/a --to minari a-v0 --env CartPole-v1

    [bold]A folder of CSV files with RelayRL's columns:[/bold]

        relevo trajectories export runs/a --to csv a-csv

    Nothing that is there is overwritten, and an export that fails leaves nothing.
    A run that is damaged is not exported in part: repair it first.
    docs/trajectories.md says what each format cannot hold.
    """
    if to != Format.MINARI and (env is not None or policy is not None):
        raise typer.BadParameter("--env and --policy are for --to minari")
    run = Run.open(folder)
    with ReadingBar(f"writing {target}", run.step_count) as bar:
        if to == Format.PARQUET:
            result = trajectories.to_parquet(run, target, progress=bar.show)
        elif to == Format.CSV:
            result = trajectories.to_csv(run, target, progress=bar.show)
        else:
            result = trajectories.to_minari(run, target, env=env, policy=policy, progress=bar.show)
    if json:
        print_json(asdict(result) | {"paths": [str(path) for path in result.paths]})
        return
    rows = [("written", f"{result.episodes:,} episodes, {result.steps:,} steps")]
    if result.left_out:
        rows.append(("left out", f"{result.left_out:,} episodes, whose final observation is not known"))
    rows += [("in", str(path)) for path in result.paths]
    reading = {Format.PARQUET: "from_parquet", Format.CSV: "from_csv", Format.MINARI: "from_minari"}[to]
    rows.append(("read by", f'relevo.trajectories.{reading}("{target}")'))
    output().print(facts(rows, title=str(folder)))
