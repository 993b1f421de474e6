"""The live progress bar of a collection."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Self

from rich.progress import BarColumn, ProgressColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Column
from rich.text import Text

from relevo.cli.terminal import messages

if TYPE_CHECKING:
    from rich.progress import Task

    from relevo.progress import Progress


class ProgressBar:
    """Shows how far a collection is, on standard error, if that is a terminal.

    `with ProgressBar("CartPole-v1", steps=200_000) as bar: relevo.collect(…, progress=bar.show)`
    """

    def __init__(self, description: str, *, steps: int | None = None, episodes: int | None = None) -> None:
        self.so_far: Progress | None = None
        """What was shown last; its numbers move on with the collection."""
        self._count_episodes = steps is None
        # Drawn by `show` alone: a thread that draws would take the interpreter from the collection.
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            TaskProgressColumn(),
            _Numbers("episodes" if self._count_episodes else "steps"),
            TimeRemainingColumn(compact=True),
            console=messages(),
            auto_refresh=False,
        )
        self._bar.disable = not self._bar.console.is_terminal
        self._task = self._bar.add_task(description, total=episodes if steps is None else steps, so_far=None)

    def show(self, so_far: Progress) -> None:
        """Draws the bar anew; for the argument `progress` of `relevo.collect`."""
        self.so_far = so_far
        done = so_far.episodes if self._count_episodes else so_far.steps
        self._bar.update(self._task, completed=done, so_far=so_far, refresh=True)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._bar.stop()


class _Numbers(ProgressColumn):
    """Steps or episodes done, steps a second, and the mean return of late."""

    def __init__(self, unit: str) -> None:
        super().__init__(table_column=Column(no_wrap=True))
        self._unit = unit

    def render(self, task: Task) -> Text:
        so_far: Progress | None = task.fields["so_far"]
        done = f"{int(task.completed):,} {self._unit}"
        if so_far is None or so_far.seconds <= 0:
            return Text(done)
        recent = so_far.recent_return()
        shown = "–" if math.isnan(recent) else f"{recent:.1f}"
        return Text(f"{done} at {so_far.steps / so_far.seconds:,.0f}/s, return {shown}")
