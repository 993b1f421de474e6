"""Episodes as Arrow record batches with the columns of the run folder, and back."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from relevo.errors import TrajectoryError
from relevo.trajectories.episode_data import Arrays, EpisodeData, named, unnamed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

BATCH_ROWS = 65_536
BATCH_BYTES = 32 << 20
"""A batch is full with as many rows, or bytes of observations, whichever comes first."""
NANOSECONDS = pa.timestamp("ns", "UTC")
NEEDED = ("episode", "step", "reward", "terminated", "truncated")


def batches_of(episodes: Iterable[EpisodeData]) -> Iterator[pa.RecordBatch]:
    """Batches of whole episodes, in their order; a new one begins wherever the columns change."""
    gathered: list[EpisodeData] = []
    columns: object = None
    rows = size = 0
    for episode in episodes:
        own = _columns(episode)
        if gathered and (own != columns or rows >= BATCH_ROWS or size >= BATCH_BYTES):
            yield _batch(gathered)
            gathered, rows, size = [], 0, 0
        columns = own
        gathered.append(episode)
        rows += len(episode) + episode.complete
        size += sum(array.nbytes for array in named("observation", episode.observations).values())
    if gathered:
        yield _batch(gathered)


def episodes_of(batches: Iterable[pa.RecordBatch]) -> Iterator[EpisodeData]:
    """The episodes in such batches; one may go on in the next batch.

    Raises:
        TrajectoryError: a column is missing or has another type, or rows are not those of whole episodes in order.
    """
    seen: set[int] = set()
    open_part: list[pa.RecordBatch] = []
    number: int | None = None
    first_row = row = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        _check_columns(batch.schema)
        numbers = batch["episode"].to_numpy(zero_copy_only=False)
        starts = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
        for start, end in itertools.pairwise(starts):
            if int(numbers[start]) != number:
                if open_part:
                    yield _episode(open_part, first_row)
                number, first_row, open_part = int(numbers[start]), row + start, []
                if number in seen:
                    raise TrajectoryError(
                        f"row {first_row}: episode {number} goes on after others' rows; sort by episode and step"
                    )
                seen.add(number)
            open_part.append(batch.slice(start, end - start))
        row += batch.num_rows
    if open_part:
        yield _episode(open_part, first_row)


def _columns(episode: EpisodeData) -> object:
    """What must be equal for episodes to share a batch."""
    tensors = {**named("observation", episode.observations), **named("action", episode.actions)}
    shapes = [(name, array.dtype, array.shape[1:]) for name, array in tensors.items()]
    mask = episode.action_masks
    extras = [
        (name, None if isinstance(given, list) else (given.dtype, given.shape[1:]))
        for name, given in (episode.extras | episode.texts).items()
    ]
    optional = (episode.log_probs is None, episode.values is None, episode.timestamps is None, episode.actor_id is None)
    return shapes, None if mask is None else mask.shape[1], extras, optional


class _Columns:
    """The columns of a batch, as they come together."""

    def __init__(self, episodes: Sequence[EpisodeData]) -> None:
        self._episodes = episodes
        self._fields: list[pa.Field] = []
        self._arrays: list[pa.Array] = []

    def add(self, name: str, array: pa.Array, *, nullable: bool = False, boolean: bool = False) -> None:
        """A column as it is."""
        self._fields.append(pa.field(name, array.type, nullable, {"relevo.dtype": "bool"} if boolean else None))
        self._arrays.append(array)

    def add_tensors(self, prefix: str, arrays: Sequence[Arrays], *, closing: bool) -> None:
        """One column for each name; closing rows are null where `closing`."""
        parts = [named(prefix, own) for own in arrays]
        for name in parts[0]:
            array, dtype = _tensor([part[name] for part in parts], self._episodes, closing=closing)
            self.add(name, array, nullable=True, boolean=dtype == np.bool_)

    def add_floats(
        self, name: str, rows: Sequence[npt.NDArray[Any]], known: Sequence[npt.NDArray[np.bool_]] | None = None
    ) -> None:
        """A column that is null on closing rows, and where a number is not known."""
        known = [np.ones(len(row), np.bool_) for row in rows] if known is None else known
        values, valid = _closed(rows, self._episodes), _closed(known, self._episodes)
        self.add(name, pa.array(values, mask=~valid), nullable=True)

    def batch(self) -> pa.RecordBatch:
        """All of them."""
        return pa.record_batch(self._arrays, schema=pa.schema(self._fields))


def _batch(episodes: Sequence[EpisodeData]) -> pa.RecordBatch:
    """One batch of episodes with the same columns."""
    like = episodes[0]
    columns = _Columns(episodes)
    rows = [len(episode) + episode.complete for episode in episodes]
    if like.actor_id is not None:
        ids = np.frombuffer(b"".join(episode.actor_id.bytes for episode in episodes if episode.actor_id), "V16")
        repeated = pa.array(np.repeat(ids, rows).tolist(), pa.binary(16))
        columns.add("actor_id", pa.ExtensionArray.from_storage(pa.uuid(), repeated))
    given = [index if episode.number is None else episode.number for index, episode in enumerate(episodes)]
    columns.add("episode", pa.array(np.repeat(np.array(given, np.uint64), rows)))
    columns.add("step", pa.array(np.concatenate([np.arange(count, dtype=np.uint32) for count in rows])))
    columns.add_tensors("observation", [episode.observations for episode in episodes], closing=False)
    columns.add_tensors("action", [episode.actions for episode in episodes], closing=True)
    if like.action_masks is not None:
        masks = [episode.action_masks for episode in episodes if episode.action_masks is not None]
        columns.add("action_mask", _tensor(masks, episodes, closing=True)[0], nullable=True)
    columns.add_floats(
        "reward", [episode.rewards for episode in episodes], [episode.rewards_known for episode in episodes]
    )
    for name in ("terminated", "truncated"):
        ends = [np.arange(len(episode)) == len(episode) - 1 for episode in episodes]
        flags = [end & getattr(episode, name) for end, episode in zip(ends, episodes, strict=True)]
        columns.add(name, pa.array(_closed(flags, episodes)))
    for name, column in (("log_prob", "log_probs"), ("value", "values")):
        if getattr(like, column) is not None:
            columns.add_floats(name, [getattr(episode, column) for episode in episodes])
    names = [name for episode in episodes for name in [*episode.policies, *episode.policies[-1:] * episode.complete]]
    columns.add("policy", pa.array(names, pa.string()))
    columns.add(
        "policy_version", pa.array(_closed([episode.policy_versions for episode in episodes], episodes, repeat=True))
    )
    if like.timestamps is not None:
        times = [episode.timestamps for episode in episodes if episode.timestamps is not None]
        columns.add("timestamp", pa.array(_closed(times, episodes, repeat=True).view(np.int64)).cast(NANOSECONDS))
    for name, values in like.extras.items():
        if isinstance(values, list):
            columns.add(
                f"extra.{name}", _texts([episode.extras[name] for episode in episodes], episodes), nullable=True
            )
        else:
            arrays = [np.asarray(episode.extras[name]) for episode in episodes]
            array, dtype = _tensor(arrays, episodes, closing=True)
            columns.add(f"extra.{name}", array, nullable=True, boolean=dtype == np.bool_)
    for name in like.texts:
        texts = _texts([episode.texts[name] for episode in episodes], episodes)
        columns.add(f"observation.{name}", texts, nullable=True)
    return columns.batch()


def _closed(
    parts: Sequence[npt.NDArray[Any]], episodes: Sequence[EpisodeData], *, repeat: bool = False
) -> npt.NDArray[Any]:
    """One column of rows `[T, …]`, where each episode that ended has a closing row: zeros, or the last row again."""
    pieces: list[npt.NDArray[Any]] = []
    for part, episode in zip(parts, episodes, strict=True):
        pieces.append(part)
        if episode.complete:
            pieces.append(part[-1:] if repeat else np.zeros((1, *part.shape[1:]), part.dtype))
    return np.concatenate(pieces)


def _texts(parts: Sequence[Any], episodes: Sequence[EpisodeData]) -> pa.Array:
    """One column of texts, null in rows of which none is known."""
    rows = [
        text
        for part, episode in zip(parts, episodes, strict=True)
        for text in itertools.islice(itertools.chain(part, [None]), len(episode) + episode.complete)
    ]
    return pa.array(rows, pa.string())


def _tensor(
    parts: Sequence[npt.NDArray[Any]], episodes: Sequence[EpisodeData], *, closing: bool
) -> tuple[pa.Array, np.dtype[Any]]:
    """One column of tensors; closing rows are null where `closing`, and where a final observation is not known."""
    steps = [part[: len(episode)] for part, episode in zip(parts, episodes, strict=True)]
    values = _closed(steps, episodes)
    absent = np.zeros(len(values), np.bool_)
    end = 0
    for part, episode in zip(parts, episodes, strict=True):
        end += len(episode) + episode.complete
        if episode.complete and (closing or len(part) == len(episode)):
            absent[end - 1] = True
        elif episode.complete:
            values[end - 1] = part[-1]
    dtype, shape = values.dtype, values.shape[1:]
    if dtype == np.bool_:
        values = values.view(np.uint8)
    if not shape:
        return pa.array(values, mask=absent), dtype
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    storage = pa.FixedSizeListArray.from_arrays(flat, math.prod(shape), mask=pa.array(absent))
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(flat.type, shape), storage), dtype


def _check_columns(schema: pa.Schema) -> None:
    missing = [name for name in NEEDED if name not in schema.names]
    missing += [prefix for prefix in ("observation", "action") if not _with_prefix(schema, prefix)]
    if missing:
        raise TrajectoryError(
            f"the columns {', '.join(missing)} are missing; there are {', '.join(schema.names) or 'none'}. "
            "Rename those of another tool as docs/run-folder.md has them"
        )


def _with_prefix(schema: pa.Schema, prefix: str, *, texts: bool = False) -> list[str]:
    """The columns of this kind: those of numbers, or those of texts."""
    return [
        field.name
        for field in schema
        if (field.name == prefix or field.name.startswith(f"{prefix}."))
        # An action is no text: whoever reads it as a tensor says so.
        and (_is_text(field.type) == texts or prefix == "action")
    ]


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _episode(parts: list[pa.RecordBatch], row: int) -> EpisodeData:
    """The episode whose rows these are; it begins in row `row` of the whole."""
    table = pa.Table.from_batches(parts).combine_chunks()
    batch = table.to_batches()[0]
    steps = batch["step"].to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(steps != np.arange(len(steps)))
    if len(wrong):
        at = int(wrong[0])
        raise TrajectoryError(f"row {row + at}: step {at} of an episode was expected, but step {steps[at]} came")
    actions = _with_prefix(batch.schema, "action")
    acted = batch[actions[0]].is_valid().to_numpy(zero_copy_only=False)
    count = int(acted.sum())
    if not count or not acted[:count].all() or len(acted) - count > 1:
        raise TrajectoryError(f"row {row}: an episode has rows with an action, and after them at most one without")
    closed = len(acted) > count

    def column(name: str) -> npt.NDArray[Any]:
        values: npt.NDArray[Any] = batch[name].slice(0, count).to_numpy(zero_copy_only=False)
        return values

    def floats(name: str, dtype: type[np.floating[Any]]) -> npt.NDArray[Any] | None:
        if name not in batch.schema.names or batch[name].null_count == len(batch[name]):
            return None
        return column(name).astype(dtype, copy=False)

    def tensors(prefix: str, rows: int) -> Arrays:
        names = _with_prefix(batch.schema, prefix)
        return unnamed(prefix, {name: _from_tensor(batch, name, rows, count, row) for name in names})

    def texts(prefix: str, rows: int) -> dict[str, Any]:
        names = _with_prefix(batch.schema, prefix, texts=True)
        return {name[len(prefix) + 1 :]: batch[name].slice(0, rows).to_pylist() for name in names}

    extras = {
        name[len("extra.") :]: _from_tensor(batch, name, count, count, row)
        for name in _with_prefix(batch.schema, "extra")
    }
    final = closed and all(batch[name][count].is_valid for name in _with_prefix(batch.schema, "observation"))
    terminated, truncated = bool(column("terminated").any()), bool(column("truncated").any())
    # What was not recorded by Relevo may have no closing rows.
    names = batch.schema.names
    identity = batch["actor_id"][0].as_py() if "actor_id" in names else None
    times = batch["timestamp"].slice(0, count).cast(NANOSECONDS).cast(pa.int64()) if "timestamp" in names else None
    return EpisodeData(
        observations=tensors("observation", count + final),
        actions=tensors("action", count),
        rewards=batch["reward"].slice(0, count).cast(pa.float64()).to_numpy(zero_copy_only=False),
        rewards_known=batch["reward"].slice(0, count).is_valid().to_numpy(zero_copy_only=False),
        terminated=terminated,
        truncated=truncated,
        complete=closed or terminated or truncated,
        policies=batch["policy"].slice(0, count).to_pylist() if "policy" in names else [""] * count,
        policy_versions=column("policy_version").astype(np.uint64, copy=False)
        if "policy_version" in names
        else np.zeros(count, np.uint64),
        timestamps=None if times is None else times.to_numpy(zero_copy_only=False).view("datetime64[ns]"),
        action_masks=_from_tensor(batch, "action_mask", count, count, row) if "action_mask" in names else None,
        log_probs=floats("log_prob", np.float32),
        values=floats("value", np.float32),
        actor_id=UUID(bytes=identity) if isinstance(identity, bytes) else identity,
        number=int(batch["episode"][0].as_py()),
        extras={**extras, **texts("extra", count)},
        texts=texts("observation", count + final),
    )


def _from_tensor(batch: pa.RecordBatch, name: str, rows: int, steps: int, row: int) -> npt.NDArray[Any]:
    """The first `rows` rows of a column of tensors; those of the steps must be there."""
    field, array = batch.schema.field(name), batch[name].slice(0, rows)
    if array.slice(0, steps).null_count:
        raise TrajectoryError(f"row {row}: the episode that begins here has steps without {name}")
    shape: tuple[int, ...] = ()
    if isinstance(field.type, pa.FixedShapeTensorType):
        shape, array = tuple(field.type.shape), array.storage
    elif pa.types.is_fixed_size_list(field.type):
        shape = (field.type.list_size,)
    elif not (pa.types.is_integer(field.type) or pa.types.is_floating(field.type) or pa.types.is_boolean(field.type)):
        raise TrajectoryError(f"the column {name} must hold numbers or tensors of them, but it is {field.type}")
    flat = array.flatten() if shape else array
    values: npt.NDArray[Any] = flat.to_numpy(zero_copy_only=False).reshape(rows, *shape)
    booleans = (field.metadata or {}).get(b"relevo.dtype") == b"bool"
    return values.astype(np.bool_) if booleans else values
