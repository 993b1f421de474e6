"""The memory that a vector environment shares with its workers: everything of fixed size that a step hands over."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from relevo.errors import UnsuitableEnvironmentError

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import SpawnContext

ArrayTree: TypeAlias = "npt.NDArray[Any] | dict[str, ArrayTree] | tuple[ArrayTree, ...]"
"""An array, or a dict or tuple of those, as deep as the space that it belongs to; rows are environments."""

Space: TypeAlias = "spaces.Space[Any]"

Memory: TypeAlias = "ctypes.Array[ctypes.c_byte]"

ALIGNMENT = 64
"""Bytes, of which each array's place in the memory is a multiple: a cache line, and enough for every type."""

LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete)


@dataclass(frozen=True)
class Layout:
    """What lies in the memory, and in which order."""

    observation_space: Space
    """Of one environment."""
    action_space: Space
    num_envs: int
    finals: bool
    """Whether final observations lie there as well."""


class SharedArrays:
    """Views on a block of memory without a name: it is gone with the last process that holds it, however that ends."""

    observations: ArrayTree
    actions: ArrayTree
    final_observations: ArrayTree | None
    """Where environments reset in the step that ends an episode: what they showed before; else None."""
    rewards: npt.NDArray[np.float64]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]

    def __init__(self, layout: Layout, memory: Memory | None) -> None:
        """Takes the views; `memory` comes from `allocate`, here or in another process.

        Raises:
            UnsuitableEnvironmentError: a space is of a kind that has no fixed size.
        """
        arrays = _Arrays(memory, layout.num_envs)
        self.observations = arrays.tree(layout.observation_space)
        self.final_observations = arrays.tree(layout.observation_space) if layout.finals else None
        self.actions = arrays.tree(layout.action_space)
        self.rewards = arrays.array((), np.dtype(np.float64))
        self.terminated = arrays.array((), np.dtype(np.bool_))
        self.truncated = arrays.array((), np.dtype(np.bool_))
        self.size = arrays.size
        """Bytes; all that there is to know without memory."""


def allocate(layout: Layout, context: SpawnContext) -> Memory:
    """Memory for that, all zero. It is handed to a process when that is started, and at no other time.

    Raises:
        UnsuitableEnvironmentError: a space is of a kind that has no fixed size.
    """
    return context.RawArray(ctypes.c_byte, SharedArrays(layout, None).size)


class _Arrays:
    """Arrays one after the other; where there is no memory yet, only their size is worked out."""

    def __init__(self, memory: Memory | None, rows: int) -> None:
        self._memory = memory
        self._rows = rows
        self.size = 0

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """The next array `[rows, *shape]`."""
        whole = (self._rows, *shape)
        begin = self.size
        self.size += -(-max(1, int(np.prod(whole)) * dtype.itemsize) // ALIGNMENT) * ALIGNMENT
        if self._memory is None:
            return np.empty(0, dtype)
        return np.ndarray(whole, dtype, memoryview(self._memory), begin)

    def tree(self, space: Space) -> ArrayTree:
        """The next arrays, for a row of `space` in each environment."""
        if isinstance(space, spaces.Dict):
            return {name: self.tree(part) for name, part in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(self.tree(part) for part in space.spaces)
        if isinstance(space, LEAVES):
            return self.array(cast("tuple[int, ...]", space.shape), np.dtype(space.dtype))
        raise UnsuitableEnvironmentError(
            f"values of the space {space} have no fixed size, so that they cannot lie in shared memory; Box, Discrete, "
            "MultiBinary, MultiDiscrete, and Dict and Tuple of these can. Wrap the environment, or step it in this "
            "process: gymnasium.vector.SyncVectorEnv"
        )


def rows_of(tree: ArrayTree, rows: slice | npt.NDArray[np.intp]) -> ArrayTree:
    """Some rows of all arrays: views for a slice, copies for indices."""
    if isinstance(tree, dict):
        return {name: rows_of(part, rows) for name, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(rows_of(part, rows) for part in tree)
    return tree[rows]


def row_of(tree: ArrayTree, row: int) -> Any:  # noqa: ANN401 : an element of a space
    """What one environment has: an element of the space."""
    if isinstance(tree, dict):
        return {name: row_of(part, row) for name, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(row_of(part, row) for part in tree)
    return tree[row]


def copy_of(tree: ArrayTree) -> ArrayTree:
    """A copy that nobody else writes into."""
    if isinstance(tree, dict):
        return {name: copy_of(part) for name, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(copy_of(part) for part in tree)
    return tree.copy()


def copy_into(tree: ArrayTree, values: Any, what: str = "actions") -> None:  # noqa: ANN401 : a batch of a space
    """Writes a batch of values, one for each row.

    Raises:
        UnsuitableEnvironmentError: they are of another shape, or of a type that would lose what they say.
    """
    if isinstance(tree, dict):
        for name, part in tree.items():
            copy_into(part, _part(values, name, what), f"{what}[{name!r}]")
    elif isinstance(tree, tuple):
        for index, part in enumerate(tree):
            copy_into(part, _part(values, index, what), f"{what}[{index}]")
    else:
        array = np.asarray(values)
        if array.shape != tree.shape or not np.can_cast(array.dtype, tree.dtype, "same_kind"):
            raise UnsuitableEnvironmentError(
                f"the {what} must be {tree.dtype} of shape {tree.shape}, but {array.dtype} of shape {array.shape} came"
            )
        tree[...] = array


def _part(values: Any, key: str | int, what: str) -> Any:  # noqa: ANN401 : a batch of a space
    try:
        return values[key]
    except (KeyError, IndexError, TypeError) as error:
        raise UnsuitableEnvironmentError(
            f"the {what} must have a part {key!r}, but {type(values).__name__} without it came"
        ) from error


def row_writer(tree: ArrayTree) -> Callable[[int, Any], None]:
    """A function that writes what one environment observed into its row.

    It raises an `UnsuitableEnvironmentError` for what is no element of the space by its shape or type.
    """
    if isinstance(tree, dict):
        named = [(name, row_writer(part)) for name, part in tree.items()]

        def write_dict(row: int, value: Any) -> None:  # noqa: ANN401 : an element of a space
            for name, write in named:
                write(row, value[name])

        return write_dict
    if isinstance(tree, tuple):
        writers = [row_writer(part) for part in tree]

        def write_tuple(row: int, value: Any) -> None:  # noqa: ANN401 : as above
            for write, part in zip(writers, value, strict=True):
                write(row, part)

        return write_tuple
    # Looked up once: this runs for every environment at every step.
    shape, dtype, rows = tree.shape[1:], tree.dtype, tree

    def write_array(row: int, value: Any) -> None:  # noqa: ANN401 : as above
        array = value if type(value) is np.ndarray else np.asarray(value)
        if array.shape != shape or not (array.dtype is dtype or np.can_cast(array.dtype, dtype, "same_kind")):
            raise UnsuitableEnvironmentError(
                f"the environment's space says that it observes {dtype} of shape {shape}, but {array.dtype} of shape "
                f"{array.shape} came"
            )
        rows[row] = array

    return write_array
