"""`relevo run`: a policy in many environments, every step recorded."""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.filesize import decimal

from relevo._core import ModelModule, Run
from relevo.builder import AgentBuilder
from relevo.cli.progress_bar import ProgressBar
from relevo.cli.terminal import (
    BRANCHES_HELP,
    DEVICE_HELP,
    INTERRUPTED,
    ROLE_HELP,
    SHAPE_HELP,
    facts,
    messages,
    output,
    parse_branches,
    parse_roles,
    parse_shapes,
    print_json,
    prints_on_standard_error,
    warnings_shown,
)
from relevo.collection import collect
from relevo.envs.vector import fit_actions, make_vector
from relevo.errors import RelevoError
from relevo.settings import Bounds, Head, How, Normalization

if TYPE_CHECKING:
    import gymnasium

    from relevo._core import Agent
    from relevo.envs.vector import VectorEnv
    from relevo.progress import CollectResult

DEFAULT_STEPS = 100_000
MOST_ACTORS = 1_000_000
"""Making as many environments takes minutes; more are a slip of the keyboard."""


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
    rewards_missing: int
    """Steps among them whose reward never came, as the run ended before."""
    bytes: int
    """Size of the run folder."""
    interrupted: bool
    """Whether it was ended early, by Ctrl-C or SIGTERM."""
    workers: int | None
    """Processes that stepped the environments; None where there were none but this."""
    worker_restarts: int
    """How many times one of them failed and was started again."""
    episodes_cut: int
    """Episodes that were recorded as truncated for that."""


