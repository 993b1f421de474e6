"""`collect` in all autoreset modes, against an episode log that a plain loop over single environments writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import gymnasium as gym
import models
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from onnx import TensorProto, helper

import relevo
from relevo.envs import make_vector

if TYPE_CHECKING:
    from pathlib import Path

Observation: TypeAlias = "npt.NDArray[Any] | dict[str, npt.NDArray[Any]]"
Action: TypeAlias = "np.int64 | npt.NDArray[Any]"
Step: TypeAlias = "tuple[Observation, float, bool, bool, dict[str, Any]]"

MODES = list(AutoresetMode)
ACTORS = 5
WEIGHTS = np.array([[0.3, -0.7], [-1.1, 0.2], [0.5, 0.9]], np.float32)


class Countdown(gym.Env[Any, Any]):
    """Ends after a random number of steps, 1 to 8, by one end or the other or both; all it gives is drawn at random."""

    metadata = {"render_modes": []}  # noqa: RUF012 : Gymnasium's own form

    def __init__(self, *, dtype: str = "float32", named: bool = False, choices: gym.Space[Any] | None = None) -> None:
        self._dtype = np.dtype(dtype)
        vector = gym.spaces.Box(-np.inf, np.inf, (3,), self._dtype.type)
        if named:
            image = gym.spaces.Box(0, 255, (2, 2), np.uint8)
            self.observation_space: gym.Space[Any] = gym.spaces.Dict({"image": image, "vector": vector})
        else:
            self.observation_space = vector
        self._named = named
        self.action_space = gym.spaces.Discrete(2) if choices is None else choices

    def _observe(self) -> Observation:
        vector = self.np_random.normal(size=3).astype(self._dtype)
        if not self._named:
            return vector
        return {"image": self.np_random.integers(0, 256, (2, 2), np.uint8), "vector": vector}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._left = int(self.np_random.integers(1, 9))
        return self._observe(), {}

    def step(self, action: Action) -> Step:
        self._left -= 1
        over = self._left == 0
        end = int(self.np_random.integers(3))
        reward = float(self.np_random.normal()) + float(np.sum(action))
        return self._observe(), reward, over and end != 1, over and end != 0, {}


@dataclass
class Log:
    """An episode as the plain loop saw it."""

    observations: list[Any] = field(default_factory=list)
    actions: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False
    final_observation: Any = None


def play(mode: AutoresetMode, goal: int, seed: int, **options: str | bool) -> tuple[list[list[Log]], int]:
    """Each environment's episodes until `goal` steps were taken, stepping them in turn; and the steps taken."""
    envs = [Countdown(**options) for _ in range(ACTORS)]
    obs = [env.reset(seed=seed + index)[0] for index, env in enumerate(envs)]
    logs = [[Log()] for _ in envs]
    to_reset = [False] * ACTORS
    steps = 0
    while steps < goal:
        for index, env in enumerate(envs):
            if to_reset[index]:
                # Only NEXT_STEP lets an environment miss a turn for its reset.
                to_reset[index] = False
                obs[index] = env.reset()[0]
                continue
            log = logs[index][-1]
            vector = obs[index]["vector"] if options.get("named") else obs[index]
            action = int((vector.astype(np.float32) @ WEIGHTS).argmax())
            log.observations.append(obs[index])
            log.actions.append(action)
            obs[index], reward, log.terminated, log.truncated, _ = env.step(action)
            log.rewards.append(reward)
            steps += 1
            if log.terminated or log.truncated:
                log.final_observation = obs[index]
                logs[index].append(Log())
                if mode is AutoresetMode.NEXT_STEP:
                    to_reset[index] = True
                else:
                    obs[index] = env.reset()[0]
    # An episode without a step is none.
    return [[log for log in of_env if log.actions] for of_env in logs], steps


def vector_env(mode: AutoresetMode, **options: str | bool) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: Countdown(**options)] * ACTORS, autoreset_mode=mode)


def image_and_vector(path: Path) -> Path:
    """Logits of `vector` alone; `image` is taken as float32 and only touched."""
    return models.save(
        path,
        [
            helper.make_node("Flatten", ["image"], ["flat"]),
            helper.make_node("ReduceSum", ["flat", "axes"], ["sum"], keepdims=1),
            helper.make_node("Mul", ["sum", "zero"], ["nothing"]),
            helper.make_node("MatMul", ["vector", "weights"], ["product"]),
            helper.make_node("Add", ["product", "nothing"], ["logits"]),
        ],
        {"image": ["batch", 2, 2], "vector": ["batch", 3]},
        {"logits": ["batch", 2]},
        {"weights": WEIGHTS, "zero": np.zeros(1, np.float32), "axes": np.array([1], np.int64)},
    )


