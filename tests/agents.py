"""Agents and observations for tests of single calls."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

import relevo

LONG = 60.0
"""Seconds; longer than any test: what waits for it hangs."""


def builder(policy: Path, actors: int, head: str = "argmax") -> relevo.AgentBuilder:
    """An agent with one policy and a fixed seed."""
    return relevo.AgentBuilder().default_model(policy, head=head).actor_count(actors).seed(7)  # type: ignore[arg-type]


def one_hot(choice: int, width: int = 4) -> npt.NDArray[np.float32]:
    """The observation for which a policy of the identity chooses `choice`."""
    return np.eye(width, dtype=np.float32)[[choice]]
