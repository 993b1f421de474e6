"""What a workload measured: figures, goals and checks, printed or as JSON."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True)
class Figure:
    """One side of one case."""

    case: str
    side: str
    unit: str
    p50: float
    low: float
    """Lowest of the rounds' medians."""
    high: float
    """Highest of them."""
    p99: float | None = None
    """Over all calls of all rounds; None where a round is one measurement."""
    note: str = ""


@dataclass(frozen=True)
class Goal:
    """What was asked for, and what came. Measurements and bounds of one case are from the same rounds."""

    case: str
    asked: str
    measured: float
    """Median over the rounds."""
    low: float
    high: float
    bound: float
    at_most: bool
    """Whether the bound is an upper one."""
    unit: str = ""

    @property
    def met(self) -> bool:
        """Whether the median keeps to the bound."""
        return self.measured <= self.bound if self.at_most else self.measured >= self.bound


@dataclass
class Report:
    """Everything that one workload has to say."""

    title: str
    figures: list[Figure] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    def check(self, what: str, holds: bool) -> None:
        """Notes a result that was checked.

        Raises:
            SystemExit: it does not hold: times of wrong results are worth nothing.
        """
        if not holds:
            sys.exit(f"wrong result in `{self.title}`: this does not hold: {what}")
        self.checks.append(what)

    def to_json(self) -> dict[str, Any]:
        """As plain data, with each goal's verdict."""
        data = dataclasses.asdict(self)
        for goal, plain in zip(self.goals, data["goals"], strict=True):
            plain["met"] = goal.met
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The report that `to_json` was made of."""
        goals = [Goal(**{key: value for key, value in goal.items() if key != "met"}) for goal in data["goals"]]
        figures = [Figure(**figure) for figure in data["figures"]]
        return cls(data["title"], figures, goals, data["checks"], data["versions"])

    def lines(self) -> Iterator[str]:
        """The report as text."""
        yield f"## {self.title}"
        yield ", ".join(f"{name} {version}" for name, version in self.versions.items())
        yield ""
        rows = [("case", "side", "p50", "p99", "medians of rounds", "unit", "")]
        for figure in self.figures:
            p99 = "" if figure.p99 is None else _number(figure.p99)
            spread = f"{_number(figure.low)} … {_number(figure.high)}"
            rows.append((figure.case, figure.side, _number(figure.p50), p99, spread, figure.unit, figure.note))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        for row in rows:
            aligned = (
                cell.rjust(width) if column in {2, 3, 4} else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            yield "  ".join(aligned).rstrip()
        yield ""
        for goal in self.goals:
            verdict = "met" if goal.met else "NOT MET"
            unit = f" {goal.unit}" if goal.unit else ""
            sign = "≤" if goal.at_most else "≥"
            yield (
                f"goal, {goal.case}: {goal.asked}: {_number(goal.measured)} {sign} {_number(goal.bound)}{unit} "
                f"(rounds {_number(goal.low)} … {_number(goal.high)}): {verdict}"
            )
        yield from (f"checked: {check}" for check in self.checks)


def _number(value: float) -> str:
    if abs(value) >= 1_000:  # noqa: PLR2004 : where a thousands separator begins
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"  # noqa: PLR2004 : three digits at least


def main(workload: Callable[[Path, bool], Report]) -> None:
    """Runs a workload as a program: `workload(policies, quick)`, its report as JSON on the standard output."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--policies", type=Path, required=True, help="the folder that policies.py has written")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    json.dump(workload(options.policies, options.quick).to_json(), sys.stdout)
