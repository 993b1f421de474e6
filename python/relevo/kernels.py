"""The mathematics of advantages, bandwidth, prefixes and sampling, over NumPy arrays.

Every function checks what it is given, also numbers that it would not use, before it writes. It computes in float32
where all arrays are float32, else in float64, and the arrays that it gives are of that type. Arrays may have any
strides; those that are contiguous and of the type are not copied. The interpreter lock is released while large arrays
are worked on.

`[T, N]` is time by streams, oldest first; `[T]` is one stream, and further axes are further streams. Flags are bools,
or integers 0 and 1. Where a step is terminated and truncated, terminated wins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from relevo._core import (
    EMAPlanTracker,
    attention_bandwidth_cost,
    bandwidth_aware_priorities,
    bandwidth_efficiency,
    discounted_returns,
    effective_bandwidth_cost,
    gae,
    n_step,
    plan_surprise,
    prefix_match,
    prioritized_proportional,
    priority_sample,
    vtrace,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.floating[Any]]
    Integers = npt.NDArray[np.int64]

__all__ = [
    "Advantages",
    "EMAPlanTracker",
    "NStepReturns",
    "PrioritySample",
    "ProportionalSample",
    "VTrace",
    "attention_bandwidth_cost",
    "bandwidth_aware_priorities",
    "bandwidth_efficiency",
    "discounted_returns",
    "effective_bandwidth_cost",
    "gae",
    "kernels_available",
    "n_step",
    "plan_surprise",
    "prefix_match",
    "prioritized_proportional",
    "priority_sample",
    "vtrace",
]


class Advantages(NamedTuple):
    """What `gae` gives."""

    advantages: Floats
    """`[T, N]`."""
    returns: Floats
    """`[T, N]`: advantages + values."""


class NStepReturns(NamedTuple):
    """What `n_step` gives. The target is `returns + discounts * next_values[bootstrap_index]`, stream by stream."""

    returns: Floats
    """`[T, N]`: the discounted rewards of the steps taken."""
    discounts: Floats
    """`[T, N]`: gamma to the number of steps, or 0 if the last step taken terminated."""
    bootstrap_index: Integers
    """`[T, N]`: the row whose next (final) observation is the bootstrap state."""
    steps: Integers
    """`[T, N]`: how many steps were taken."""


class VTrace(NamedTuple):
    """What `vtrace` gives."""

    vs: Floats
    """`[T, N]`: targets of the values."""
    pg_advantages: Floats
    """`[T, N]`: advantages for the policy gradient."""


class PrioritySample(NamedTuple):
    """What `priority_sample` gives."""

    indices: Integers
    """`[B]`: the items drawn."""
    probabilities: Floats
    """`[N]`: of every item."""
    weights: Floats
    """`[B]`: importance weights, at most 1."""


class ProportionalSample(NamedTuple):
    """What `prioritized_proportional` gives."""

    probabilities: Floats
    """`[N]`: of every item."""
    weights: Floats
    """`[B]`: importance weights, divided by the largest in the batch."""
    weights_global_max: Floats
    """`[B]`: the same, divided by the largest of all items that can be drawn."""


def kernels_available() -> bool:
    """Whether the kernels in Rust are there: always, as every wheel has them."""
    return True
