"""`relevo.collect`: the loop between an agent and its environments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from relevo.envs import vector
from relevo.errors import ConfigError
from relevo.progress import CollectResult, Progress

if TYPE_CHECKING:
    from collections.abc import Callable

    import gymnasium
    import numpy.typing as npt

    from relevo._core import Actors, Agent

__all__ = ["CollectResult", "Progress", "collect"]

PROGRESS_SECONDS = 0.2
"""How often `progress` is called."""


def collect(
    agent: Agent,
    envs: gymnasium.vector.VectorEnv[Any, Any, Any],
    *,
    steps: int | None = None,
    episodes: int | None = None,
    actors: Actors | None = None,
    seed: int | None = None,
    autoreset_mode: gymnasium.vector.AutoresetMode | str | None = None,
    deterministic: bool | None = None,
    progress: Callable[[Progress], object] | None = None,
) -> CollectResult:
    """Resets `envs` and lets an agent's actors act in them, one in each, until enough is collected.

    What each autoreset mode needs is done here: only steps of the environment are recorded and counted, and every
    episode that ends is recorded with its final observation. Episodes that are under way at the end, or were when the
    collection begins, are recorded as incomplete. Where a worker of a `relevo.envs.ProcessVectorEnv` fails, its
    environments' episodes are recorded as truncated, without a final observation.

    Observations are cast where the policy takes floats of another width than the environment gives, and from uint8 to
    float32. Actions for a `Box` are cast to its type, but not clipped: what becomes of a value outside its bounds is
    the environment's rule.

    Args:
        agent: a running agent.
        envs: a Gymnasium `VectorEnv`, or synchronous EnvPool environments.
        steps: environment steps to take, over all actors; looked at after each step of the vector, so nearly one for
            each actor may come on top.
        episodes: episodes to finish, instead of `steps`. The first to end are the shortest: the mean over few episodes
            of many actors leans to these.
        actors: who acts, row by row; all of the agent's by default.
        seed: handed to `envs.reset`: environment i is seeded with `seed + i`.
        autoreset_mode: Gymnasium's `AutoresetMode` or its name, where the metadata of `envs` does not tell it.
        deterministic: whether to act without randomness; None leaves it to the head.
        progress: called with how far it is: at the beginning, five times a second, and at the end.

    Raises:
        ConfigError: both or none of `steps` and `episodes`, or as many actors as environments are not there.
        UnsuitableEnvironmentError: the policy's actions do not fit the environments, or their autoreset mode is not
            known.
        ContractError: the observations do not fit the policy.
        AgentStateError: the agent is not running.

    After an error and after Ctrl-C (`KeyboardInterrupt`) the agent runs on, and what was recorded stays.
    """
    enough = _goal(steps, episodes)
    count = vector.number_of(envs)
    mode = vector.autoreset_mode(envs, autoreset_mode)
    actors = agent.actors() if actors is None else actors
    if len(actors) != count:
        raise ConfigError(
            f"each actor needs an environment of its own, but there are {len(actors)} actors and {count} environments; "
            "make as many of one as of the other, or choose actors by collect(…, actors=agent.actors(ids))"
        )
    so_far = Progress(count)
    acted_before = any(policy["calls"] for policy in agent.stats()["policies"].values())
    loop = _Loop(actors, envs, mode, deterministic, so_far)
    loop.begin(seed, leave_open_episodes=acted_before)
    report_at = 0.0
    while True:
        if progress is not None and so_far.seconds >= report_at:
            progress(so_far)
            report_at = so_far.seconds + PROGRESS_SECONDS
        loop.step()
        if enough(so_far):
            break
        loop.act()
    if progress is not None:
        progress(so_far)
    return so_far.result()


def _goal(steps: int | None, episodes: int | None) -> Callable[[Progress], bool]:
    if (steps is None) == (episodes is None):
        came = "neither" if steps is None else "both"
        raise ConfigError(f"give either steps or episodes, but {came} came: collect(agent, envs, steps=100_000)")
    name, goal = ("episodes", episodes) if steps is None else ("steps", steps)
    if goal is None or goal < 1:
        raise ConfigError(f"{name} must be at least 1, but is {goal}")
    if steps is None:
        return lambda progress: progress.episodes >= goal
    return lambda progress: progress.steps >= goal


class _Loop:
    """Actors and environments, with an action chosen for each, waiting to be stepped."""

    def __init__(
        self,
        actors: Actors,
        envs: gymnasium.vector.VectorEnv[Any, Any, Any],
        mode: vector.Autoreset,
        deterministic: bool | None,
        progress: Progress,
    ) -> None:
        self._actors = actors
        self._envs = envs
        self._mode = mode
        self._deterministic = deterministic
        self._progress = progress
        self._every_row = np.ones(len(actors), np.bool_)
        # NEXT_STEP: the environments that the next step resets. Its action is ignored, and it counts for nothing.
        self._resetting: npt.NDArray[np.intp] | None = None

    def begin(self, seed: int | None, *, leave_open_episodes: bool) -> None:
        """Resets the environments and chooses the first actions."""
        obs = vector.reset(self._envs, seed)
        self._cast = vector.observation_cast(self._actors.observation_dtypes, obs)
        self._obs = obs if self._cast is None else self._cast(obs)
        self._fit = vector.fit_actions(self._envs, self._actors)
        if leave_open_episodes:
            # The reset cut them short. A step that is not recorded says so, and ends them as incomplete.
            self._actors.act(self._obs, record=False)
            self._actors.observe(None)
        # What a recurrent policy remembers is of episodes that are over.
        self._actors.reset_state()
        self.act()

    def step(self) -> None:
        """Steps the environments once, and tells the actors what came of it."""
        obs, reward, terminated, truncated, info = self._envs.step(self._fit(self._batch.action))
        if self._cast is not None:
            obs = self._cast(obs)
        self._obs = obs
        # Rewards are recorded and summed as float64; cast once.
        reward = np.asarray(reward, np.float64)
        # The method: `flatnonzero` is a Python function around it, and this runs at every step.
        (ended,) = (terminated | truncated).nonzero()
        final_obs: Any = None
        if len(ended):
            final_obs = obs
            if self._mode == "same_step":
                final_obs = vector.fill_final(obs, info.get("final_obs"), ended)
            elif (restarted := info.get("worker_restarted")) is not None:
                # `ProcessVectorEnv` has no final observation of an episode whose worker failed.
                final_obs = vector.known_final(obs, ended[~restarted[ended]])
        self._actors.observe(reward, terminated, truncated, final_obs)

        if self._resetting is None:
            self._progress.count(reward, len(reward))
        else:
            self._progress.count(reward, len(reward) - len(self._resetting))
            self._progress.begin(self._resetting)
            # The ignored step was acted from what the old episode left.
            began = ~self._every_row
            began[self._resetting] = True
            self._actors.reset_state(began)
            self._resetting = None
        if len(ended):
            self._progress.end(ended)
            self._start_anew(ended)

    def _start_anew(self, ended: npt.NDArray[np.intp]) -> None:
        if self._mode == "next_step":
            self._resetting = ended
        elif self._mode == "disabled":
            mask = ~self._every_row
            mask[ended] = True
            self._obs, _ = self._envs.reset(options={"reset_mask": mask})
            if self._cast is not None:
                self._obs = self._cast(self._obs)

    def act(self) -> None:
        """Chooses the next actions."""
        record: bool | npt.NDArray[np.bool_] = True
        if self._resetting is not None:
            record = self._every_row.copy()
            record[self._resetting] = False
        self._batch = self._actors.act(self._obs, None, self._deterministic, record)
