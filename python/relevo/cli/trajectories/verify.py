"""`relevo trajectories verify`: are all bytes those that were written?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from rich.filesize import decimal

from relevo._core import Run
from relevo.cli.terminal import facts, output, print_json
from relevo.cli.trajectories.reading import Folder, Json, ReadingBar, problems

if TYPE_CHECKING:
    from pathlib import Path


def verify(folder: Folder, json: Json = False) -> None:
    """Reads every byte of a run, and compares it with the checksums that were noted when it was written.

    [bold]After a copy, a crash, or years on a disk:[/bold]

        relevo trajectories verify runs/a

    [bold]Before it is used, in a script:[/bold]

        relevo trajectories verify runs/a && python train.py

    A run whose process was killed is sound: what it had not yet written was never
    there. Nothing is changed. The exit code is 1 where the run is not sound;
    [bold]relevo trajectories repair[/bold] then keeps what is whole.
    """
    run = Run.open(folder)
    with ReadingBar("comparing", run.nbytes) as bar:
        report = run.verify(bar.show_bytes)
    if json:
        print_json(report)
    else:
        print_report(folder, report, [("sound", "yes" if report["sound"] else "no")])
    if not report["sound"]:
        if not json:
            advice = f"relevo trajectories repair {folder} keeps what is whole"
            kept = ", and the damaged files beside it under names that end with .damaged" if report["lost"] else ""
            output().print(f"{advice}{kept}.", soft_wrap=True)
        raise typer.Exit(1)


def print_report(folder: Path, report: dict[str, Any], first: list[tuple[str, str]]) -> None:
    """What was found, for people."""
    batches = "1 batch" if report["batches"] == 1 else f"{report['batches']:,} batches"
    rows = [*first, ("whole", f"{batches}; {decimal(report['bytes'])} were compared")]
    if report["unclosed_segments"]:
        count = report["unclosed_segments"]
        files = "1 segment" if count == 1 else f"{count:,} segments"
        rows.append(("not closed", f"{files}: still written, or left by a process that was killed"))
    if report["lost_episodes"]:
        episodes = "1 episode" if report["lost_episodes"] == 1 else f"{report['lost_episodes']:,} episodes"
        rows.append(("in damage", f"{report['lost_steps']:,} steps of {episodes}"))
    console = output()
    console.print(facts(rows, title=str(folder)))
    for title, name in (("lost", "lost"), ("damaged, with all steps there", "problems")):
        if report[name]:
            console.print(problems(title, report[name]), soft_wrap=True)
