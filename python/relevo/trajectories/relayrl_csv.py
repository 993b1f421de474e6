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
from relevo.trajectories.episode_data import Arrays, EpisodeData, first, unnamed
from relevo.trajectories.export_result import ExportResult
from relevo.trajectories.files import Counter, refuse_existing, removed_on_failure
from relevo.trajectories.relayrl_tensor import FIELDS, from_cells, from_json

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
SECOND = 1_000_000_000


def write(run: Run, path: Path, progress: Callable[[int, int], None] | None) -> ExportResult:
    """See `relevo.trajectories.to_csv`."""
    refuse_existing(path)
    counter = Counter(progress)
    partial = path.with_name(f"{path.name}.part")
    with removed_on_failure(partial):
        partial.mkdir(parents=True)
        for episode in counter.counted(run.episodes()):
            episode._write_csv(partial / f"episode_{episode.number:06d}.csv")  # noqa: SLF001  (made for this)
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
