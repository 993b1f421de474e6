"""`relevo run`: a policy in many environments, every step recorded."""

from __future__ import annotations

import math
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import typer
from rich.text import Text

from relevo.builder import AgentBuilder, Head
from relevo.cli.progress_bar import ProgressBar
from relevo.cli.terminal import ROLE_HELP, facts, output, parse_roles, print_json
from relevo.collection import collect
from relevo.environments import make_vector

if TYPE_CHECKING:
    from relevo._core import Agent
    from relevo.progress import CollectResult

DEFAULT_STEPS = 100_000


@dataclass(frozen=True)
class Report:
    """What a run came to; the fields are those of `--json`."""

    policy: str
    policy_version: int
    env: str
    actors: int
    seed: int
    steps: int
    """Environment steps taken, over all actors."""
    episodes: int
    """Episodes that ended."""
    mean_return: float | None
    std_return: float | None
    mean_length: float | None
    seconds: float
    steps_per_second: float
    out: str | None
    """The run folder, if there is one."""
    steps_recorded: int
    episodes_recorded: int
    """Episodes in the run folder: those that ended, and those that were under way at the end."""
    bytes: int
    """Size of the run folder."""
    interrupted: bool
    """Whether it was ended by Ctrl-C."""


def run(
    policy: Annotated[Path, typer.Option(help="The model file, such as policy.onnx.", show_default=False)],
    env: Annotated[str, typer.Option(help="Gymnasium's id of the environment.", show_default=False)],
    actors: Annotated[int, typer.Option(min=1, help="How many environments, each with an actor.")] = 64,
    steps: Annotated[
        int | None, typer.Option(min=1, help=f"Environment steps, over all actors; {DEFAULT_STEPS:,} if nothing is said.")
    ] = None,
    episodes: Annotated[int | None, typer.Option(min=1, help="Episodes to finish, instead of --steps.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder to record into; without it nothing is recorded.", show_default=False)
    ] = None,
    head: Annotated[
        Head | None,
        typer.Option(help="How actions come from the model's outputs; `relevo inspect` shows the default."),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of environments and sampling; drawn if not given.")] = None,
    device: Annotated[str, typer.Option(help="Where the model runs.")] = "cpu",
    threads: Annotated[int, typer.Option(min=1, help="Threads in one forward pass.")] = 1,
    role: Annotated[list[str] | None, typer.Option(help=ROLE_HELP, metavar="NAME=ROLE")] = None,
    deterministic: Annotated[
        bool | None, typer.Option("--deterministic/--sample", help="Act without randomness, or sample.", show_default=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
) -> None:
    """Lets a policy act in many copies of an environment, and records every step.

    [bold]200,000 steps of 64 actors, into runs/a:[/bold]

        relevo run --policy policy.onnx --env CartPole-v1 --steps 200000 --out runs/a

    [bold]How good is it without randomness? 100 episodes, nothing recorded:[/bold]

        relevo run --policy policy.onnx --env CartPole-v1 --episodes 100 --deterministic

    [bold]In a script:[/bold]

        relevo run --policy policy.onnx --env CartPole-v1 --seed 7 --json | jq .mean_return

    Ctrl-C ends the run early and keeps what was recorded. Exit codes: 0 done, 1 error, 2 usage, 130 Ctrl-C.
    """
    if steps is not None and episodes is not None:
        raise typer.BadParameter("give either --steps or --episodes, not both")
    if steps is None and episodes is None:
        steps = DEFAULT_STEPS
    # One seed for everything, small enough for every reader of JSON.
    seed = secrets.randbits(32) if seed is None else seed
    # The environment first: where it is not known, no run folder is made.
    envs = make_vector(env, actors)
    builder = AgentBuilder().default_model(policy, head, parse_roles(role or [])).actor_count(actors)
    builder.default_device(device).threads(threads).seed(seed).keep_in_memory(0)
    if out is not None:
        builder.record(out)
    agent = builder.build()

    bar = ProgressBar(env, steps=steps, episodes=episodes)
    interrupted = False
    try:
        with agent, bar:
            collect(
                agent,
                envs,
                steps=steps,
                episodes=episodes,
                seed=seed,
                deterministic=deterministic,
                progress=bar.show,
            )
    except KeyboardInterrupt:
        interrupted = True
    finally:
        envs.close()
    if bar.so_far is not None:
        report = _report(agent, bar.so_far.result(), policy, env, out, seed, interrupted)
        if json:
            print_json(asdict(report))
        else:
            _print(report)
    if interrupted:
        raise typer.Exit(130)
