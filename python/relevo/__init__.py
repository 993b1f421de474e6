"""Many actors, shared policies, every step written down: reinforcement learning with a Rust core."""

from relevo import environments
from relevo._core import (
    ActionBatch,
    Actors,
    Agent,
    Contract,
    Episode,
    ModelModule,
    Run,
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
    EnvironmentError,
    InferenceError,
    ModelLoadError,
    RelevoError,
    TrajectoryError,
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
    "EnvironmentError",
    "Episode",
    "InferenceError",
    "ModelLoadError",
    "ModelModule",
    "RelevoError",
    "Run",
    "TensorContract",
    "TrajectoryError",
    "__version__",
    "collect",
    "environments",
    "open_run",
]
