"""What a policy does with its model: bounds of its actions, statistics of its observations."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, get_args

import numpy as np

from relevo._core import check_bounds, check_normalization
from relevo.errors import ConfigError

if TYPE_CHECKING:
    import os

    import gymnasium
    import numpy.typing as npt

    from relevo._core import Contract

Head: TypeAlias = Literal["argmax", "categorical", "gaussian", "raw"]
How: TypeAlias = Literal["clip", "rescale", "tanh"]

_FORM = (
    'write one JSON object into it: {"mean": [numbers], "variance": [numbers], "epsilon": 1e-8, "clip": 10.0}; the '
    "last two may be missing"
)


class Bounds:
    """Brings a policy's continuous actions into the bounds of an environment.

    `"clip"` takes the nearest bound for values outside. `"rescale"` takes the policy's -1 for the lower bound and its 1
    for the upper, and clips beyond. `"tanh"` squashes what the policy says by tanh, with the log-probability of the
    squashed action, and rescales that.

    What is recorded is the policy's action, squashed but neither clipped nor rescaled: its log-probability belongs to
    that.
    """

    def __init__(self, low: npt.ArrayLike, high: npt.ArrayLike, how: How = "clip") -> None:
        """Bounds for each element of an action.

        Args:
            low: lower bounds; `-inf` where there is none (`"clip"` alone).
            high: upper bounds, as many.
            how: how actions are brought into them.

        Raises:
            ConfigError: there are not as many lower as upper ones, or one is NaN, or not below its upper one, or
                infinite where actions are rescaled to it.
        """
        if how not in get_args(How):
            raise ConfigError(f"actions are brought into bounds by {_words(get_args(How))}, but how is {how!r}")
        self.low, self.high = _alike("low", low, "high", high)
        self.how = how
        check_bounds(self)

    @classmethod
    def of(cls, space: gymnasium.Space[Any], how: How = "clip") -> Self:
        """The bounds of a Gymnasium `Box`."""
        low, high = getattr(space, "low", None), getattr(space, "high", None)
        if low is None or high is None:
            raise ConfigError(
                f"bounds are those of a Box, but the space is {space}; leave bounds out, or give the Box "
                "of the continuous actions"
            )
        return cls(low, high, how)

    def as_dict(self) -> dict[str, Any]:
        """As `run.json` holds it; infinite bounds as text, for which JSON has no number."""
        return {"low": _for_json(self.low), "high": _for_json(self.high), "how": self.how}

    def __repr__(self) -> str:
        """`Bounds(low=[-2.0], high=[2.0], how='clip')`."""
        return f"Bounds(low={self.low}, high={self.high}, how={self.how!r})"


class Normalization:
    """Running statistics beside a model: it observes clip((obs - mean) / sqrt(variance + epsilon), -clip, clip).

    The numbers are those that Stable-Baselines3's `VecNormalize` keeps in `obs_rms`. What is recorded is the
    observation as the environment gave it.
    """

    def __init__(self, mean: npt.ArrayLike, variance: npt.ArrayLike, epsilon: float = 1e-8, clip: float = 10.0) -> None:
        """Statistics for each element of an observation.

        Args:
            mean: means.
            variance: variances, as many.
            epsilon: added to the variance.
            clip: what normalised elements are limited to; `inf` for no limit.

        Raises:
            ConfigError: there are not as many means as variances, or a mean is not finite, a variance negative or NaN,
                or the clip not above 0.
        """
        self.mean, self.variance = _alike("mean", mean, "variance", variance)
        self.epsilon = _number("epsilon", epsilon)
        self.clip = _number("clip", clip)
        check_normalization(self)

    @classmethod
    def from_json(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a file of `{"mean": […], "variance": […], "epsilon": 1e-8, "clip": 10.0}`; the last two may be missing.

        Nothing of it is unpickled. From a `VecNormalize` that is loaded, write
        `{"mean": rms.mean.tolist(), "variance": rms.var.tolist(), "epsilon": env.epsilon, "clip": env.clip_obs}`.
        """
        keys = ("mean", "variance", "epsilon", "clip")
        try:
            given = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read a normalisation from {path}: {error}; {_FORM}") from None
        if not isinstance(given, dict) or not {"mean", "variance"} <= given.keys() or not given.keys() <= set(keys):
            found = ", ".join(map(str, given)) if isinstance(given, dict) else type(given).__name__
            raise ConfigError(f"{path} holds no normalisation, but: {found}; {_FORM}")
        return cls(**given)

    def as_dict(self) -> dict[str, Any]:
        """As `run.json` holds it, and `from_json` reads it."""
        epsilon, clip = _for_json([self.epsilon, self.clip])
        return {"mean": _for_json(self.mean), "variance": _for_json(self.variance), "epsilon": epsilon, "clip": clip}

    def __repr__(self) -> str:
        """`Normalization(4 elements, epsilon=1e-08, clip=10.0)`."""
        return f"Normalization({len(self.mean)} elements, epsilon={self.epsilon}, clip={self.clip})"