def started(policy: Path, folder: Path | None = None, actors: int = ACTORS, head: str = "argmax") -> relevo.Agent:
    builder = relevo.AgentBuilder().default_model(policy, head=head).actor_count(actors).seed(1)  # type: ignore[arg-type]
    if folder is not None:
        builder.record(folder)
    agent = builder.build()
    agent.start()
    return agent


def recorded(folder: Path, ids: list[Any]) -> list[list[relevo.Episode]]:
    """The episodes of a run, for each actor in turn."""
    by_actor: dict[Any, list[relevo.Episode]] = {id: [] for id in ids}  # noqa: A001
    for episode in relevo.open_run(folder).episodes():
        by_actor[episode.actor_id].append(episode)
    return list(by_actor.values())


def assert_same_observations(came: Observation, expected: list[Observation]) -> None:
    if isinstance(expected[0], dict):
        for name in expected[0]:
            np.testing.assert_array_equal(
                came[name], np.stack([one[name] for one in expected]).astype(came[name].dtype)
            )
            assert came[name].dtype == np.float32
    else:
        np.testing.assert_array_equal(came, np.stack(expected).astype(np.float32))


def assert_equals_log(episode: relevo.Episode, log: Log) -> None:
    np.testing.assert_array_equal(episode.actions, log.actions)
    np.testing.assert_array_equal(episode.rewards, log.rewards)
    ended = log.terminated or log.truncated
    assert (episode.terminated, episode.truncated) == (log.terminated, log.truncated)
    assert episode.complete == ended
    assert episode.has_final_observation == ended
    observations = [*log.observations, log.final_observation] if ended else log.observations
    assert_same_observations(episode.observations, observations)


@pytest.mark.parametrize("options", [{}, {"dtype": "float64"}, {"named": True}], ids=["plain", "float64", "dict"])
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_what_is_recorded_is_what_a_plain_loop_sees(
    mode: AutoresetMode, options: dict[str, str | bool], tmp_path: Path
) -> None:
    policy = tmp_path / "policy.onnx"
    policy = image_and_vector(policy) if options.get("named") else models.linear(policy, WEIGHTS)
    agent = started(policy, tmp_path / "run")
    with agent:
        result = relevo.collect(agent, vector_env(mode, **options), steps=333, seed=40)
        ids = agent.get_actor_ids()

    logs, steps = play(mode, 333, seed=40, **options)
    assert result.steps == steps
    episodes = recorded(tmp_path / "run", ids)
    for of_actor, of_env in zip(episodes, logs, strict=True):
        for episode, log in zip(of_actor, of_env, strict=True):
            assert_equals_log(episode, log)

    ended = [log for of_env in logs for log in of_env if log.terminated or log.truncated]
    assert {(log.terminated, log.truncated) for log in ended} == {(True, False), (False, True), (True, True)}
    assert result.episodes == len(ended)
    np.testing.assert_allclose(sorted(result.returns), sorted(sum(log.rewards) for log in ended))
    assert result.mean_return == pytest.approx(np.mean([sum(log.rewards) for log in ended]))
    assert result.mean_length == pytest.approx(np.mean([len(log.actions) for log in ended]))
    assert agent.stats()["final_observations_missing"] == 0


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_second_collection_does_not_go_on_in_the_episodes_of_the_first(mode: AutoresetMode, tmp_path: Path) -> None:
    agent = started(models.linear(tmp_path / "policy.onnx", WEIGHTS), tmp_path / "run")
    envs = vector_env(mode)
    with agent:
        first = relevo.collect(agent, envs, steps=41, seed=3)
        second = relevo.collect(agent, envs, steps=100, seed=90)
        ids = agent.get_actor_ids()

    expected = zip(play(mode, 41, seed=3)[0], play(mode, 100, seed=90)[0], strict=True)
    for of_actor, (earlier, later) in zip(recorded(tmp_path / "run", ids), expected, strict=True):
        for episode, log in zip(of_actor, earlier + later, strict=True):
            assert_equals_log(episode, log)
    assert agent.stats()["steps_recorded"] == first.steps + second.steps


