"""What can go wrong, by the boundary it crossed.

Every exception derives from `RelevoError` and from the builtin that people catch for such a fault. Its message says
what was expected, what came, and what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uuid import UUID


class RelevoError(Exception):
    """Base of all exceptions that Relevo raises on purpose."""

    actor_id: UUID | None = None
    """The actor that it is about, where it is about one."""


class ConfigError(RelevoError, ValueError):
    """A setting is impossible, or contradicts another one."""


class ModelLoadError(RelevoError, OSError):
    """A model file, or the library that runs it, could not be loaded."""


class ContractError(RelevoError, ValueError):
    """Data does not fit what a model or a kernel takes or gives: a shape, a dtype, NaN, a mask that allows nothing."""


class ActorNotFoundError(RelevoError, KeyError):
    """No actor has this id."""

    def __str__(self) -> str:
        # KeyError would show the message in quotes, as if it were a key.
        return str(self.args[0]) if self.args else ""


class InferenceError(RelevoError, RuntimeError):
    """The forward pass failed, or gave numbers that cannot be used."""


class DeviceUnavailableError(RelevoError, RuntimeError):
    """The device that was asked for is not usable here."""


class AgentStateError(RelevoError, RuntimeError):
    """A call came when it means nothing: before start, after shutdown, without an open step, after a fork."""


class TrajectoryError(RelevoError, OSError):
    """Steps could not be recorded or read."""


class UnsuitableEnvironmentError(RelevoError, ValueError):
    """An environment cannot be made, or does not fit the policy."""


class EnvironmentWorkerError(RelevoError, RuntimeError):
    """A process in which environments run failed, and cannot be started again."""


class ExportError(RelevoError, RuntimeError):
    """A policy could not be exported, or the export would not give what the policy gives."""
