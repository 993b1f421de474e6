"""What all commands share: the two output streams, and how things look on them."""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import sys
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from relevo.cli.wording import for_command_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

STDOUT, STDERR = 1, 2
"""File descriptors."""

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""

ROLE_HELP = (
    "What an input or output is taken for, where its name does not tell: [bold]name=role[/bold], such as "
    "obs=observation. May be given several times."
)

SHAPE_HELP = (
    "The shape of one row of an input whose file does not declare it: [bold]name=sizes[/bold], such as obs=45 or "
    "camera=3,64,64. May be given several times."
)

BRANCHES_HELP = "Choices in each branch of a multi-discrete action"

DEVICE_HELP = "Where the model runs: cpu, cuda, cuda:1 …"


def output() -> Console:
    """Standard output: what was asked for."""
    return Console(highlight=False)


def messages() -> Console:
    """Standard error: progress and errors."""
    return Console(stderr=True, highlight=False)


def print_error(text: str) -> None:
    """Prints an error as one message."""
    # Unwrapped: paths and commands in it can be copied, and programs find it in one line.
    messages().print(Text.assemble(("error: ", "bold red"), text), soft_wrap=True)


@contextlib.contextmanager
def warnings_shown() -> Iterator[None]:
    """Prints what is logged as a warning, or worse, as messages."""
    logger, handler = logging.getLogger("relevo"), _Printer(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Printer(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        text = for_command_line(record.getMessage())
        messages().print(Text.assemble((f"{record.levelname.lower()}: ", "bold yellow"), text), soft_wrap=True)


@contextlib.contextmanager
def prints_on_standard_error() -> Iterator[None]:
    """Sends to standard error what models and environments print meanwhile, in Python or not, in all processes."""
    kept = None
    with contextlib.redirect_stdout(sys.stderr):
        # Either may be closed, or be no file.
        with contextlib.suppress(OSError):
            kept = os.dup(STDOUT)
            os.dup2(STDERR, STDOUT)
        try:
            yield
        finally:
            sys.stderr.flush()
            if kept is not None:
                # What libraries have printed lies in the C library's buffer.
                with contextlib.suppress(OSError, AttributeError, TypeError):
                    ctypes.CDLL(None).fflush(None)
                os.dup2(kept, STDOUT)
                os.close(kept)


def print_json(values: dict[str, Any]) -> None:
    """Prints one JSON object on standard output."""
    typer.echo(json.dumps(values, indent=2, allow_nan=False))


def parse_roles(given: Sequence[str]) -> dict[str, str]:
    """`name=role` pairs as a dict."""
    roles = {}
    for pair in given:
        name, separator, role = pair.partition("=")
        if not (name and separator and role):
            raise typer.BadParameter(f"expected name=role, such as obs=observation, but {pair!r} came")
        roles[name] = role
    return roles


def parse_shapes(given: Sequence[str]) -> dict[str, tuple[int, ...]] | None:
    """`name=3,4` pairs as a dict of shapes; None without any."""
    shapes = {}
    for pair in given:
        name, separator, text = pair.partition("=")
        sizes = [size for size in text.split(",") if size]
        if not (name and separator and all(size.isdecimal() for size in sizes)):
            raise typer.BadParameter(f"expected name=sizes, such as obs=45 or camera=3,64,64, but {pair!r} came")
        shapes[name] = tuple(map(int, sizes))
    return shapes or None


def parse_branches(given: str | None) -> list[int] | None:
    """`2,3,3` as a list."""
    if given is None:
        return None
    try:
        return [int(size) for size in given.split(",")]
    except ValueError:
        raise typer.BadParameter(f"expected whole numbers such as 2,3,3, but {given!r} came") from None


def facts(rows: Sequence[tuple[str, str]], title: str | None = None) -> Table:
    """A table of names and values."""
    table = Table(
        box=box.SIMPLE, show_header=False, title=title, title_justify="left", title_style="bold", pad_edge=False
    )
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        # As text: brackets in a value are no markup.
        table.add_row(name, Text(value))
    return table