def test_collect_acts_like_the_loop_written_by_hand(tmp_path: Path) -> None:
    policy = models.linear(tmp_path / "policy.onnx", WEIGHTS)
    agent = started(policy, tmp_path / "collected", head="categorical")
    with agent:
        relevo.collect(agent, vector_env(AutoresetMode.SAME_STEP), steps=200, seed=5)
        ids = agent.get_actor_ids()
    by_hand = started(policy, tmp_path / "by-hand", head="categorical")
    with by_hand:
        envs, actors = vector_env(AutoresetMode.SAME_STEP), by_hand.actors()
        obs, _ = envs.reset(seed=5)
        for _ in range(200 // ACTORS):
            obs, reward, terminated, truncated, info = envs.step(np.asarray(actors.act(obs)))
            actors.observe(reward, terminated, truncated, final_obs=info.get("final_obs"))
        ids_by_hand = by_hand.get_actor_ids()

    for of_one, of_other in zip(
        recorded(tmp_path / "collected", ids), recorded(tmp_path / "by-hand", ids_by_hand), strict=True
    ):
        for one, other in zip(of_one, of_other, strict=True):
            np.testing.assert_array_equal(one.actions, other.actions)
            np.testing.assert_array_equal(one.observations, other.observations)
            np.testing.assert_array_equal(one.rewards, other.rewards)
            assert (one.terminated, one.truncated) == (other.terminated, other.truncated)


def test_episodes_are_a_goal_of_their_own(tmp_path: Path) -> None:
    with started(models.linear(tmp_path / "policy.onnx", WEIGHTS)) as agent:
        result = relevo.collect(agent, vector_env(AutoresetMode.NEXT_STEP), episodes=20, seed=0)
        assert 20 <= result.episodes < 20 + ACTORS
        assert len(result.returns) == result.episodes
        assert sum(episode.complete for episode in agent.trajectories()) == result.episodes


def test_progress_is_told_at_the_beginning_and_at_the_end(tmp_path: Path) -> None:
    told: list[int] = []
    with started(models.linear(tmp_path / "policy.onnx", WEIGHTS)) as agent:
        result = relevo.collect(
            agent, vector_env(AutoresetMode.SAME_STEP), steps=100, progress=lambda so_far: told.append(so_far.steps)
        )
    assert (told[0], told[-1]) == (0, result.steps)


def test_the_mean_return_of_late_is_over_the_last_episodes(tmp_path: Path) -> None:
    means: list[float] = []
    with started(models.linear(tmp_path / "policy.onnx", WEIGHTS)) as agent:
        result = relevo.collect(
            agent,
            vector_env(AutoresetMode.SAME_STEP),
            steps=200,
            progress=lambda so_far: means.append(so_far.recent_return(7)),
        )
    assert np.isnan(means[0])
    assert means[-1] == pytest.approx(result.returns[-7:].mean())


@pytest.mark.parametrize(
    ("goal", "words"), [({}, "neither"), ({"steps": 1, "episodes": 1}, "both"), ({"steps": 0}, "0")]
)
def test_one_goal_is_needed(goal: dict[str, int], words: str, tmp_path: Path) -> None:
    with (
        started(models.linear(tmp_path / "policy.onnx", WEIGHTS)) as agent,
        pytest.raises(relevo.ConfigError, match=words),
    ):
        relevo.collect(agent, vector_env(AutoresetMode.SAME_STEP), **goal)


def test_as_many_actors_as_environments_are_needed(tmp_path: Path) -> None:
    with started(models.linear(tmp_path / "policy.onnx", WEIGHTS), actors=3) as agent:
        with pytest.raises(relevo.ConfigError, match="3 actors and 5 environments"):
            relevo.collect(agent, vector_env(AutoresetMode.SAME_STEP), steps=1)
        agent.new_actors(4)
        some = agent.actors(agent.get_actor_ids()[2:])
        assert relevo.collect(agent, vector_env(AutoresetMode.SAME_STEP), steps=5, actors=some).steps == 5


def test_the_agent_must_run(tmp_path: Path) -> None:
    policy = models.linear(tmp_path / "policy.onnx", WEIGHTS)
    agent = relevo.AgentBuilder().default_model(policy).actor_count(ACTORS).build()
    with pytest.raises(relevo.AgentStateError, match=r"start\(\)"):
        relevo.collect(agent, vector_env(AutoresetMode.SAME_STEP), steps=1)


class Silent(gym.vector.VectorWrapper[Any, Any, Any, Any, Any]):
    """Hides how the environments reset, as some wrappers do."""

    @property
    def metadata(self) -> dict[str, Any]:
        return {}


def test_a_hidden_autoreset_mode_can_be_said(tmp_path: Path) -> None:
    with started(models.linear(tmp_path / "policy.onnx", WEIGHTS)) as agent:
        envs = Silent(vector_env(AutoresetMode.NEXT_STEP))
        with pytest.raises(relevo.UnsuitableEnvironmentError, match="autoreset_mode="):
            relevo.collect(agent, envs, steps=100, seed=1)
        with pytest.raises(relevo.UnsuitableEnvironmentError, match="sometimes"):
            relevo.collect(agent, envs, steps=100, seed=1, autoreset_mode="sometimes")
        said = relevo.collect(agent, envs, steps=100, seed=1, autoreset_mode="next_step")
        known = relevo.collect(agent, vector_env(AutoresetMode.NEXT_STEP), steps=100, seed=1)
    np.testing.assert_array_equal(said.returns, known.returns)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_ctrl_c_keeps_what_was_recorded(mode: AutoresetMode, tmp_path: Path) -> None:
    class Interrupted(gym.vector.VectorWrapper[Any, Any, Any, Any, Any]):
        calls = 0

        def step(self, actions: Action) -> tuple[Any, ...]:
            self.calls += 1
            if self.calls == 21:
                raise KeyboardInterrupt
            return super().step(actions)

    agent = started(models.linear(tmp_path / "policy.onnx", WEIGHTS), tmp_path / "run")
    with agent:
        with pytest.raises(KeyboardInterrupt):
            relevo.collect(agent, Interrupted(vector_env(mode)), steps=1_000, seed=8)
        assert agent.running
    logs, _ = play(mode, 200, seed=8)
    for of_actor, of_env in zip(recorded(tmp_path / "run", agent.get_actor_ids()), logs, strict=True):
        *before, last = of_actor
        assert before
        for episode, log in zip(before, of_env, strict=False):
            assert_equals_log(episode, log)
        # The step that was interrupted: its action is there, what it earned is not.
        assert last.complete or np.isnan(last.rewards[-1])


def test_discrete_actions_are_shifted_by_the_start_of_the_space(tmp_path: Path) -> None:
    seen: list[int] = []

    class Watched(Countdown):
        def step(self, action: Action) -> Step:
            seen.append(int(action))
            return super().step(action)

    envs = SyncVectorEnv(
        [lambda: Watched(choices=gym.spaces.Discrete(2, start=5))] * ACTORS, autoreset_mode=AutoresetMode.SAME_STEP
    )
    with started(models.linear(tmp_path / "policy.onnx", WEIGHTS)) as agent:
        relevo.collect(agent, envs, steps=200, seed=0)
        actions = np.concatenate([episode.actions for episode in agent.trajectories()])
    assert set(seen) == {5, 6}
    assert set(actions.tolist()) == {0, 1}


def test_actions_for_a_box_are_cast_and_not_clipped(tmp_path: Path) -> None:
    seen: list[npt.NDArray[Any]] = []

    class Watched(Countdown):
        def step(self, action: Action) -> Step:
            seen.append(action.copy())
            return super().step(action)

    box = gym.spaces.Box(-0.01, 0.01, (2, 1), np.float64)
    envs = SyncVectorEnv([lambda: Watched(choices=box)] * ACTORS, autoreset_mode=AutoresetMode.SAME_STEP)
    policy = models.linear(tmp_path / "policy.onnx", WEIGHTS, "actions")
    with started(policy, head="raw") as agent:
        relevo.collect(agent, envs, steps=ACTORS, seed=0)
    assert {(action.shape, action.dtype.name) for action in seen} == {((2, 1), "float64")}
    assert max(np.abs(action).max() for action in seen) > 0.01


def whole_numbers(path: Path, columns: int) -> Path:
    """Actions as int64 `[batch, columns]`: the observation's first columns, rounded down."""
    constants = {"from": [0], "to": [columns], "axis": [1]}
    graph = helper.make_graph(
        [
            helper.make_node("Slice", ["obs", "from", "to", "axis"], ["part"]),
            helper.make_node("Floor", ["part"], ["floor"]),
            helper.make_node("Cast", ["floor"], ["actions"], to=TensorProto.INT64),
        ],
        "test",
        [helper.make_tensor_value_info("obs", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info("actions", TensorProto.INT64, ["batch", columns])],
        [helper.make_tensor(name, TensorProto.INT64, [1], value) for name, value in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.mark.parametrize(
    ("space", "head", "words"),
    [
        (gym.spaces.Discrete(1), "argmax", "one of 1 actions"),
        (gym.spaces.Discrete(2), "raw", "one of 2 actions"),
        (gym.spaces.Box(-1, 1, (2,)), "argmax", r"shape \(2,\)"),
        (gym.spaces.Box(-1, 1, (3,)), "raw", r"shape \(3,\)"),
        (gym.spaces.MultiDiscrete([2, 2]), "argmax", r"whole numbers of shape \(2,\)"),
        (gym.spaces.MultiBinary(2), "raw", r"whole numbers of shape \(2,\)"),
        (gym.spaces.Tuple([gym.spaces.Discrete(2)]), "argmax", "Tuple"),
        (gym.spaces.Discrete(2), "raw", 'head="argmax" or head="categorical"$'),
        (gym.spaces.Discrete(5), "raw", "; choose a policy with 5 logits$"),
        (gym.spaces.MultiDiscrete([1, 1]), "raw", r'head="categorical", branches=\[1, 1\]$'),
        (gym.spaces.MultiDiscrete([1, 1]), "argmax", r"branches=\[1, 1\]"),
        (gym.spaces.MultiDiscrete([3, 2]), "raw", "; choose a policy that was made for this environment$"),
        # Logits are no means: no head that the model cannot have is named.
        (gym.spaces.Box(-1, 1, (1,)), "raw", "; choose a policy that was made for this environment$"),
        (gym.spaces.Box(-1, 1, (3,)), "raw", "; choose a policy that was made for this environment$"),
        (gym.spaces.Box(-1, 1, (2,)), "argmax", '; choose another head: head="raw"$'),
        (gym.spaces.Box(-1, 1, (1,)), "argmax", "; choose a policy that was made for this environment$"),
    ],
    ids=str,
)
def test_an_action_space_that_does_not_fit(space: gym.Space[Any], head: str, words: str, tmp_path: Path) -> None:
    envs = SyncVectorEnv([lambda: Countdown(choices=space)] * ACTORS, autoreset_mode=AutoresetMode.SAME_STEP)
    with (
        started(models.linear(tmp_path / "policy.onnx", WEIGHTS), head=head) as agent,
        pytest.raises(relevo.UnsuitableEnvironmentError, match=words),
    ):
        relevo.collect(agent, envs, steps=100, seed=0)


def test_means_and_deviations_side_by_side_are_told_of(tmp_path: Path) -> None:
    policy = models.linear(tmp_path / "policy.onnx", WEIGHTS, "output")
    envs = SyncVectorEnv([lambda: Countdown(choices=gym.spaces.Box(-1, 1, (1,)))] * ACTORS)
    with (
        started(policy, head="raw") as agent,
        pytest.raises(relevo.UnsuitableEnvironmentError, match=r'1 means and as many log-stds, .* head="gaussian"'),
    ):
        relevo.collect(agent, envs, steps=100, seed=0, autoreset_mode="next_step")


@pytest.mark.parametrize(
    ("space", "branches", "words"),
    [
        (gym.spaces.Discrete(2), [1, 1], r"the branches \[1, 1\] do not fit; leave them out"),
        (gym.spaces.Discrete(3), [1, 1], r"the branches \[1, 1\] do not fit, .* a policy with 3 logits"),
        (gym.spaces.Discrete(3), [2], "the policy chooses from 2; choose a policy with 3 logits"),
        (gym.spaces.MultiDiscrete([[1], [1]]), [1, 1], "wrap the environment .* one row of 2"),
    ],
    ids=str,
)
def test_branches_that_do_not_fit(space: gym.Space[Any], branches: list[int], words: str, tmp_path: Path) -> None:
    envs = SyncVectorEnv([lambda: Countdown(choices=space)] * ACTORS, autoreset_mode=AutoresetMode.SAME_STEP)
    policy = models.linear(tmp_path / "policy.onnx", WEIGHTS)
    builder = relevo.AgentBuilder().default_model(policy, "argmax", branches=branches).actor_count(ACTORS)
    with builder.build() as agent, pytest.raises(relevo.UnsuitableEnvironmentError, match=words):
        relevo.collect(agent, envs, steps=100, seed=0)


@pytest.mark.parametrize(
    ("space", "columns", "words"),
    [
        (gym.spaces.Discrete(2), 1, "numbered from 0, but the policy chose -"),
        (gym.spaces.MultiDiscrete([3, 2]), 2, r"below \[3, 2\], but the policy chose"),
    ],
    ids=str,
)
def test_an_action_that_the_space_does_not_have(
    space: gym.Space[Any], columns: int, words: str, tmp_path: Path
) -> None:
    envs = SyncVectorEnv([lambda: Countdown(choices=space)] * ACTORS, autoreset_mode=AutoresetMode.SAME_STEP)
    with (
        started(whole_numbers(tmp_path / "policy.onnx", columns), head="raw") as agent,
        pytest.raises(relevo.UnsuitableEnvironmentError, match=words),
    ):
        relevo.collect(agent, envs, steps=500, seed=0)


def test_an_observation_of_another_width(tmp_path: Path) -> None:
    with (
        started(models.linear(tmp_path / "policy.onnx", np.ones((4, 2)))) as agent,
        pytest.raises(relevo.ContractError, match=r"\(5, 4\).*\(5, 3\)"),
    ):
        relevo.collect(agent, vector_env(AutoresetMode.SAME_STEP, dtype="float64"), steps=1)


def test_a_single_environment_is_no_vector(tmp_path: Path) -> None:
    with (
        started(models.linear(tmp_path / "policy.onnx", WEIGHTS)) as agent,
        pytest.raises(relevo.UnsuitableEnvironmentError, match="make_vector"),
    ):
        relevo.collect(agent, Countdown(), steps=1, autoreset_mode="same_step")  # type: ignore[arg-type]


def test_envpool(tmp_path: Path) -> None:
    envpool = pytest.importorskip("envpool", reason="EnvPool is not installed; it is no dependency")
    policy = models.linear(tmp_path / "policy.onnx", [[0, 0.1], [0, 0.3], [0, 3], [0, 1]])
    with started(policy, tmp_path / "run", actors=32) as agent:
        result = relevo.collect(agent, envpool.make_gymnasium("CartPole-v1", num_envs=32, seed=3), steps=40_000)
    episodes = list(relevo.open_run(tmp_path / "run").episodes())
    assert sum(len(episode) for episode in episodes) == result.steps
    returns = [episode.episode_return for episode in episodes if episode.complete]
    assert sorted(returns) == sorted(result.returns.tolist())
    # A fake step would give no reward.
    assert all((episode.rewards == 1).all() for episode in episodes)


def test_make_vector_of_a_function_and_of_a_vector() -> None:
    envs = make_vector(Countdown, 3, dtype="float64")
    assert envs.num_envs == 3
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert envs.single_observation_space.dtype == np.float64
    assert make_vector(envs, 3) is envs
    with pytest.raises(relevo.UnsuitableEnvironmentError, match="with 3 environments"):
        make_vector(envs, 4)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("cartpole-v1", "did you mean CartPole-v1"),
        ("CartPole-v7", "CartPole-v1"),
        ("Qwertyuiop-v0", "pprint_registry"),
        ("no_such_module:Thing-v0", "no_such_module"),
        ("Ant-v5", r"pip install .*mujoco"),
    ],
)
def test_an_environment_that_cannot_be_made(env: str, words: str) -> None:
    if env == "Ant-v5":
        try:
            import mujoco  # noqa: F401 # type: ignore[import-not-found]
        except ImportError:
            pass
        else:
            pytest.skip("MuJoCo is installed here, so nothing is missing")
    with pytest.raises(relevo.UnsuitableEnvironmentError, match=words):
        make_vector(env, 2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_actions_that_leave_a_box_are_told_of_once(
    dtype: type[np.floating[Any]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A bound that float32 does not have, such as 0.1, is no value outside."""
    space = gym.spaces.Box(-0.1, 0.1, (2,), dtype)
    envs = SyncVectorEnv([lambda: Countdown(choices=space)] * ACTORS, autoreset_mode=AutoresetMode.SAME_STEP)
    path = models.linear(tmp_path / "policy.onnx", 100 * np.array(WEIGHTS), "action")
    inside = relevo.Bounds.of(space)
    with relevo.AgentBuilder().default_model(path, bounds=inside).actor_count(ACTORS).build() as agent:
        relevo.collect(agent, envs, steps=50, seed=0)
    assert "leave the action space" not in caplog.text
    with relevo.AgentBuilder().default_model(path).actor_count(ACTORS).build() as agent:
        relevo.collect(agent, envs, steps=50, seed=0)
    assert caplog.text.count("leave the action space") == 1
    assert "bounds=Bounds.of(env.action_space)" in caplog.text
