from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, final
from uuid import UUID

import numpy as np
import numpy.typing as npt

from relevo._core.action_batch import ActionBatch

@final
class Actors:
    """A handle on some actors, which act in one call. `agent.actors()` makes it."""

    @property
    def ids(self) -> list[UUID]:
        """The actors' ids, in the order of the rows."""

    @property
    def observation_dtypes(self) -> dict[str, str]:
        """NumPy's name of the dtype that the policy takes, for each observation by name.

        A policy's only observation is named `observation`.
        """

    @property
    def action_columns(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """NumPy's name of the dtype, and the shape of one actor's action, for each kind of action by name.

        A policy's only kind of action is named `action`.
        """

    @property
    def branches(self) -> tuple[int, ...]:
        """How many choices the policy's head has in each branch of a discrete action; empty for other heads."""

    @property
    def heads(self) -> dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]]:
        """Heads that the policy's model could have: dtype and shape of one actor's action, and its branches.

        Those that would give actions of several kinds are not among them.
        """

    def __len__(self) -> int: ...
    def act(
        self,
        obs: npt.ArrayLike | Mapping[str, npt.ArrayLike | Sequence[str]] | tuple[npt.ArrayLike, ...],
        mask: npt.ArrayLike | None = None,
        deterministic: bool | None = None,
        record: bool | npt.NDArray[np.bool_] = True,
        extra: dict[str, npt.ArrayLike | Sequence[str]] | None = None,
    ) -> ActionBatch:
        """One action for each actor, by one forward pass for each policy.

        The call of a handle on one actor shares its pass with those of other threads: it waits for them up to the
        builder's `max_wait`, and not at all once every actor that is calling waits. Ctrl-C ends the wait.

        Args:
            obs: observations `[N, …]` of the policy's dtype; for a policy with several observations a dict by name, of
                which other entries are passed over, or a tuple in the model's order. Of a dict with one entry, a
                policy with one observation takes that, whatever its name. Tensors of other libraries are taken too, on
                a GPU as well; to a PyTorch tensor there, the answer is one there. Those on the policy's CUDA device
                are read there, by calls of several actors, and copied to the host only where they are recorded or
                normalised; write to them once the call has ended.
            mask: `[N, actions]`, true (or not 0) where an action is allowed.
            deterministic: whether to act without randomness; None leaves it to the head.
            record: whether the step belongs into the trajectory; an array `[N]` says it for each actor. An action that
                was asked for with `record=False`, and that nothing is observed for, leaves no trace; where it is
                observed, the environment has moved on unseen, and the actor's open episode ends as an incomplete one.
            extra: values of the columns that the builder's `extra` declared, by name: arrays `[N, …]` of the declared
                dtype, or lists of N texts. Needed of all of them, unless nothing is recorded.

        Raises:
            ContractError: an observation, mask or extra value of another shape or dtype, one that is missing, NaN in an
                observation or mask, a mask that allows nothing.
            InferenceError: the model failed or gave NaN; the message names the actor, whose id is in `actor_id`.
                Nothing is recorded for the call.
            ActorNotFoundError: an actor was removed.
            AgentStateError: the agent is not running; or, of a handle on one actor, it still waits for the action of
                another call.
            TrajectoryError: recording has stopped, told once; later calls go on without it.
        """

    def act_async(
        self,
        obs: npt.ArrayLike | Mapping[str, npt.ArrayLike | Sequence[str]] | tuple[npt.ArrayLike, ...],
        mask: npt.ArrayLike | None = None,
        deterministic: bool | None = None,
        record: bool | npt.NDArray[np.bool_] = True,
        extra: dict[str, npt.ArrayLike | Sequence[str]] | None = None,
    ) -> Awaitable[ActionBatch]:
        """The awaitable twin of `act`, for tasks of a running asyncio loop.

        A handle on one actor shares its forward pass with the other tasks that ask for an action before the loop
        turns. The call is made at once and not first when it is awaited; `obs` may be changed afterwards. A handle on
        several actors acts in a thread of the loop's executor.

        What is given is as good as an `asyncio.Future`: `wait_for`, `gather` and `shield` take it. Cancelled, it frees
        the actor for its next call, and nothing is recorded. Only the call of several actors goes on in its thread.

        Raises:
            RuntimeError: no loop is running in this thread.
            AgentStateError: the actor still waits for the action of another call.
        """

    def reset_state(self, which: npt.NDArray[np.bool_] | None = None) -> None:
        """Lets actors begin anew: what a recurrent policy remembers of them is as at the start of an episode.

        The end of an episode does that by itself. By hand it is needed where an episode begins that nothing was told
        of: after a reset of the environment in the middle of one, and after the step that Gymnasium's `NEXT_STEP`
        autoreset ignores. Without a recurrent policy it changes nothing.

        Args:
            which: `[N]` bool, true for the actors that begin anew; None for all.

        Raises:
            ContractError: `which` has another shape or dtype.
        """

    def observe(
        self,
        reward: npt.ArrayLike | None,
        terminated: npt.ArrayLike = False,
        truncated: npt.ArrayLike = False,
        final_obs: Any = None,
    ) -> None:
        """What the last action of each actor earned, and which episodes ended.

        Args:
            reward: `[N]`, or one number for all; None where it is not known.
            terminated: `[N]` bool, or one for all: the environment's rules ended the episode.
            truncated: `[N]` bool, or one for all: something else ended it, such as a time limit.
            final_obs: the observations after the last actions, for episodes that ended: an array `[N, …]`, or
                Gymnasium's object array with None where nothing ended; for several observations a dict of those.

        Raises:
            AgentStateError: an actor has no open step; nothing is recorded for any of them. Actors that were removed
                since they acted are passed over.
            ContractError: an argument of another shape or dtype, or a final observation with NaN; nothing is recorded.
        """
