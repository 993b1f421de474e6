"""`AgentBuilder`: every setting of an agent, with its default, in one place."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, TypeAlias, cast, get_args

from relevo import log
from relevo._core import Agent, ModelModule
from relevo.checks import seconds as checked_seconds
from relevo.checks import whole_number
from relevo.errors import ConfigError
from relevo.record_settings import Compression, Format, Fsync, OnFailure, RecordSettings
from relevo.settings import (
    Bounds,
    Head,
    Normalization,
    PolicySettings,
    checked_bounds,
    checked_normalization,
    statistics,
)
from relevo.shutdown import shut_down_at_exit

OnError: TypeAlias = Literal["raise", "drop_actor"]


@dataclass(frozen=True)
class _Policy:
    model: ModelModule | str | os.PathLike[str]
    head: Head | None
    roles: Mapping[str, str] | None
    branches: list[int]
    bounds: Bounds | None
    normalization: Normalization | dict[str, Normalization] | None

    def settings(self, model: ModelModule) -> PolicySettings:
        return PolicySettings(self.head, self.branches, self.bounds, statistics(model.contract, self.normalization))


class AgentBuilder:
    """Describes an agent, setting by setting; `build` makes it.

    Each method returns the builder, so that calls can be chained. Nothing is loaded or opened before `build`.
    """

    def __init__(self) -> None:
        self._policies: dict[str, _Policy] = {}
        self._actor_count = 1
        self._device: str | None = None
        self._threads = 1
        self._routers = 1
        self._max_batch = 256
        self._max_wait = 0.0005
        self._on_error: OnError = "raise"
        self._record: RecordSettings | None = None
        self._memory_trajectories = 1_000
        self._memory_bytes = 256 << 20
        self._max_trajectory_length: int | None = None
        self._seed: int | None = None
        self._keep_outputs = False
        self._extras: list[tuple[str, str, list[int], bool]] = []

    def default_model(
        self,
        model: ModelModule | str | os.PathLike[str],
        head: Head | None = None,
        roles: Mapping[str, str] | None = None,
        *,
        branches: Sequence[int] | None = None,
        bounds: Bounds | None = None,
        normalization: Normalization | Mapping[str, Normalization] | None = None,
    ) -> Self:
        """The model of the policy `default`, which new actors follow.

        Args:
            model: a loaded `ModelModule` or a path.
            head: how actions come from its outputs; without one the model's contract decides.
            roles: overrides what an input or output is taken for, by its name: `{"obs": "observation"}`; a model that
                is loaded already has its roles.
            branches: numbers of choices of a multi-discrete action, whose logits lie one behind the other in one
                output; needed where the file does not say them.
            bounds: what continuous actions are brought into on their way to the environment. By default those that
                `relevo.export` wrote into the file, if it did (`contract.bounds`); bounds of -inf and inf are none.
            normalization: statistics of the observation, or of several by name, that the model expects to be
                normalised. A file of `relevo.export` may do that itself (`contract.normalization`).
        """
        return self.policy("default", model, head, roles, branches=branches, bounds=bounds, normalization=normalization)

    def policy(
        self,
        name: str,
        model: ModelModule | str | os.PathLike[str],
        head: Head | None = None,
        roles: Mapping[str, str] | None = None,
        *,
        branches: Sequence[int] | None = None,
        bounds: Bounds | None = None,
        normalization: Normalization | Mapping[str, Normalization] | None = None,
    ) -> Self:
        """A further policy, which actors follow after `agent.assign(ids, name)`. The first one named is the default.

        The settings are those of `default_model`.
        """
        if name in self._policies:
            msg = f"the policy `{name}` was given twice; give each a name of its own"
            raise ConfigError(msg)
        if isinstance(model, ModelModule) and roles is not None:
            msg = "roles were given with a model that is loaded already; give them to ModelModule.load_from_path"
            raise ConfigError(msg)
        self._policies[name] = _Policy(
            _checked_model(model),
            head,
            _checked_roles(roles),
            _checked_branches(branches),
            checked_bounds(bounds),
            checked_normalization(normalization),
        )
        return self

    def actor_count(self, count: int) -> Self:
        """Actors to begin with; 1 by default."""
        self._actor_count = whole_number("actor_count", count, 0)
        return self

    def default_device(self, device: str) -> Self:
        """Where models given by path run: by default what a folder's `metadata.json` says, otherwise `"cpu"`."""
        self._device = device
        return self

    def threads(self, threads: int) -> Self:
        """Threads inside one forward pass of models given by path; 1 by default, which is right for many actors."""
        self._threads = whole_number("threads", threads, 1)
        return self

    def routers(self, routers: int) -> Self:
        """Workers that batch the calls of single actors, for each device; 1 by default.

        Calls for many actors at once run on the caller's thread. `agent.scale_throughput` changes the number later.
        """
        self._routers = whole_number("routers", routers, 1)
        return self

    def max_batch(self, rows: int) -> Self:
        """Single calls that share a forward pass at most; 256 by default."""
        self._max_batch = whole_number("max_batch", rows, 1)
        return self

    def max_wait(self, seconds: float) -> Self:
        """How long a single call may wait for others to share its forward pass; 0.0005 by default.

        A batch goes sooner when it is full, and when every actor that is calling is in it. 0 waits for nobody;
        1,000,000 is the most.
        """
        self._max_wait = checked_seconds("max_wait", seconds, may_be_zero=True)
        return self

    def on_error(self, reaction: OnError) -> Self:
        """What becomes of an actor whose policy raises, or gives NaN, for it.

        `"raise"`, the default: its caller gets the `InferenceError`, and may try again. `"drop_actor"`: the actor is
        removed as well, its open episode kept as an incomplete one, and counted in `stats()["actors_dropped"]`.
        """
        if reaction not in get_args(OnError):
            msg = f'on_error must be "raise" or "drop_actor", but is {reaction!r}'
            raise ConfigError(msg)
        self._on_error = reaction
        return self

    def record(
        self,
        path: str | os.PathLike[str],
        format: Format = "arrow",  # noqa: A002
        *,
        compression: Compression = "none",
        fsync: Fsync = "segment",
        segment_bytes: int = 1 << 30,
        segment_seconds: float = 900.0,
        resume: bool = False,
        on_failure: OnFailure = "continue",
    ) -> Self:
        """Writes every step into the run folder `path`.

        Args:
            path: the folder; it must not hold a run yet, unless `resume` is set.
            format: `"arrow"`, segments of many episodes, which `relevo.open_run` reads; or `"csv"`, a file with the
                columns of RelayRL for each episode, for `relevo.trajectories.from_csv`: larger, slower, not compressed,
                and not to be gone on with.
            compression: `"none"`, `"lz4"` (fast) or `"zstd"` (small).
            fsync: when the system is asked to put on the disk what was written, so that it outlives a power cut:
                `"never"`, `"segment"` (when one is closed) or `"batch"` (after each, about once a second). A process
                that is killed loses nothing that was written, whatever this is.
            segment_bytes: a segment that has as many bytes is closed, and another one begun; 1 GiB by default.
            segment_seconds: the same by its age; 15 minutes by default.
            resume: goes on with the run in the folder, if there is one: episode numbers and random streams go on where
                they stood.
            on_failure: what becomes of actors where the disk is full or the folder gone. `"continue"`, the default: one
                caller gets the `TrajectoryError`, and then they act on unrecorded. `"stop"`: every call gets it.

        Raises:
            ConfigError: a setting is none of these.
        """
        if not isinstance(cast("object", path), str | os.PathLike) or not os.fspath(path):
            msg = f"record takes the path of a folder, but {path!r} came"
            raise ConfigError(msg)
        self._record = RecordSettings(
            Path(path), format, compression, fsync, segment_bytes, segment_seconds, resume, on_failure
        )
        return self

    def keep_in_memory(self, trajectories: int, *, bytes: int = 256 << 20) -> Self:  # noqa: A002
        """Keeps the last finished trajectories for `agent.trajectories()`; 1,000 by default, 0 keeps none.

        `bytes` caps their size; the newest one is kept even if it alone is larger. With a run folder, long episodes
        that are under way hold no more together either: beyond it, what was written of one is let go, and it will be
        in the folder alone.
        """
        self._memory_trajectories = whole_number("trajectories", trajectories, 0)
        self._memory_bytes = whole_number("bytes", bytes, 0)
        return self

    def max_trajectory_length(self, steps: int) -> Self:
        """Records an episode that goes on after so many steps as a truncated one, and what follows as another.

        Its final observation is that of the next step. By default episodes are as long as they are.
        """
        self._max_trajectory_length = whole_number("max_trajectory_length", steps, 1)
        return self

    def extra(self, name: str, dtype: str = "float32", shape: Sequence[int] = ()) -> Self:
        """Records a column of your own with every step, `extra.<name>`: what `act` is given as `extra={name: values}`.

        Args:
            name: the column's name.
            dtype: NumPy's name of a type of numbers, or `"utf8"` for texts of any length.
            shape: of one actor's value; `()` is a scalar.
        """
        sizes = [whole_number("a size of the shape", size, 0) for size in shape]
        return self._add_extra("extra", name, dtype, sizes, observed=False)

    def text_observation(self, key: str) -> Self:
        """Records an observation that is a text, `observation.<key>`, which the policy does not read.

        Observations are then dicts, in which `key` has a list of texts, one for each actor; such as the mission of a
        MiniGrid environment beside its image. A final observation has its text too.
        """
        return self._add_extra("text_observation", key, "utf8", [], observed=True)

    def _add_extra(self, what: str, name: object, dtype: str, shape: list[int], *, observed: bool) -> Self:
        if not isinstance(name, str) or not name:
            msg = f"{what} takes a name that is a text, but {name!r} came"
            raise ConfigError(msg)
        self._extras.append((name, dtype, shape, observed))
        return self

    def seed(self, seed: int) -> Self:
        """Seed of all sampling, 0 to 2**64 - 1. Without one a random seed is drawn, and written into `run.json`."""
        if not 0 <= seed < 1 << 64:
            msg = f"seed must be between 0 and 2**64 - 1, but is {seed}"
            raise ConfigError(msg)
        self._seed = seed
        return self

    def keep_outputs(self) -> Self:
        """Hands out the model's raw outputs with each `ActionBatch`, as `.outputs`."""
        self._keep_outputs = True
        return self

    def build(self) -> Agent:
        """Loads the models and makes the agent; `agent.start()` or `with agent:` opens the run folder.

        Raises:
            ConfigError: no model was given, or settings contradict each other.
            ModelLoadError: a model cannot be loaded.
            ContractError: a head does not fit its model.
            DeviceUnavailableError: the device is not usable here.
        """
        if not self._policies:
            msg = "an agent needs a model; give one by default_model(path)"
            raise ConfigError(msg)
        loaded = [(name, policy, self._load(policy)) for name, policy in self._policies.items()]
        policies = [(name, model, policy.settings(model)) for name, policy, model in loaded]
        agent = Agent(
            policies,
            actor_count=self._actor_count,
            routers=self._routers,
            max_batch=self._max_batch,
            max_wait=self._max_wait,
            on_error=self._on_error,
            record=self._record,
            memory_trajectories=self._memory_trajectories,
            memory_bytes=self._memory_bytes,
            most_steps=self._max_trajectory_length,
            seed=self._seed,
            keep_outputs=self._keep_outputs,
            extras=self._extras,
            threads=self._threads,
            device=self._device or "cpu",
            description=self._describe(loaded),
        )
        log.start()
        shut_down_at_exit(agent)
        return agent

    def _load(self, policy: _Policy) -> ModelModule:
        if isinstance(policy.model, ModelModule):
            return policy.model
        roles = None if policy.roles is None else dict(policy.roles)
        return ModelModule.load_from_path(policy.model, threads=self._threads, device=self._device, roles=roles)

    def _describe(self, loaded: list[tuple[str, _Policy, ModelModule]]) -> str:
        """The resolved configuration, as it goes into `run.json`."""
        return json.dumps(
            {
                "actor_count": self._actor_count,
                "device": self._device,
                "threads": self._threads,
                "routers": self._routers,
                "max_batch": self._max_batch,
                "max_wait": self._max_wait,
                "on_error": self._on_error,
                "record": None if self._record is None else self._record.as_dict(),
                "memory_trajectories": self._memory_trajectories,
                "memory_bytes": self._memory_bytes,
                "max_trajectory_length": self._max_trajectory_length,
                "extras": [name for name, *_, observed in self._extras if not observed],
                "text_observations": [name for name, *_, observed in self._extras if observed],
                "heads": {name: policy.head for name, policy in self._policies.items()},
                "roles": {name: dict(policy.roles or {}) for name, policy in self._policies.items()},
                "branches": {name: policy.branches for name, policy in self._policies.items()},
                "bounds": {name: policy.bounds.as_dict() for name, policy in self._policies.items() if policy.bounds},
                "normalization": {
                    name: {
                        key: given.as_dict() for key, given in statistics(model.contract, policy.normalization).items()
                    }
                    for name, policy, model in loaded
                    if policy.normalization
                },
            }
        )


def _checked_model(given: object) -> ModelModule | str | os.PathLike[str]:
    if not isinstance(given, ModelModule | str | os.PathLike):
        msg = f"model must be a path or a relevo.ModelModule, but {given!r} ({type(given).__name__}) came"
        raise ConfigError(msg)
    return given


def _checked_roles(given: object) -> dict[str, str] | None:
    if given is None:
        return None
    if not isinstance(given, Mapping) or not all(isinstance(word, str) for pair in given.items() for word in pair):
        msg = f'roles must be a dict of names and roles, such as {{"obs": "observation"}}, but {given!r} came'
        raise ConfigError(msg)
    return dict(given)


def _checked_branches(given: object) -> list[int]:
    if given is None:
        return []
    # NumPy's `nvec` is no Sequence.
    if isinstance(given, str | bytes) or not hasattr(given, "__iter__"):
        msg = f"branches must be a list of whole numbers, such as [3, 2], but {given!r} ({type(given).__name__}) came"
        raise ConfigError(msg)
    return [whole_number("a branch", size, 1) for size in cast("Sequence[int]", given)]
