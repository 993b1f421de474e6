"""`relevo trajectories repair`: makes a damaged run whole again."""

from __future__ import annotations

from relevo import trajectories
from relevo._core import Run
from relevo.cli.terminal import print_json
from relevo.cli.trajectories.reading import Folder, Json, ReadingBar
from relevo.cli.trajectories.verify import print_report


def repair(folder: Folder, json: Json = False) -> None:
    """Makes a damaged run whole again: what can be verified stays, and what is lost is told.

    [bold]What would it find? Nothing is changed by:[/bold]

        relevo trajectories verify runs/a

    [bold]Then, with a copy at hand if the run is dear:[/bold]

        relevo trajectories repair runs/a

    Segments that are damaged, or were never closed, are written anew from the batches
    that are whole; where that loses something, the old file stays as
    [bold]NNNNNN.arrow.damaged[/bold]. Files of which nothing can be read are renamed to
    [bold]NNNNNN.arrow.unreadable[/bold]. What is sound is not touched, so a second
    repair changes nothing. A run that is still written to is refused.

    Reading needs no repair: a run that was killed or damaged is read as far as it is
    whole. Exports and other programs want whole files.
    """
    with ReadingBar("comparing", Run.open(folder).nbytes) as bar:
        report = trajectories.repair(folder, progress=bar.show_bytes)
    if json:
        print_json(report)
        return
    if report["sound"] and not report["unclosed_segments"]:
        result = "nothing was to be done"
    elif report["lost"]:
        result = "what is whole was kept; something is lost"
    else:
        result = "all steps were kept"
    print_report(folder, report, [("repair", result)])
