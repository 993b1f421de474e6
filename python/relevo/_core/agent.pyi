import os
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Self, final
from uuid import UUID

import numpy.typing as npt
import torch

from relevo._core.action_batch import ActionBatch
from relevo._core.actors import Actors
from relevo._core.episode import Episode
from relevo._core.model import ModelModule
from relevo._core.subscription import Subscription
from relevo.record_settings import RecordSettings
from relevo.settings import Normalization, PolicySettings

@final
class Agent:
    """The runtime that serves actors. `relevo.AgentBuilder` makes it.

    `with agent:` starts it and shuts it down; both may be called by hand. All methods may be called from any thread.
    """

    def __new__(
        cls,
        policies: Sequence[tuple[str, ModelModule, PolicySettings]],
        *,
        actor_count: int,
        routers: int,
        max_batch: int,
        max_wait: float,
        on_error: str,
        record: RecordSettings | None,
        memory_trajectories: int,
        memory_bytes: int,
        most_steps: int | None,
        seed: int | None,
        keep_outputs: bool,
        extras: Sequence[tuple[str, str, Sequence[int], bool]],
        threads: int,
        device: str,
        description: str,
    ) -> Self:
        """For `AgentBuilder.build`, which gives every argument."""

    def start(self) -> None:
        """Opens the run folder; from now on actors may act.

        Raises:
            TrajectoryError: the folder cannot be written, or holds a run already.
            AgentStateError: the agent was started before.
        """

    def shutdown(self) -> None:
        """Waits for the calls that run, keeps open episodes as incomplete ones, closes the run folder.

        A second call waits for the first.

        Raises:
            TrajectoryError: the last steps could not be written.
        """

    def flush(self) -> None:
        """Returns when all finished episodes are on disk and in `trajectories()`.

        Raises:
            TrajectoryError: they could not be written.
        """

    @property
    def running(self) -> bool:
        """Whether the agent was started and not shut down."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_error: object) -> None: ...
    def actors(self, ids: Sequence[UUID] | None = None) -> Actors:
        """A handle on the actors with these ids, in this order; on all of them without ids.

        Raises:
            ActorNotFoundError: no actor has one of the ids.
            ConfigError: an id is there twice, or there are none.
        """

    def get_actor_ids(self) -> list[UUID]:
        """Ids of all actors, in the order in which they were made."""

    def new_actor(
        self,
        device: str | None = None,
        model: ModelModule | str | os.PathLike[str] | None = None,
        policy: str | None = None,
        head: str | None = None,
    ) -> UUID:
        """Adds an actor that follows a policy by name, or a model of its own, or else the default policy.

        `head` goes with a model of its own, which is gone with the last actor that follows it.
        """

    def new_actors(
        self,
        count: int,
        device: str | None = None,
        model: ModelModule | str | os.PathLike[str] | None = None,
        policy: str | None = None,
        head: str | None = None,
    ) -> list[UUID]:
        """Adds `count` actors; see `new_actor`. A model given here is shared by them.

        Raises:
            ConfigError: `count` is no whole number, or they are too many.
            AgentStateError: the agent was shut down.
        """

    def remove_actor(self, actor: UUID) -> None:
        """Removes an actor. Its open episode is kept as an incomplete one.

        A call of its that waits for an action gets an `ActorNotFoundError`, and that step is not recorded.
        """

    def set_actor_id(self, old: UUID, new: UUID) -> None:
        """Gives an actor another id. Its open episode keeps the old one, later episodes carry the new one."""

    def assign(self, ids: Sequence[UUID], policy: str) -> None:
        """Lets actors follow another policy from their next action on."""

    def update_model(
        self,
        model: ModelModule | str | os.PathLike[str] | bytes | torch.nn.Module,
        policy: str = "default",
        version: int | None = None,
        *,
        normalization: Normalization | Mapping[str, Normalization] | None = None,
    ) -> int:
        """Exchanges a policy's model, atomically; gives the new version. It is in every row written after.

        The new model is checked and warmed first; where it does not fit, the old one keeps serving.

        Args:
            model: a path, the bytes of an exported file, a loaded model, a PyTorch module, or a Stable-Baselines3
                model. A module is copied, and traced in memory as it is in eval mode, or scripted where tracing does
                not agree with it; that takes `relevo[torch]`. It is called with the observations in the order of the
                policy's contract (or a dict of them, where it takes one argument and there are several), and gives
                as many tensors as the model that serves; these have the same roles.
            policy: the policy's name.
            version: the new version, above the current one and below 2**64; the next one by default.
            normalization: statistics of observations, as the builder takes them, from this version on; `{}` for none.
                By default what normalised them goes on: the policy's own statistics, or, before a module, those that
                `relevo.export` wrote into the file that serves (`contract.normalization`).

        Raises:
            ContractError: the new model takes other observations, gives other actions, or has NaN in its weights, or no
                values in them (a module on the device `meta`).
            ModelLoadError: it cannot be loaded, or neither traced nor scripted.
            ConfigError: the version is not above the current one, or the model is of no known kind.
        """

    def get_model_version(self, ids: Sequence[UUID] | None = None) -> list[int]:
        """The version of each actor's policy."""

    def request_action(
        self,
        ids: Sequence[UUID],
        obs: npt.ArrayLike | Mapping[str, npt.ArrayLike | Sequence[str]] | tuple[npt.ArrayLike, ...],
        mask: npt.ArrayLike | None = None,
        reward: npt.ArrayLike | None = None,
        extra: dict[str, npt.ArrayLike | Sequence[str]] | None = None,
    ) -> ActionBatch:
        """RelayRL's form of `act`, with the reward of each actor's *previous* action.

        An observation or mask with a leading axis of 1 is that of every actor. The reward is passed over for actors
        without an open step.
        """

    def request_action_async(
        self,
        ids: Sequence[UUID],
        obs: npt.ArrayLike | Mapping[str, npt.ArrayLike | Sequence[str]] | tuple[npt.ArrayLike, ...],
        mask: npt.ArrayLike | None = None,
        reward: npt.ArrayLike | None = None,
        extra: dict[str, npt.ArrayLike | Sequence[str]] | None = None,
    ) -> Awaitable[ActionBatch]:
        """The awaitable twin of `request_action`; see `Actors.act_async`."""

    def flag_last_action(
        self,
        ids: Sequence[UUID],
        reward: npt.ArrayLike | None = None,
        truncated: bool = False,
        final_obs: Any = None,
    ) -> None:
        """RelayRL's end of an episode: each actor's last action was the last one, and earned `reward`.

        The episode counts as terminated, or as truncated if that is said. Actors without an open step are passed over.
        """

    def scale_throughput(self, change: int) -> int:
        """Adds routers, or takes some away, and places all actors anew; gives the new number.

        From each actor's next call on the new placement holds. What waits at a router that goes is run before.

        Raises:
            ConfigError: none would be left, too many would be there, or `change` is no whole number.
            AgentStateError: the agent was shut down.
        """

    def subscribe(self, capacity: int = 1_000, when_full: str = "drop_oldest") -> Subscription:
        """Finished trajectories from now on, as they end: a queue to a learner in the same process.

        Args:
            capacity: trajectories that may wait to be read.
            when_full: what becomes of one that ends while so many wait. `"drop_oldest"`, the default: the oldest goes,
                and is counted. `"block"`: recording waits for the reader, and before long actors wait for that; half a
                minute at most, then the oldest goes. The reader must be another thread than those that act. `"error"`:
                it goes itself, and the reader gets an `AgentStateError`.

        Raises:
            AgentStateError: the agent has not started, or it records nothing.
            ConfigError: `when_full` is none of these.
        """

    def pause_recording(self) -> None:
        """Records no more, from the next action of each actor on. Open episodes end as incomplete ones.

        Raises:
            ConfigError: the agent was built without a folder, and with `keep_in_memory(0)`.
        """

    def resume_recording(self) -> None:
        """Records again.

        An actor that acted meanwhile is recorded from its next episode on, so that no episode lacks its beginning;
        the others are recorded from their next action on.
        """

    @property
    def recording(self) -> bool:
        """Whether actions are recorded now."""

    def trajectories(self) -> list[Episode]:
        """The last finished trajectories, oldest first, as many as the builder keeps in memory."""

    def stats(self) -> dict[str, Any]:
        """Counters of what happened so far.

        `actors`; `actors_dropped`, by `on_error`; `routers`, a dict for each while the agent runs, with `device`,
        `index`, `actors` placed there, `queue`, `batches`, `rows`, `failed`, `batch_sizes`, `queue_seconds`,
        `inference_seconds` and `restarts`; `retired_routers`, what those that were taken away had counted together;
        `policies`, by name, each with `version`, `calls`, `rows`, `inference_seconds`, `errors`;
        `steps_recorded` and `episodes_recorded`, in memory, on disk or lost; `steps_written`,
        `batches_written` and `bytes_written`, on disk; `recording_queue_bytes`, which wait for the recorder, and
        `recording_waits` and `recording_wait_seconds`, the times that calls had to wait for it;
        `episodes_interrupted`, `rewards_missing`, `final_observations_missing`; `episodes_lost`, which did not reach
        the disk because it had failed, and `recording_error`, which says why.
        """
