"""What the commands on run folders share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self, TypeAlias

import typer
from rich.filesize import decimal
from rich.markup import escape
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

from relevo.cli.terminal import messages

if TYPE_CHECKING:
    from collections.abc import Sequence

Folder: TypeAlias = Annotated[
    Path, typer.Argument(metavar="DIR", help="The run folder, such as runs/a.", show_default=False)
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object on standard output.")]


SMALL, LARGE = 0.01, 1e6


class ReadingBar:
    """Shows how much was read, on standard error, if that is a terminal.

    `with ReadingBar("writing a.parquet", run.step_count) as bar: to_parquet(run, "a.parquet", progress=bar.show)`
    """

    def __init__(self, doing: str, total: int | None = None) -> None:
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            TaskProgressColumn(),
            TextColumn("{task.fields[told]}"),
            TimeRemainingColumn(compact=True),
            console=messages(),
            transient=True,
            disable=not messages().is_terminal,
        )
        self._task = self._bar.add_task(escape(doing), total=total, told="")

    def show(self, episodes: int, steps: int) -> None:
        """Tells the episodes and steps so far; the total is one of steps."""
        self._bar.update(self._task, completed=steps, told=f"{episodes:,} episodes, {steps:,} steps")

    def show_bytes(self, count: int) -> None:
        """Tells the bytes so far; the total is one of bytes."""
        self._bar.update(self._task, completed=count, told=decimal(count))

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._bar.stop()


def problems(title: str, texts: Sequence[str]) -> Text:
    """A list of what is wrong."""
    return Text.assemble((f"{title}\n", "bold red"), "\n".join(f"  {text}" for text in texts))


def short(number: float) -> str:
    """A number with two decimals if any, or four digits where it is very small or very large."""
    return f"{number:,.2f}".removesuffix(".00") if number == 0 or SMALL <= abs(number) < LARGE else f"{number:.4g}"
