"""`relevo trajectories`: recorded runs, to be looked at and taken elsewhere."""

from __future__ import annotations

import typer

from relevo.cli.trajectories.export import export
from relevo.cli.trajectories.importing import import_run
from relevo.cli.trajectories.info import info
from relevo.cli.trajectories.plot import plot
from relevo.cli.trajectories.repair import repair
from relevo.cli.trajectories.show import show
from relevo.cli.trajectories.verify import verify

app = typer.Typer(
    name="trajectories",
    rich_markup_mode="rich",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(no_args_is_help=True)(info)
app.command(no_args_is_help=True)(show)
app.command(no_args_is_help=True)(plot)
app.command(no_args_is_help=True)(verify)
app.command(no_args_is_help=True)(repair)
app.command(no_args_is_help=True)(export)
app.command("import", no_args_is_help=True)(import_run)


@app.callback()
def trajectories() -> None:
    """Looks at recorded runs, checks and repairs them, and takes them to other tools and back.

    [bold]What is in a run?[/bold]

        relevo trajectories info runs/a

    [bold]One episode, step by step:[/bold]

        relevo trajectories show runs/a --episode 12

    [bold]Returns, actions and lengths as pictures:[/bold]

        relevo trajectories plot runs/a

    [bold]Is every byte as it was written?[/bold]

        relevo trajectories verify runs/a

    [bold]For other tools:[/bold]

        relevo trajectories export runs/a --to parquet a.parquet
    """
