"""Gymnasium's spaces of what a run holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from relevo.errors import ConfigError, TrajectoryError
from relevo.trajectories.episode_data import Arrays, EpisodeData, named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy.typing as npt


MOST_CHOICES = 1 << 62
"""A larger whole number is no choice among so many, and would be more than Gymnasium can count."""


@dataclass(frozen=True)
class Spaces:
    """The spaces of a dataset."""

    observation: Any
    action: Any
    shapes: dict[str, tuple[np.dtype[Any], tuple[int, ...]]]
    """Type and row's shape of each column that all episodes must have."""

    @classmethod
    def of(cls, episodes: Callable[[], Iterable[EpisodeData]], env: Any, observation: Any, action: Any) -> Spaces:  # noqa: ANN401
        """As given, from the environment, or from the episodes; these are read through for the largest action.

        Raises:
            ConfigError: a space does not fit what was recorded, or the environment cannot be made.
            TrajectoryError: there is no episode, or a column's name cannot be held.
        """
        like = next(iter(episodes()), None)
        if like is None:
            raise TrajectoryError("there is no episode to be written; was the right policy named?")
        for name in [*_columns(like), *like.extras, *like.texts]:
            if "/" in name:
                raise TrajectoryError(
                    f"Minari cannot hold the column {name}: its names have no slashes; export to parquet"
                )
        if env is not None:
            own_observation, own_action = _of_env(env)
            observation = own_observation if observation is None else observation
            action = own_action if action is None else action
        if observation is None:
            observation = _space(like.observations, {})
        if action is None:
            action = _space(like.actions, _largest(episodes()))
        shapes = {name: (array.dtype, array.shape[1:]) for name, array in _columns(like).items()}
        _fit("observation", observation, like.observations)
        _fit("action", action, like.actions)
        return cls(observation, action, shapes)

    def check(self, episode: EpisodeData) -> None:
        """Raises a `TrajectoryError` where an episode has other columns than the first one."""
        own = {name: (array.dtype, array.shape[1:]) for name, array in _columns(episode).items()}
        if own != self.shapes:
            raise TrajectoryError(
                f"episode {episode.number} of policy {episode.policies[0]} has other observations or actions than "
                "those before it, and a Minari dataset has one space for all; name a policy"
            )


def flattened(prefix: str, value: Any) -> dict[str, Any]:  # noqa: ANN401  (of any space)
    """The parts of nested dicts and tuples, by their names joined by dots."""
    if isinstance(value, tuple):
        value = {str(index): part for index, part in enumerate(value)}
    if not isinstance(value, dict):
        return {prefix: value}
    parts: dict[str, Any] = {}
    for name, part in value.items():
        parts |= flattened(f"{prefix}.{name}" if prefix else str(name), part)
    return parts


def _columns(episode: EpisodeData) -> dict[str, npt.NDArray[Any]]:
    return {**named("observation", episode.observations), **named("action", episode.actions)}


def _of_env(env: Any) -> tuple[Any, Any]:  # noqa: ANN401
    import gymnasium

    try:
        made = gymnasium.make(env) if isinstance(env, str) else env
    except gymnasium.error.Error as error:
        raise ConfigError(f"the environment {env} cannot be made: {error}") from error
    return made.observation_space, made.action_space


def _largest(episodes: Iterable[EpisodeData]) -> dict[str, npt.NDArray[np.int64]]:
    """The largest whole number of each column of actions."""
    largest: dict[str, npt.NDArray[np.int64]] = {}
    for episode in episodes:
        for name, array in named("", episode.actions).items():
            if array.dtype.kind in "iu":
                own = array.max(axis=0)
                largest[name] = np.maximum(largest[name], own) if name in largest else own
    return largest


def _space(arrays: Arrays, largest: dict[str, npt.NDArray[np.int64]]) -> Any:  # noqa: ANN401  (a space)
    from gymnasium import spaces

    parts = {name: _part(array, largest.get(name)) for name, array in named("", arrays).items()}
    return spaces.Dict({name[1:]: part for name, part in parts.items()}) if isinstance(arrays, dict) else parts[""]


def _part(array: npt.NDArray[Any], largest: npt.NDArray[np.int64] | None) -> Any:  # noqa: ANN401  (a space)
    from gymnasium import spaces

    shape = array.shape[1:]
    if largest is not None and (array >= 0).all() and (largest < MOST_CHOICES).all():
        return spaces.MultiDiscrete(largest + 1) if shape else spaces.Discrete(int(largest) + 1)
    if array.dtype == np.bool_:
        return spaces.MultiBinary(shape)
    if array.dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, array.dtype.type)
    limits = np.iinfo(array.dtype)
    return spaces.Box(limits.min, limits.max, shape, array.dtype.type)


def _fit(what: str, space: Any, arrays: Arrays) -> None:  # noqa: ANN401  (a space)
    """Raises a `ConfigError` where the first row's shape is not the space's."""
    wanted = {name: part.shape for name, part in flattened("", _parts(space)).items()}
    came = {name.removeprefix("."): array.shape[1:] for name, array in named("", arrays).items()}
    if wanted != came:
        raise ConfigError(f"the {what} space has {wanted}, but what was recorded has {came}; give the {what}_space")


def _parts(space: Any) -> Any:  # noqa: ANN401  (a space)
    """Nested dicts of a nested space."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return {name: _parts(part) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(_parts, space.spaces))
    return space
