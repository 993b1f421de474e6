"""`relevo trajectories show`: one episode as a table."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich import box
from rich.table import Table
from rich.text import Text

from relevo._core import Run
from relevo.cli.terminal import facts, output, print_json
from relevo.cli.trajectories.reading import Folder, Json
from relevo.trajectories.episode_data import named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relevo._core import Episode

MOST_NUMBERS = 8
"""Of a tensor in a cell; of more, their shape and range are shown."""


def show(
    folder: Folder,
    episode: Annotated[int, typer.Option(metavar="N", min=0, help="The episode's number, from 0.", show_default=False)],
    rows: Annotated[
        int, typer.Option(metavar="N", min=2, help="Rows to show at most: those in the middle are left out.")
    ] = 20,
    json: Json = False,
) -> None:
    """Shows one episode as a table, a row for each step.

    [bold]The beginning and the end of episode 12:[/bold]

        relevo trajectories show runs/a --episode 12

    [bold]All of it, to page through:[/bold]

        relevo trajectories show runs/a --episode 12 --rows 100000 | less

    [bold]Every number, for a script:[/bold]

        relevo trajectories show runs/a --episode 12 --json | jq '.rewards | add'

    The last row, without a step's number, is the final observation.
    In JSON, a reward that never came is null, and numbers that JSON does not
    have are the strings NaN, Infinity and -Infinity.
    """
    found = Run.open(folder).episode(episode)
    if json:
        print_json(_as_dict(found))
        return
    console = output()
    console.print(facts(_facts(found), title=f"episode {found.number}"))
    console.print(_steps(found, rows))


def _facts(episode: Episode) -> list[tuple[str, str]]:
    versions = episode.policy_versions
    first, last = int(versions[0]), int(versions[-1])
    times = episode.timestamps
    known = episode.rewards_known
    rows = [
        ("steps", f"{len(episode):,}"),
        ("return", f"{episode.episode_return:,.6g}"),
        ("ended", _end(episode)),
        ("policy", f"{', '.join(episode.policies)}, version {first}" + (f" to {last}" if last != first else "")),
        ("actor", str(episode.actor_id)),
        ("played", f"{np.datetime_as_string(times[0], 'ms')}Z to {np.datetime_as_string(times[-1], 'ms')}Z"),
    ]
    if known is not None:
        rows.append(("rewards", f"{int((~known).sum()):,} never came"))
    return rows


def _end(episode: Episode) -> str:
    ends = [name for name in ("terminated", "truncated") if getattr(episode, name)]
    if not ends:
        return "not at all: its actor or the run ended before"
    return " and ".join(ends) + ("" if episode.has_final_observation else "; the final observation is not known")


def _steps(episode: Episode, most: int) -> Table:
    count = len(episode)
    final = episode.has_final_observation
    known = episode.rewards_known
    observations, actions = named("observation", episode.observations), named("action", episode.actions)
    numbers = [
        (name, array)
        for name, array in (("log_prob", episode.log_probs), ("value", episode.values))
        if array is not None
    ]
    changes = len(np.unique(episode.policy_versions)) > 1
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("step", justify="right", style="dim", no_wrap=True)
    for name in observations:
        table.add_column(Text(name), overflow="fold")
    for name in (*actions, "reward", *(name for name, _ in numbers), *(["version"] if changes else [])):
        table.add_column(Text(name), justify="right", overflow="fold")
    left_out = max(0, count + final - most)
    head = math.ceil(most / 2) if left_out else count + final
    for step in range(count + final):
        if left_out and step == head:
            table.add_row("…", Text(f"{left_out:,} rows left out", style="dim"))
        if head <= step < head + left_out:
            continue
        cells = [_cell(array[step]) for array in observations.values()]
        if step < count:
            came = known is None or known[step]
            cells += [_cell(array[step]) for array in actions.values()]
            cells.append(_number(float(episode.rewards[step])) if came else "–")
            cells += [_number(float(array[step])) for _, array in numbers]
            cells += [str(episode.policy_versions[step])] if changes else []
        table.add_row(str(step) if step < count else "", *map(Text, cells))
    return table


def _cell(value: Any) -> str:  # noqa: ANN401  (one row of any array)
    """A tensor in one line: its numbers, or its shape and range where they are many."""
    array = np.asarray(value)
    if not array.shape:
        return _number(array.item())
    if array.size > MOST_NUMBERS:
        finite = array[np.isfinite(array)]
        spread = f", {_number(finite.min().item())} to {_number(finite.max().item())}" if finite.size else ""
        return f"{'×'.join(map(str, array.shape))} {array.dtype}{spread}"
    numbers = [_number(number) for number in array.reshape(-1).tolist()]
    return ", ".join(numbers)


def _number(number: object) -> str:
    return f"{number:.4g}" if isinstance(number, float) else str(number)


def _as_dict(episode: Episode) -> dict[str, Any]:
    known = episode.rewards_known
    rewards = _plain(episode.rewards)
    if known is not None:
        rewards = [reward if came else None for reward, came in zip(rewards, known.tolist(), strict=True)]
    return {
        "number": episode.number,
        "actor_id": str(episode.actor_id),
        "steps": len(episode),
        "episode_return": _plain(np.float64(episode.episode_return)),
        "terminated": episode.terminated,
        "truncated": episode.truncated,
        "complete": episode.complete,
        "has_final_observation": episode.has_final_observation,
        "policies": episode.policies,
        "policy_versions": _plain(episode.policy_versions),
        "timestamps": [f"{time}Z" for time in np.datetime_as_string(episode.timestamps).tolist()],
        "observations": _plain(episode.observations),
        "actions": _plain(episode.actions),
        "action_masks": _plain(episode.action_masks),
        "rewards": rewards,
        "log_probs": _plain(episode.log_probs),
        "values": _plain(episode.values),
    }


def _plain(value: Any) -> Any:  # noqa: ANN401  (an array, a dict of such, or None)
    """As JSON has it."""
    if value is None or isinstance(value, dict):
        return value and {name: _plain(part) for name, part in value.items()}
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        return _named_floats(value.tolist())
    return value.tolist()


def _named_floats(value: float | Sequence[Any]) -> Any:  # noqa: ANN401  (nested lists)
    if not isinstance(value, float):
        return [_named_floats(part) for part in value]
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")