@dataclass(frozen=True)
class PolicySettings:
    """What `Agent` is told of a policy beside its model."""

    head: Head | None = None
    branches: list[int] = field(default_factory=list)
    bounds: Bounds | None = None
    normalization: dict[str, Normalization] = field(default_factory=dict)


def checked_bounds(given: object) -> Bounds | None:
    """What a user gave as `bounds`.

    Raises:
        ConfigError: it is something else.
    """
    if given is not None and not isinstance(given, Bounds):
        raise ConfigError(
            f"bounds must be a relevo.Bounds, but {given!r} ({type(given).__name__}) came; write Bounds(low, high), or "
            "Bounds.of(env.action_space)"
        )
    return given


def checked_normalization(given: object) -> Normalization | dict[str, Normalization] | None:
    """What a user gave as `normalization`.

    Raises:
        ConfigError: it is something else.
    """
    if given is None or isinstance(given, Normalization):
        return given
    if not isinstance(given, Mapping) or not all(isinstance(own, Normalization) for own in given.values()):
        raise ConfigError(
            f"normalization must be a relevo.Normalization, or a dict of them by the observations' names, but "
            f"{given!r} ({type(given).__name__}) came; write Normalization(mean, variance)"
        )
    return dict(given)


def statistics(contract: Contract, given: object) -> dict[str, Normalization]:
    """The normalisations, checked, by the names of a model's observations."""
    given = checked_normalization(given)
    if given is None:
        return {}
    if not isinstance(given, Normalization):
        return given
    names = [tensor.name for tensor in contract.inputs if tensor.role == "observation"]
    if len(names) != 1:
        raise ConfigError(
            f"the model has {len(names)} observations ({_words(names)}); give normalisations by name: "
            f'{{"{names[0]}": Normalization(…)}}'
        )
    return {names[0]: given}


def _alike(name: str, given: npt.ArrayLike, other: str, more: npt.ArrayLike) -> tuple[list[float], list[float]]:
    """The numbers of two arrays of one shape."""
    first, second = _array(name, given), _array(other, more)
    # Where the counts differ, the engine says so.
    if first.size == 0 or (first.shape != second.shape and first.size == second.size):
        raise ConfigError(
            f"{name} and {other} must be arrays of one shape, with a number for each element, but came with the shapes "
            f"{first.shape} and {second.shape}"
        )
    return first.reshape(-1).tolist(), second.reshape(-1).tolist()


def _number(name: str, given: npt.ArrayLike) -> float:
    array = _array(name, given)
    if array.ndim > 0:
        raise ConfigError(f"{name} must be one number, but {given!r} came")
    return float(array)


def _array(name: str, given: npt.ArrayLike) -> npt.NDArray[np.float64]:
    try:
        return np.asarray(given, np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} must be numbers, but {given!r} came: {error}") from None


def _for_json(numbers: list[float]) -> list[float | str]:
    return [number if math.isfinite(number) else str(number) for number in numbers]


def _words(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(names)
