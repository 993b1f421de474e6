"""Runs as CSV files with RelayRL's columns, and back: one file for each episode.

Row t holds observation and action t, and the reward of action t - 1. A last row, without an action, holds the last
reward.
"""

from __future__ import annotations

import csv
import json
import math
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np

from relevo.errors import TrajectoryError
from relevo.trajectories.episode_data import Arrays, EpisodeData, first, named, read_run, unnamed
from relevo.trajectories.export_result import ExportResult
from relevo.trajectories.files import Counter, refuse_existing, removed_on_failure
from relevo.trajectories.relayrl_tensor import FIELDS, backend_of, cells, from_cells, from_json, to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from relevo._core import Run

TENSORS = {"observation": "obs", "action": "act", "mask": "mask"}
HEADER = (
    "backend",
    "actor_id",
    "timestamp",
    *(f"{tensor}_{field}" for tensor in TENSORS.values() for field in FIELDS),
    "reward",
    "done",
    "aux_data",
)
EMPTY = ("",) * len(FIELDS)
SECOND = 1_000_000_000
LARGEST_I64 = 2**63 - 1


def write(run: Run, path: Path, progress: Callable[[int, int], None] | None) -> ExportResult:
    """See `relevo.trajectories.to_csv`."""
    refuse_existing(path)
    counter = Counter(progress)
    partial = path.with_name(f"{path.name}.part")
    with removed_on_failure(partial):
        partial.mkdir(parents=True)
        for episode in counter.counted(read_run(run)):
            name = partial / f"episode_{episode.number or 0:06d}.csv"
            with name.open("w", encoding="utf-8", newline="") as file:
                lines = csv.writer(file, lineterminator="\n")
                lines.writerow(HEADER)
                lines.writerows(_rows(episode))
        partial.replace(path)
    return ExportResult((path,), counter.episodes, counter.steps)


def read(path: Path) -> Iterator[EpisodeData]:
    """See `relevo.trajectories.from_csv`."""
    if not path.exists():
        raise TrajectoryError(f"{path} is not there; give a CSV file, or a folder of them")
    files = sorted(path.glob("*.csv")) if path.is_dir() else [path]
    if not files:
        raise TrajectoryError(f"{path} holds no files whose names end with .csv")
    for file in files:
        yield _read_file(file)


