"""Closing run folders when the interpreter ends, for programs that forget `shutdown`."""

from __future__ import annotations

import atexit
import weakref
from typing import TYPE_CHECKING

from relevo import log

if TYPE_CHECKING:
    from relevo._core import Agent

_agents: weakref.WeakSet[Agent] = weakref.WeakSet()


def shut_down_at_exit(agent: Agent) -> None:
    """Shuts `agent` down when the interpreter ends, if it still runs then."""
    _agents.add(agent)


@atexit.register
def _shut_down_all() -> None:
    try:
        for agent in list(_agents):
            agent.shutdown()
    finally:
        log.finish()
