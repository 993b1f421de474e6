"""A run as pictures, by matplotlib."""

from __future__ import annotations

import io
import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from relevo.trajectories.packages import needed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import FigureBase

    from relevo.trajectories.curves import Curves
    from relevo.trajectories.histogram import Histogram
    from relevo.trajectories.index import EpisodeIndex

MOST_COLOURS = 8
"""Versions with a colour and a name each; more have a colour scale."""
LENGTH_BINS = 60
MOST_LABELS = 12
COLUMNS = 4
WIDTH = 11.0
RETURNS_HEIGHT, LENGTHS_HEIGHT, ACTIONS_HEIGHT = 3.6, 2.6, 2.2
"""Of a picture, in inches; of actions for each row of histograms."""
ENDS = (("terminated", "#4477aa"), ("truncated", "#ccbb44"), ("unfinished", "#bbbbbb"))
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee8866", "#999933")
"""Told apart by people who are colour-blind, too."""


@dataclass(frozen=True)
class Plot:
    """What is drawn of a run."""

    title: str
    index: EpisodeIndex
    curves: Curves
    actions: list[Histogram]
    actions_left_out: int
    """Elements of an action of which no histogram is drawn."""

    def save_png(self, path: Path) -> None:
        """Writes all pictures as one PNG."""
        heights = [RETURNS_HEIGHT, LENGTHS_HEIGHT, self._action_height()]

        def draw(figure: FigureBase) -> None:
            figure.suptitle(_plain(self.title))
            parts = figure.subfigures(3, 1, height_ratios=heights, squeeze=False)
            for part, own in zip(parts.flat, (self._returns, self._lengths, self._actions), strict=True):
                own(part)

        path.write_bytes(_rendered(draw, sum(heights), "png"))

    def images(self) -> list[tuple[str, str]]:
        """Each picture as an SVG element, with what it shows in words."""
        return [
            (_svg(self._returns, RETURNS_HEIGHT, "Returns over time"), self._returns_in_words()),
            (_svg(self._lengths, LENGTHS_HEIGHT, "Lengths of episodes"), self._lengths_in_words()),
            (_svg(self._actions, self._action_height(), "Actions"), self._actions_in_words()),
        ]

    def _returns(self, figure: FigureBase) -> None:
        axes = figure.subplots()
        strange = self.curves.left_out
        note = f" (without {strange:,} episodes whose return is NaN, infinite or beyond 1e300)" if strange else ""
        axes.set(title=f"Returns over time{note}", xlabel="steps recorded", ylabel="return")
        axes.margins(x=0.01)
        if not self.curves.points:
            _say(axes, "no episode has ended with a return that can be drawn")
            return
        if self.curves.band is not None:
            at, low, high = self.curves.band
            axes.fill_between(
                at, low, high, color="#000000", alpha=0.1, linewidth=0, label="eight tenths of the episodes"
            )
        several = len({points.policy for points in self.curves.points}) > 1
        many = len(self.curves.points) > MOST_COLOURS
        versions = [points.version for points in self.curves.points]
        most = max(int(points.episodes.max()) for points in self.curves.points)
        for place, points in enumerate(self.curves.points):
            label = f"version {points.version}" + (f" of {points.policy}" if several else "")
            style: dict[str, Any] = {
                "c": [points.version] * len(points.at),
                "vmin": min(versions),
                "vmax": max(versions),
            }
            if not many:
                style = {"color": COLOURS[place], "label": _plain(label)}
            # An area that grows with the number of episodes: else a rare long one looks like many short ones.
            area = 2 + 14 * points.episodes / most if most > 1 else 9
            drawn = axes.scatter(points.at, points.returns, s=area, alpha=0.7, linewidths=0, **style)
        if many:
            figure.colorbar(drawn, ax=axes, label="policy version", pad=0.01)
        for place, average in enumerate(self.curves.averages):
            label = f"mean of {average.episodes:,} episodes" if average.episodes > 1 else "return"
            label += f", {average.policy}" if several else ""
            dashes = ("-", "--", ":", "-.")[place % 4]
            axes.plot(average.at, average.returns, dashes, color="black", linewidth=1.4, label=_plain(label))
        figure.legend(fontsize="small", loc="outside right upper", frameon=False)
        _whole(axes.xaxis)

    def _lengths(self, figure: FigureBase) -> None:
        axes = figure.subplots()
        axes.set(title="Lengths of episodes", xlabel="steps", ylabel="episodes")
        steps = self.index.steps
        if not len(steps):
            _say(axes, "no episode is recorded")
            return
        shortest, longest = int(steps.min()), int(steps.max())
        width = max(1, math.ceil((longest - shortest + 1) / LENGTH_BINS))
        edges = np.arange(shortest, longest + width + 1, width) - 0.5
        ended, terminated = self.index.complete, self.index.terminated
        kinds = (ended & terminated, ended & ~terminated, ~ended)
        below = np.zeros(len(edges) - 1)
        for (name, colour), chosen in zip(ENDS, kinds, strict=True):
            if chosen.any():
                counts = np.histogram(steps[chosen], edges)[0]
                axes.bar(
                    edges[:-1], counts, width, below, align="edge", color=colour, label=f"{name}: {chosen.sum():,}"
                )
                below += counts
        # Bars that are stacked leave no room above the highest one.
        axes.set_ylim(0, 1.05 * below.max())
        figure.legend(fontsize="small", loc="outside right upper", frameon=False)
        _whole(axes.yaxis)
        _whole(axes.xaxis)

    def _actions(self, figure: FigureBase) -> None:
        figure.suptitle("Actions", fontsize="large")
        if not self.actions:
            _say(figure.subplots(), "no action is recorded")
            return
        # One alone does not fill the width.
        columns = max(2, min(COLUMNS, len(self.actions)))
        grid = figure.subplots(math.ceil(len(self.actions) / columns), columns, squeeze=False)
        for axes, histogram in zip(grid.flat, self.actions, strict=False):
            _draw_histogram(axes, histogram)
        for axes in grid.flat[len(self.actions) :]:
            axes.set_axis_off()
        for axes in grid[:, 0]:
            axes.set_ylabel("% of steps")

    def _action_height(self) -> float:
        return 0.6 + ACTIONS_HEIGHT * math.ceil(max(1, len(self.actions)) / COLUMNS)

    def _returns_in_words(self) -> str:
        where = "stands at the number of steps that were recorded when it ended; its colour tells the policy's version"
        if self.curves.band is None:
            return f"Each point is an episode. It {where}."
        return f"Each point is the mean of a stretch of the run, the larger the more episodes it was. It {where}."

    def _lengths_in_words(self) -> str:
        return (
            "How many episodes took how many steps. Unfinished ones were under way when their actor or the run ended."
        )

    def _actions_in_words(self) -> str:
        text = "How often each action was chosen; for actions of several numbers, each of them apart."
        if self.actions_left_out:
            text += f" {self.actions_left_out:,} further numbers are not shown."
        strange = sum(histogram.not_finite for histogram in self.actions)
        if strange:
            text += f" {strange:,} numbers are left out, that are NaN, infinite or beyond 1e300."
        return text


