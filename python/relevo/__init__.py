"""Many actors, shared policies, every step written down: reinforcement learning with a Rust core."""

from relevo import envs, export, kernels, trajectories
from relevo._core import (
    ActionBatch,
    Actors,
    Agent,
    Contract,
    Episode,
    ModelModule,
    Run,
    RunWriter,
    StateContract,
    Steps,
    Subscription,
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
    ExportError,
    InferenceError,
    ModelLoadError,
    RelevoError,
    TrajectoryError,
    UnsuitableEnvironmentError,
)
from relevo.settings import Bounds, Normalization

open_run = Run.open

__all__ = [
    "ActionBatch",
    "ActorNotFoundError",
    "Actors",
    "Agent",
    "AgentBuilder",
    "AgentStateError",
    "Bounds",
    "CollectResult",
    "ConfigError",
    "Contract",
    "ContractError",
    "DeviceUnavailableError",
    "EnvironmentWorkerError",
    "Episode",
    "ExportError",
    "InferenceError",
    "ModelLoadError",
    "ModelModule",
    "Normalization",
    "RelevoError",
    "Run",
    "RunWriter",
    "StateContract",
    "Steps",
    "Subscription",
    "TensorContract",
    "TrajectoryError",
    "UnsuitableEnvironmentError",
    "__version__",
    "collect",
    "envs",
    "export",
    "kernels",
    "open_run",
    "trajectories",
]
