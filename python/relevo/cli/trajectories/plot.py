"""`relevo trajectories plot`: a run as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from relevo._core import Run
from relevo.cli.terminal import facts, output
from relevo.cli.trajectories.info import summary_rows
from relevo.cli.trajectories.reading import Folder, ReadingBar
from relevo.errors import TrajectoryError
from relevo.trajectories.curves import return_curves
from relevo.trajectories.histogram import action_histograms
from relevo.trajectories.index import EpisodeIndex
from relevo.trajectories.page import page
from relevo.trajectories.plot import Plot, matplotlib_is_here
from relevo.trajectories.summary import Summary


def plot(
    folder: Folder,
    out: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="FILE.png or FILE.html; may be given twice. Without it, both are written beside the run folder.",
            show_default=False,
        ),
    ] = None,
) -> None:
    r"""Draws returns over time for each policy version, lengths of episodes, and how often each action was chosen.

    [bold]As runs/a.png and runs/a.html:[/bold]

        relevo trajectories plot runs/a

    [bold]One page that can be sent to others, with nothing beside it:[/bold]

        relevo trajectories plot runs/a --out report.html

    Long runs are brought down to means of stretches, so that a picture of
    millions of episodes stays small. Files that are there are replaced.
    It takes matplotlib: pip install "relevo\[plot]".
    """
    name = folder.resolve()
    paths = out or [name.with_name(f"{name.name}{suffix}") for suffix in (".png", ".html")]
    for path in paths:
        if path.suffix not in {".png", ".html"}:
            raise typer.BadParameter(f"expected a file whose name ends with .png or .html, but {path} came")
    matplotlib_is_here()
    run = Run.open(folder)
    index = EpisodeIndex.of(run)
    with ReadingBar("counting actions", run.step_count) as bar:
        actions, left_out = action_histograms((episode.actions for episode in run.episodes()), bar.show)
    drawn = Plot(str(folder), index, return_curves(index), actions, left_out)
    for path in paths:
        try:
            if path.suffix == ".png":
                drawn.save_png(path)
            else:
                text = page(str(folder), summary_rows(Summary.of(run, index)), drawn.images())
                path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise TrajectoryError(f"{path} cannot be written: {error}") from error
    output().print(facts([("written", str(path)) for path in paths], title=str(folder)))