def matplotlib_is_here() -> None:
    """Raises a `ConfigError` where matplotlib is not installed."""
    needed("matplotlib", "plot", "plotting")


def _draw_histogram(axes: Axes, histogram: Histogram) -> None:
    total = max(1, int(histogram.counts.sum()))
    filled = np.flatnonzero(histogram.counts)
    axes.set_title(_plain(histogram.name), fontsize="medium")
    if not len(filled):
        _say(axes, "no finite number")
        return
    first, last = filled[0], filled[-1] + 1
    edges, shares = histogram.edges[first : last + 1], 100 * histogram.counts[first:last] / total
    if histogram.whole:
        axes.bar(edges[:-1], shares, 0.8, color=COLOURS[0])
        if last - first <= MOST_LABELS:
            axes.set_xticks(edges[:-1])
    else:
        axes.stairs(shares, edges, fill=True, color=COLOURS[0])
    axes.set_ylim(bottom=0)


def _say(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color="#666666")
    axes.set(xticks=[], yticks=[])


def _whole(axis: Axis) -> None:
    """Marks an axis at whole numbers alone, with commas between thousands."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axis.set_major_formatter(lambda number, _place: f"{number:,.0f}")


def _plain(text: str) -> str:
    """Text in which dollars are no formulas."""
    return text.replace("$", r"\$")


def _svg(draw: Callable[[FigureBase], None], height: float, label: str) -> str:
    text = _rendered(draw, height, "svg").decode()
    # What stands before is for files of its own.
    return text[text.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def _rendered(draw: Callable[[FigureBase], None], height: float, kind: str) -> bytes:
    """The file of a figure that `draw` fills."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    buffer = io.BytesIO()
    # Text stays text in SVG: browsers have signs for every script, the font that comes with matplotlib has not.
    settings = {"svg.fonttype": "none", "axes.spines.top": False, "axes.spines.right": False}
    with mpl.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure = Figure((WIDTH, height), layout="constrained")
        draw(figure)
        figure.savefig(buffer, format=kind, dpi=120, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()
