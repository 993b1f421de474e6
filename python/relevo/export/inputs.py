"""`Input`: an input of a model, and random rows of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from relevo.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import gymnasium
    import numpy.typing as npt

    from relevo._core import Contract

Observation: TypeAlias = "gymnasium.Space[Any] | npt.ArrayLike | Mapping[str, npt.ArrayLike]"

ONLY = "obs"
"""The name of an observation that has none."""


@dataclass(frozen=True)
class Input:
    """An input of a model: an array of rows."""

    name: str
    dtype: np.dtype[Any]
    row_shape: tuple[int, ...]
    low: Any = -np.inf
    """The smallest values that a row may hold, a number or an array."""
    high: Any = np.inf
    """The largest values."""
    batch_axis: int = 0
    is_mask: bool = False
    is_state: bool = False
    """Whether an output gives its value for the next step."""

    def rows(self, count: int, random: np.random.Generator, spread: float = 1.0) -> npt.NDArray[Any]:
        """Random rows: floats around 0, as wide as `spread` says, and integers, within the bounds."""
        shape = (count, *self.row_shape)
        if self.is_mask:
            values = random.integers(0, 1, shape, endpoint=True)
            values[..., 0] = 1  # one must be allowed
        elif self.dtype.kind == "f":
            values = np.clip(random.standard_normal(shape) * spread, self.low, self.high)
        elif self.dtype.kind == "b":
            values = random.integers(0, 1, shape, endpoint=True)
        else:
            values = random.integers(self.low, self.high, shape, endpoint=True)
        return np.moveaxis(values.astype(self.dtype), 0, self.batch_axis).copy()


def of_observation(observation: Observation) -> tuple[Input, ...]:
    """The inputs of a policy that observes elements of a Gymnasium space, or what the examples show.

    Floats are float32, as policies take them.
    """
    spaces = getattr(observation, "spaces", None)
    if spaces is not None:
        parts = (
            spaces.items()
            if isinstance(spaces, Mapping)
            else ((f"{ONLY}_{at}", part) for at, part in enumerate(spaces))
        )
        return tuple(_of_space(name, part) for name, part in parts)
    if callable(getattr(observation, "sample", None)):
        return (_of_space(ONLY, observation),)
    if isinstance(observation, Mapping):
        return tuple(_of_examples(name, examples) for name, examples in observation.items())
    return (_of_examples(ONLY, observation),)


def of_states(states: Mapping[str, Sequence[int]]) -> tuple[Input, ...]:
    """States by the names of their arguments, whose rows are counted by their first axis unless that is found out."""
    return tuple(
        Input(
            name if name.endswith("_in") else f"{name}_in", np.dtype(np.float32), tuple(map(int, shape)), is_state=True
        )
        for name, shape in states.items()
    )


def next_name(state: str) -> str:
    """The output that gives the next value of a state, in a file that is exported."""
    return f"{state.removesuffix('_in')}_out"


def of_contract(contract: Contract) -> tuple[Input, ...]:
    """The inputs of a model that is loaded."""
    return tuple(
        Input(
            tensor.name,
            np.dtype(tensor.dtype),
            tensor.row_shape,
            low=-np.inf if tensor.dtype.startswith("float") else 0,
            # What numbers of things may be, the contract does not say; 0 and 1 should be among them.
            high=np.inf if tensor.dtype.startswith("float") else 255 if tensor.dtype == "uint8" else 1,
            batch_axis=tensor.batch_axis or 0,
            is_mask=tensor.role == "action_mask",
            is_state=tensor.role == "state",
        )
        for tensor in contract.inputs
    )


def _of_space(name: str, space: Any) -> Input:  # noqa: ANN401 : any Gymnasium space
    kind = type(space).__name__
    if kind == "Discrete":
        return Input(name, np.dtype(np.int64), (), int(space.start), int(space.start + space.n - 1))
    if kind == "MultiDiscrete":
        return Input(name, np.dtype(np.int64), space.nvec.shape, space.start, space.start + space.nvec - 1)
    if kind == "MultiBinary":
        return Input(name, np.dtype(np.int8), space.shape, 0, 1, is_mask=_says_mask(name))
    if kind == "Box":
        return Input(name, _policy_dtype(space.dtype), space.shape, space.low, space.high, is_mask=_says_mask(name))
    raise ConfigError(
        f"the observation `{name}` is of the space {space}; give a Box, Discrete, MultiDiscrete, MultiBinary, or a "
        "Dict or Tuple of these, or examples of what the policy observes"
    )


def _of_examples(name: str, given: Any) -> Input:  # noqa: ANN401 : what NumPy makes an array of
    examples = np.asarray(given.detach().cpu() if hasattr(given, "detach") else given)
    if examples.ndim == 0 or len(examples) == 0 or examples.dtype.kind not in "biuf":
        raise ConfigError(
            f"examples of the observation `{name}` must be an array of rows [N, …] of numbers, but "
            f"{examples.dtype} of shape {examples.shape} came"
        )
    is_float = examples.dtype.kind == "f"
    low, high = (-np.inf, np.inf) if is_float else (examples.min(axis=0), examples.max(axis=0))
    return Input(name, _policy_dtype(examples.dtype), examples.shape[1:], low, high, is_mask=_says_mask(name))


def _says_mask(name: str) -> bool:
    """Whether Relevo takes an input of this name for a mask."""
    return "mask" in name.lower()


def _policy_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.float32) if dtype.kind == "f" else np.dtype(dtype)
