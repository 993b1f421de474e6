"""The command line `relevo`.

Exit codes: 0 when all went well; 1 when something could not be done, with one message `error: …` on standard error;
2 when the command was not understood; 130 after Ctrl-C or SIGTERM, with what was recorded so far kept and reported.
"""

from __future__ import annotations

import signal
import sys
from typing import Annotated

import typer

from relevo import RelevoError, __version__
from relevo.cli.doctor import doctor
from relevo.cli.inspect import inspect
from relevo.cli.run import run
from relevo.cli.terminal import INTERRUPTED, print_error
from relevo.cli.trajectories import app as trajectories
from relevo.cli.wording import for_command_line

app = typer.Typer(
    name="relevo",
    rich_markup_mode="rich",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(no_args_is_help=True)(run)
app.command(no_args_is_help=True)(inspect)
app.command()(doctor)
app.add_typer(trajectories)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"relevo {__version__}")
        raise typer.Exit


@app.callback()
def relevo(
    version: Annotated[
        bool, typer.Option("--version", metavar="", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Runs exported policies in many environments at once, and writes down every step.

    [bold]What does a model take and give?[/bold]

        relevo inspect policy.onnx

    [bold]Run it in 64 environments, and record into the folder runs/a:[/bold]

        relevo run --policy policy.onnx --env CartPole-v1 --out runs/a

    [bold]What was recorded there? Returns as a picture, other formats:[/bold]

        relevo trajectories --help

    [bold]Does something not work on this machine?[/bold]

        relevo doctor

    [bold]Read what was recorded, in Python:[/bold]

        for episode in relevo.open_run("runs/a").episodes(): ...
    """


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """Runs the command that `sys.argv` names, and exits."""
    # As `python -m` does, for environments in modules of the current folder: --env module:id.
    if not sys.flags.safe_path:
        sys.path.insert(0, "")
    # Asked to end by a job scheduler, a run is closed as after Ctrl-C.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app()
    except RelevoError as error:
        print_error(for_command_line(str(error)))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
