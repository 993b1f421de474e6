"""The seeds that a reset of a vector environment gives to its environments."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, cast

from relevo.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def seeds_of(seed: int | Sequence[int | None] | None, num_envs: int) -> list[int | None]:
    """A seed for each environment, checked here: in a worker, a bad one would look like a fault of the environment's.

    Args:
        seed: a whole number for the first one, from which the others count on; or one, or None, for each; or None.
        num_envs: how many environments.

    Raises:
        ConfigError: anything else.
    """
    if seed is None:
        return [None] * num_envs
    try:
        first = _checked(operator.index(cast("int", seed)))
    except TypeError:
        seeds = _listed(seed)
    else:
        return [first + index for index in range(num_envs)]
    if len(seeds) != num_envs:
        raise ConfigError(f"seed must be a whole number, or a list with one for each of {num_envs}, but {seed!r} came")
    return [None if each is None else _checked(each) for each in seeds]


def _listed(seeds: object) -> list[object]:
    """None of them where it is nothing to take seeds from."""
    if isinstance(seeds, str | bytes):
        return []
    try:
        return list(cast("Iterable[object]", seeds))
    except TypeError:
        return []


def _checked(seed: object) -> int:
    try:
        number = operator.index(cast("int", seed))
    except TypeError:
        number = -1
    if number < 0:
        raise ConfigError(f"a seed must be a whole number from 0 on, but is {seed!r}")
    return number
