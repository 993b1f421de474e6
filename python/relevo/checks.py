"""Numbers that people give as settings: taken in whatever type they come, NumPy's as well, and checked."""

from __future__ import annotations

import math
import operator
from typing import SupportsFloat, cast

from relevo.errors import ConfigError

LONGEST_SECONDS = 1_000_000
"""Eleven days; the system counts milliseconds in 32 bits."""


def whole_number(name: str, value: object, least: int) -> int:
    """The setting `name`, which must be at least `least`.

    Raises:
        ConfigError: it is no whole number, too small, or does not fit into 64 bits.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(f"{name} must be a whole number, but {value!r} ({type(value).__name__}) came") from None
    if number < least:
        raise ConfigError(f"{name} must be at least {least}, but is {number}")
    if number >= 1 << 63:
        raise ConfigError(f"{name} must be below 2**63, but is {number}")
    return number


def seconds(name: str, value: object, *, may_be_zero: bool = False, otherwise: str = "") -> float:
    """The setting `name`, a time.

    Args:
        name: how an error calls it.
        value: what was given.
        may_be_zero: whether no time at all will do.
        otherwise: what else could have been given, for the error.

    Raises:
        ConfigError: it is no number of seconds, or out of bounds.
    """
    try:
        # A text that reads as a number is a mistake all the same.
        number = math.nan if isinstance(value, str | bytes) else float(cast("SupportsFloat", value))
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (number > 0 or (may_be_zero and number == 0)) or number > LONGEST_SECONDS:
        least = "at least" if may_be_zero else "more than"
        raise ConfigError(
            f"{name} must be {least} 0 and at most {LONGEST_SECONDS:,} seconds{otherwise}, but is {value!r}"
        )
    return number
