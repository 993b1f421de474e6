"""`relevo trajectories info`: a run in numbers."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from rich import box
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from relevo._core import Run
from relevo.cli.terminal import facts, output, print_json
from relevo.cli.trajectories.reading import Folder, Json, problems, short
from relevo.trajectories.index import EpisodeIndex
from relevo.trajectories.summary import Spread, Summary

if TYPE_CHECKING:
    from relevo.trajectories.summary import VersionSummary

MOST_VERSIONS = 12
"""Lines of the table of versions; of more, those in the middle are left out."""


def info(folder: Folder, json: Json = False) -> None:
    """Tells what is in a run: episodes, steps, returns, lengths, policy versions, sizes.

    [bold]What did this run come to?[/bold]

        relevo trajectories info runs/a

    [bold]In a script:[/bold]

        relevo trajectories info runs/a --json | jq .returns.mean

    It reads sidecars alone, so it is quick for runs of any length; also for
    those that are still being written, were killed, or are damaged: what is
    known to be wrong is told, and [bold]relevo trajectories verify[/bold] finds the rest.
    Returns and lengths are those of the episodes that ended.
    """
    run = Run.open(folder)
    summary = Summary.of(run, EpisodeIndex.of(run))
    if json:
        print_json(asdict(summary))
        return
    console = output()
    console.print(facts(summary_rows(summary), title=str(folder)))
    if summary.versions:
        console.print(_versions(summary.versions))
    if summary.problems:
        console.print(problems("damaged", summary.problems))
        console.print(f"relevo trajectories repair {folder} keeps what is whole.", soft_wrap=True)
    if not summary.episodes:
        console.print("No episode is recorded yet: they are written when they end, or when the run is closed.")


def summary_rows(summary: Summary) -> list[tuple[str, str]]:
    """The facts of a run, for people."""
    rows = [
        ("episodes", f"{summary.episodes:,}{_ends(summary)}"),
        ("steps", f"{summary.steps:,}"),
    ]
    if summary.lengths is not None:
        rows += [("return", _returns(summary)), ("length", _spread(summary.lengths))]
    rewards = (
        (summary.rewards_nan, "NaN"),
        (summary.rewards_infinite, "infinite"),
        (summary.rewards_missing, "never came, as the run or the actor ended before"),
    )
    told = ", ".join(f"{count:,} {what}" for count, what in rewards if count)
    if told:
        rows.append(("rewards", told))
    if summary.began is not None:
        speed = f", {summary.steps / summary.seconds:,.0f} steps/s" if summary.seconds > 0 else ""
        rows.append(("played", f"{summary.began} to {summary.ended}, {summary.seconds:,.1f} s{speed}"))
    size = decimal(summary.bytes)
    if summary.bytes_per_step is not None:
        files = "1 segment" if summary.segments == 1 else f"{summary.segments:,} segments"
        size += f" in {files}, {summary.bytes_per_step:,.0f} bytes a step"
    return [
        *rows,
        ("on disk", size),
        ("seed", str(summary.seed)),
        ("run", f"{summary.run_id}, begun {summary.created} by Relevo {summary.library_version}"),
    ]


def _ends(summary: Summary) -> str:
    ends = ((summary.terminated, "terminated"), (summary.truncated, "truncated"), (summary.unfinished, "unfinished"))
    told = ", ".join(f"{count:,} {name}" for count, name in ends if count)
    return f": {told}" if told else ""


def _returns(summary: Summary) -> str:
    strange = summary.returns_not_finite
    if summary.returns is None:
        return f"NaN or infinite in all {strange:,}"
    return _spread(summary.returns) + (f"; without {strange:,} that are NaN or infinite" if strange else "")


def _spread(spread: Spread) -> str:
    if spread.min == spread.max:
        return f"{short(spread.mean)} each"
    return (
        f"{short(spread.mean)} ± {short(spread.std)}, median {short(spread.median)}, "
        f"from {short(spread.min)} to {short(spread.max)}"
    )


def _versions(versions: list[VersionSummary]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="policies", title_justify="left", title_style="bold", pad_edge=False)
    table.add_column("policy", style="cyan", overflow="fold")
    for name in ("version", "episodes ended", "mean return", "steps"):
        table.add_column(name, justify="right", overflow="fold")
    left_out = len(versions) - MOST_VERSIONS if len(versions) > MOST_VERSIONS + 1 else 0
    head = MOST_VERSIONS // 2 if left_out else len(versions)
    for place, own in enumerate(versions):
        if place == head:
            table.add_row(Text(f"… {left_out:,} more", style="dim"))
        if place < head or place >= head + left_out:
            shown = "–" if own.mean_return is None else short(own.mean_return)
            table.add_row(Text(own.policy), f"{own.version}", f"{own.episodes:,}", shown, f"{own.steps:,}")
    return table