def run(
    *,
    policy: Annotated[Path, typer.Option(metavar="FILE", help="The model, such as policy.onnx.", show_default=False)],
    env: Annotated[str, typer.Option(metavar="ID", help="Gymnasium's id of the environment.", show_default=False)],
    actors: Annotated[
        int, typer.Option(metavar="N", min=1, max=MOST_ACTORS, help="Environments, each with an actor.")
    ] = 64,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Processes of their own for the environments; without it, they are stepped in this one.",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help=f"Environment steps, over all actors; {DEFAULT_STEPS:,} if not given."),
    ] = None,
    episodes: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Episodes to finish, instead of --steps.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to record into; nothing is recorded without it.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", metavar="", help="Go on with the run that --out holds, if there is one.")
    ] = False,
    head: Annotated[
        Head | None,
        typer.Option(
            metavar="HEAD",
            help="How actions come from the model's outputs: argmax, categorical, gaussian or raw. "
            "`relevo inspect FILE` tells the default.",
        ),
    ] = None,
    branches: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,…",
            help=f"{BRANCHES_HELP}; those of the environment if not given.",
            show_default=False,
        ),
    ] = None,
    bounds: Annotated[
        How | None,
        typer.Option(
            metavar="HOW",
            help="Bring continuous actions into the environment's bounds: clip, rescale (from -1 and 1) or tanh. "
            "If not given, into those that the file tells.",
        ),
    ] = None,
    normalization: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON of mean and variance, with which observations are normalised for the model.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Seed of environments and sampling; drawn if not given.")
    ] = None,
    device: Annotated[str | None, typer.Option(metavar="NAME", help=DEVICE_HELP, show_default=False)] = None,
    threads: Annotated[int, typer.Option(metavar="N", min=1, help="Threads in one forward pass.")] = 1,
    role: Annotated[list[str] | None, typer.Option(metavar="NAME=ROLE", help=ROLE_HELP)] = None,
    shape: Annotated[list[str] | None, typer.Option(metavar="NAME=SIZES", help=SHAPE_HELP)] = None,
    deterministic: Annotated[
        bool | None,
        typer.Option(
            "--deterministic/--sample", metavar="", help="Act without randomness, or sample.", show_default=False
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object on standard output.")] = False,
) -> None:
    """Lets a policy act in many copies of an environment, and records every step.

    [bold]200,000 steps of 64 actors, into runs/a:[/bold]

        relevo run --policy p.onnx --env CartPole-v1 --steps 200000 --out runs/a

    [bold]Go on with the run in runs/a:[/bold]

        relevo run --policy p.onnx --env CartPole-v1 --out runs/a --resume

    [bold]How good is it without randomness? 100 episodes, nothing recorded:[/bold]

        relevo run --policy p.onnx --env CartPole-v1 --episodes 100 --deterministic

    [bold]In a script:[/bold]

        relevo run --policy p.onnx --env CartPole-v1 --json | jq .mean_return

    [bold]Environments that are slow, in four processes:[/bold]

        relevo run --policy p.onnx --env CartPole-v1 --workers 4

    Ctrl-C and SIGTERM end the run early and keep what was recorded. Exit codes: 0 done, 1 error, 2 usage, 130 ended
    early.
    """
    steps = _steps(steps, episodes)
    if resume and out is None:
        raise typer.BadParameter("--resume goes on with the run in a folder; name it by --out")
    with warnings_shown(), prints_on_standard_error() if json else contextlib.nullcontext():
        # The environment first: where it is not known, no run folder is made.
        envs = make_vector(env, actors, workers)
        # One seed for everything, small enough for every reader of JSON. A run that is gone on with keeps its own for
        # sampling, which goes on where it stood; environments that were seeded alike again would begin alike.
        drawn = secrets.randbits(32) if seed is None else seed
        kept = _seed_of(out) if resume and out is not None and seed is None else None
        seed = drawn if kept is None else kept
        roles, shapes = parse_roles(role or []), parse_shapes(shape or [])
        model = ModelModule.load_from_path(policy, threads=threads, device=device, roles=roles, shapes=shapes)
        space = envs.single_action_space
        builder = AgentBuilder().actor_count(actors)
        builder.default_model(
            model,
            head,
            branches=parse_branches(branches) or _branches(model, head, space),
            bounds=bounds and Bounds.of(space, bounds),
            normalization=Normalization.from_json(normalization) if normalization else None,
        )
        builder.threads(threads).seed(seed).keep_in_memory(0)
        if device is not None:
            builder.default_device(device)
        if out is not None:
            builder.record(out, resume=resume)
        agent = builder.build()
        # Before the agent starts, and makes the run folder.
        fit_actions(envs, agent.actors())

        bar = ProgressBar(env, steps=steps, episodes=episodes)
        interrupted = False
        try:
            with agent, bar:
                result = collect(
                    agent,
                    envs,
                    steps=steps,
                    episodes=episodes,
                    seed=drawn,
                    deterministic=deterministic,
                    progress=bar.show,
                )
        except KeyboardInterrupt:
            interrupted = True
            if bar.so_far is None:
                raise
            result = bar.so_far.result()
        except RelevoError:
            if out is not None and agent.stats()["steps_written"]:
                messages().print(f"The run ended early; what was recorded until then is in {out}", soft_wrap=True)
            raise
        finally:
            envs.close()
        report = _report(agent, envs, result, policy=policy, env=env, out=out, seed=seed, interrupted=interrupted)
    if json:
        print_json(asdict(report))
    else:
        _print(report)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _seed_of(out: Path) -> int | None:
    """The seed of the run in a folder; None where there is no run."""
    return int(Run.open(out).info["seed"]) if (out / "run.json").exists() else None


def _steps(steps: int | None, episodes: int | None) -> int | None:
    """The steps to take; None where episodes are to be finished."""
    if steps is not None and episodes is not None:
        raise typer.BadParameter("give either --steps or --episodes, not both")
    return DEFAULT_STEPS if steps is None and episodes is None else steps


def _branches(model: ModelModule, head: Head | None, space: gymnasium.Space[Any]) -> list[int] | None:
    """The environment's branches, where a head picks from the logits of several."""
    picks = (head or model.contract.default_head) in {"categorical", "argmax"}
    sizes = getattr(space, "nvec", None)
    return [int(size) for size in sizes.reshape(-1)] if picks and sizes is not None else None


def _report(
    agent: Agent,
    envs: VectorEnv,
    result: CollectResult,
    *,
    policy: Path,
    env: str,
    out: Path | None,
    seed: int,
    interrupted: bool,
) -> Report:
    stats = agent.stats()
    on_disk = out is not None
    return Report(
        policy=str(policy),
        policy_version=stats["policies"]["default"]["version"],
        env=env,
        actors=stats["actors"],
        seed=seed,
        steps=result.steps,
        episodes=result.episodes,
        # JSON has no NaN.
        mean_return=result.mean_return if result.episodes else None,
        std_return=float(result.returns.std()) if result.episodes else None,
        mean_length=result.mean_length if result.episodes else None,
        seconds=result.seconds,
        steps_per_second=result.steps_per_second,
        out=str(out) if on_disk else None,
        steps_recorded=stats["steps_written"],
        episodes_recorded=stats["episodes_recorded"] if on_disk else 0,
        rewards_missing=stats["rewards_missing"],
        bytes=sum(file.stat().st_size for file in out.rglob("*") if file.is_file()) if out is not None else 0,
        interrupted=interrupted,
        # Only a `ProcessVectorEnv` has these.
        workers=getattr(envs, "workers", None),
        worker_restarts=getattr(envs, "restarts", 0),
        episodes_cut=getattr(envs, "episodes_cut", 0),
    )


def _print(report: Report) -> None:
    rows: list[tuple[str, str]] = [
        ("steps", f"{report.steps:,}"),
        ("episodes", f"{report.episodes:,} ended"),
    ]
    if report.mean_return is not None:
        rows += [
            ("return", f"{report.mean_return:.2f} ± {report.std_return:.2f}"),
            ("length", f"{report.mean_length:.1f} steps"),
        ]
    rows += [
        ("speed", f"{report.steps_per_second:,.0f} steps/s over {report.seconds:.1f} s"),
        ("policy", f"{report.policy}, version {report.policy_version}"),
        ("seed", str(report.seed)),
    ]
    if report.worker_restarts:
        cut = f"{report.episodes_cut:,} episodes are truncated for it"
        rows.append(
            ("workers", f"{report.workers}; one failed and was started again {report.worker_restarts:,} times; {cut}")
        )
    if report.out is None:
        rows.append(("recorded", "nothing; --out DIR records every step"))
    else:
        rows += [
            (
                "recorded",
                f"{report.steps_recorded:,} steps in {report.episodes_recorded:,} episodes, {decimal(report.bytes)}"
                + (f"; {report.rewards_missing:,} of them without a reward" if report.rewards_missing else ""),
            ),
            ("in", report.out),
            ("read by", f'relevo.open_run("{report.out}").episodes()'),
        ]
    ended = ", ended early" if report.interrupted else ""
    output().print(facts(rows, title=f"{report.env}, {report.actors} actors{ended}"))
