"""What the commands on run folders share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self, TypeAlias

import typer
from rich.progress import Progress as Bar
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from relevo.cli.terminal import messages

if TYPE_CHECKING:
    from types import TracebackType

Folder: TypeAlias = Annotated[
    Path, typer.Argument(metavar="DIR", help="The run folder, such as runs/a.", show_default=False)
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object on standard output.")]


SMALL, LARGE = 0.01, 1e6


class ReadingBar:
    """Shows how many episodes and steps were read, on standard error, if that is a terminal.

    `with ReadingBar("reading") as bar: episode_index(run, bar.show)`
    """

    def __init__(self, doing: str) -> None:
        self._bar = Bar(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TextColumn("{task.fields[episodes]:,} episodes, {task.completed:,.0f} steps"),
            TimeElapsedColumn(),
            console=messages(),
            transient=True,
            disable=not messages().is_terminal,
        )
        self._task = self._bar.add_task(doing, total=None, episodes=0)

    def show(self, episodes: int, steps: int) -> None:
        """Tells what was read so far."""
        self._bar.update(self._task, completed=steps, episodes=episodes)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._bar.stop()


def short(number: float) -> str:
    """A number with two decimals if any, or four digits where it is very small or very large."""
    return f"{number:,.2f}".removesuffix(".00") if number == 0 or SMALL <= abs(number) < LARGE else f"{number:.4g}"
