"""Many actors, shared policies, every step written down: reinforcement learning with a Rust core."""

from relevo import envs
from relevo._core import (
    ActionBatch,
    Actors,
    Agent,
    Contract,
    Episode,
    ModelModule,
    Run,
    StateContract,
    TensorContract,
    __version__,
)
from relevo.builder import AgentBuilder
from relevo.collection import CollectResult, collect
from relevo.errors import (
    ActorNotFoundError,
    AgentStateError,
    ConfigError,
    ContractError,
    DeviceUnavailableError,
    EnvironmentWorkerError,
    InferenceError,
    ModelLoadError,
    RelevoError,
    TrajectoryError,
    UnsuitableEnvironmentError,
)

open_run = Run.open

__all__ = [
    "ActionBatch",
    "ActorNotFoundError",
    "Actors",
    "Agent",
    "AgentBuilder",
    "AgentStateError",
    "CollectResult",
    "ConfigError",
    "Contract",
    "ContractError",
    "DeviceUnavailableError",
    "EnvironmentWorkerError",
    "Episode",
    "InferenceError",
    "ModelLoadError",
    "ModelModule",
    "RelevoError",
    "Run",
    "StateContract",
    "TensorContract",
    "TrajectoryError",
    "UnsuitableEnvironmentError",
    "__version__",
    "collect",
    "envs",
    "open_run",
]
