"""`relevo doctor`: whether the main job runs on a machine, and what to do where it does not."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from relevo.cli.machine import Machine, machine, versions
from relevo.cli.terminal import facts, output, print_error, print_json
from relevo.cli.trials import MAIN_JOB, Finding, State, findings

if TYPE_CHECKING:
    from collections.abc import Sequence

STYLES: dict[State, str] = {"ok": "green", "fails": "bold red", "mind": "yellow", "absent": "dim"}


def doctor(
    json: Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object on standard output.")] = False,
) -> None:
    """Tells whether Relevo works on this machine, and what to do where it does not.

    It tries what it tells of, and removes the files that it makes.

    [bold]Why does something not work?[/bold]

        relevo doctor

    [bold]For a bug report, or a script:[/bold]

        relevo doctor --json

    Exit codes: 0 the main job runs here, 1 it does not.
    """
    here, installed, tried = machine(), versions(), findings()
    failed = [finding.name for finding in tried if finding.state == "fails"]
    # Where something that it needs fails, the main job fails for that, and is no reason itself.
    causes = [name for name in failed if name != MAIN_JOB]
    if json:
        print_json(
            {
                "ready": not failed,
                "versions": installed,
                "machine": asdict(here),
                "findings": [asdict(finding) for finding in tried],
            }
        )
    else:
        _print(here, installed, tried)
    if failed:
        because = f", because of: {', '.join(causes)}" if causes else ""
        print_error(f"the main job cannot run here{because}; what to do stands beside it")
        raise typer.Exit(1)


def _print(here: Machine, installed: dict[str, str | None], tried: Sequence[Finding]) -> None:
    console = output()
    console.print(facts([(name, version or "not installed") for name, version in installed.items()], title="versions"))
    console.print(facts(_facts(here), title="machine"))
    console.print(_tried(tried))
    if all(finding.state != "fails" for finding in tried):
        console.print("The main job runs here: relevo run --policy FILE --env ID --out DIR", soft_wrap=True)


def _facts(here: Machine) -> list[tuple[str, str]]:
    of = f" of {here.processors_there}" if here.processors_there not in {None, here.processors} else ""
    rows = [
        ("system", f"{here.os}, {here.architecture}"),
        ("processors", f"{here.processors}{of}"),
        ("memory", "not known" if here.memory is None else decimal(here.memory)),
    ]
    if here.onnxruntime_variable is not None:
        rows.append(("ORT_DYLIB_PATH", here.onnxruntime_variable))
    return rows


def _tried(tried: Sequence[Finding]) -> Table:
    table = Table(
        box=box.SIMPLE,
        show_header=False,
        title="what was tried",
        title_justify="left",
        title_style="bold",
        pad_edge=False,
    )
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in tried:
        style = STYLES[finding.state]
        told = Text(finding.found, "dim" if finding.state == "absent" else "")
        if finding.remedy is not None:
            told.append(f"\nto do: {finding.remedy}", style)
        table.add_row(Text(finding.state, style), Text(finding.name), told)
    return table