def _rows(episode: EpisodeData) -> Iterator[list[str]]:
    steps = len(episode)
    tensors = {
        **named("observation", episode.observations),
        **named("action", episode.actions),
        **({} if episode.action_masks is None else {"mask": episode.action_masks.astype(np.bool_)}),
    }
    extras = {name: given for name, given in episode.extras.items() if not isinstance(given, list)}
    backend = backend_of([*tensors.values(), *extras.values()])
    # Several observations, or actions, have no columns; they go into aux_data as tensors.
    columns = {name: cells(array, backend) for name, array in tensors.items() if name in TENSORS}
    others = {name: to_json(array, backend) for name, array in tensors.items() if name not in TENSORS}
    others |= {f"observation.{name}": _strings(texts) for name, texts in episode.texts.items()}
    for name, given in episode.extras.items():
        others[f"extra.{name}"] = _strings(given) if isinstance(given, list) else to_json(given, backend)
    times = np.zeros(steps, np.int64) if episode.timestamps is None else episode.timestamps.view(np.int64)
    rewards, known = episode.rewards.tolist(), episode.rewards_known.tolist()
    actor = str(episode.actor_id or "")
    for row in range(steps + 1):
        aux: dict[str, Any] = {name: parts[row] for name, parts in others.items() if row < len(parts)}
        aux |= _facts(episode, row) if row < steps else _end(episode)
        time = int(times[min(row, steps - 1)])
        aux["timestamp_ns"] = {"I64": time}
        reward = 0.0
        if row:
            reward = rewards[row - 1]
            if not known[row - 1]:
                aux["reward_known"] = {"Bool": False}
        line = [backend, actor, str(time // SECOND)]
        for name in TENSORS:
            parts = columns.get(name, [])
            line += parts[row] if row < len(parts) else EMPTY
        done = row == steps and episode.complete
        yield [
            *line,
            _number(reward),
            "true" if done else "false",
            json.dumps(aux, allow_nan=False, ensure_ascii=False),
        ]


def _strings(texts: list[str]) -> list[dict[str, str]]:
    return [{"String": text} for text in texts]


def _facts(episode: EpisodeData, step: int) -> dict[str, Any]:
    """What has no column, of one step."""
    version = int(episode.policy_versions[step])
    facts: dict[str, Any] = {
        "policy": {"String": episode.policies[step]},
        "policy_version": {"I64": version} if version <= LARGEST_I64 else {"String": str(version)},
    }
    for name, array in (("log_prob", episode.log_probs), ("value", episode.values)):
        if array is not None:
            number = float(array[step])
            # JSON has neither NaN nor infinities.
            facts[name] = {"F32": number} if math.isfinite(number) else {"String": _number(number)}
    return facts


def _end(episode: EpisodeData) -> dict[str, Any]:
    """What has no column, of the episode."""
    facts: dict[str, Any] = {name: {"Bool": getattr(episode, name)} for name in ("terminated", "truncated", "complete")}
    if episode.number is not None:
        facts["episode"] = {"I64": episode.number}
    return facts


def _number(value: float) -> str:
    """As Rust reads it: NaN, inf, -inf, or the shortest decimal."""
    return "NaN" if math.isnan(value) else repr(value)


def _read_file(path: Path) -> EpisodeData:
    line = 1
    try:
        # Larger cells than the csv module's default: images.
        csv.field_size_limit(1 << 30)
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            _check_header(rows.fieldnames or [])
            parsed = []
            for row in rows:
                line = rows.line_num
                parsed.append(_Row(row))
        return _assembled(parsed)
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        raise TrajectoryError(
            f"{path}, line {line}: {error}; expected RelayRL's columns, one episode in a file"
        ) from error
    except OSError as error:
        raise TrajectoryError(f"{path} cannot be read: {error}") from error


def _check_header(names: Sequence[str]) -> None:
    missing = [name for name in HEADER if name not in names]
    if missing:
        raise ValueError(f"the columns {', '.join(missing)} are missing")


class _Row:
    """One row, parsed."""

    def __init__(self, cells_by_name: dict[str, str]) -> None:
        if any(value is None for value in cells_by_name.values()) or None in cells_by_name:
            raise ValueError(f"there are not {len(HEADER)} fields")
        given = {name: cells_by_name[name].strip() for name in HEADER}
        self.tensors: dict[str, npt.NDArray[Any]] = {}
        aux: dict[str, dict[str, Any]] = json.loads(given["aux_data"]) if given["aux_data"] else {}
        for name, prefix in TENSORS.items():
            array = from_cells([given[f"{prefix}_{field}"] for field in FIELDS])
            if array is not None:
                self.tensors[name] = array
        for name, value in aux.items():
            if "Tensor" in value:
                self.tensors[name] = from_json(value)
        self.facts = {name: next(iter(value.values())) for name, value in aux.items() if "Tensor" not in value}
        self.reward = float(given["reward"])
        if given["done"] not in {"true", "false", ""}:
            raise ValueError(f"done must be true or false, but {given['done']!r} came")
        self.done = given["done"] == "true"
        self.actor = given["actor_id"]
        self.time = int(self.facts.get("timestamp_ns", int(given["timestamp"] or 0) * SECOND))


def _assembled(rows: list[_Row]) -> EpisodeData:
    acting = [any(name.startswith("action") for name in row.tensors) for row in rows]
    steps = sum(acting)
    if not steps or not all(acting[:steps]) or len(rows) - steps > 1:
        raise ValueError("there must be rows with an action, and after them at most one without")
    if len({row.actor for row in rows if row.actor}) > 1:
        raise ValueError("there are rows of several actors")
    first_row, last, played = rows[0], rows[-1], rows[:steps]
    closed = len(rows) > steps
    observed = rows if closed and any(name.startswith("observation") for name in last.tensors) else played
    # The reward of an action is in the row after it.
    rewards = [row.reward for row in rows[1:]] + ([] if closed else [math.nan])
    known = [bool(row.facts.get("reward_known", True)) for row in rows[1:]] + ([] if closed else [False])
    complete = bool(last.facts.get("complete", last.done))
    masks = _stacked(played, "mask")
    return EpisodeData(
        observations=_named_stack(observed, "observation"),
        actions=_named_stack(played, "action"),
        rewards=np.array(rewards, np.float64),
        rewards_known=np.array(known, np.bool_),
        terminated=bool(last.facts.get("terminated", last.done)),
        truncated=bool(last.facts.get("truncated", False)),
        complete=complete,
        policies=[str(row.facts.get("policy", "")) for row in played],
        policy_versions=np.array([int(row.facts.get("policy_version", 0)) for row in played], np.uint64),
        timestamps=np.array([row.time for row in played], np.int64).view("datetime64[ns]"),
        action_masks=None if masks is None else masks.astype(np.uint8),
        log_probs=_floats(played, "log_prob"),
        values=_floats(played, "value"),
        actor_id=UUID(last.actor) if last.actor else None,
        number=last.facts.get("episode"),
        extras={
            **{
                name[len("extra.") :]: np.stack([row.tensors[name] for row in played])
                for name in _extras(first_row.tensors)
            },
            **{name[len("extra.") :]: [row.facts[name] for row in played] for name in _extras(first_row.facts)},
        },
        texts={
            name[len("observation.") :]: [row.facts[name] for row in observed]
            for name in first_row.facts
            if name.startswith("observation.")
        },
    )


def _extras(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith("extra.")]


def _named_stack(rows: list[_Row], prefix: str) -> Arrays:
    names = [name for name in rows[0].tensors if name == prefix or name.startswith(f"{prefix}.")]
    if not names:
        raise ValueError(f"the first row has no {prefix}")
    arrays = {name: stacked for name in names if (stacked := _stacked(rows, name)) is not None}
    own = unnamed(prefix, arrays)
    if len(first(own)) != len(rows):
        raise ValueError(f"rows without {prefix} lie between others")
    return own


def _stacked(rows: list[_Row], name: str) -> npt.NDArray[Any] | None:
    parts = [row.tensors[name] for row in rows if name in row.tensors]
    return np.stack(parts) if len(parts) == len(rows) else None


def _floats(rows: list[_Row], name: str) -> npt.NDArray[np.float32] | None:
    if name not in rows[0].facts:
        return None
    return np.array([float(row.facts[name]) for row in rows], np.float32)
