"""From outputs to actions: branches, hybrid actions, bounds and normalisation, against plain NumPy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import models
import numpy as np
import numpy.typing as npt
import pytest
from gymnasium import spaces
from onnx import helper

import relevo
from relevo.envs import vector

ROWS = 20_000
FLOAT = np.float32


def log_softmax(logits: npt.NDArray[Any]) -> npt.NDArray[Any]:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))  # type: ignore[no-any-return]


def hybrid(path: Path) -> Path:
    """Four numbers in: two are the mean of a Gaussian of deviation 0.5, two the logits of a choice."""
    return models.save(
        path,
        [
            helper.make_node("MatMul", ["obs", "left"], ["mu"]),
            helper.make_node("MatMul", ["obs", "right"], ["discrete_logits"]),
            helper.make_node("Identity", ["deviation"], ["log_std"]),
        ],
        {"obs": ["batch", 4]},
        {"mu": ["batch", 2], "log_std": [2], "discrete_logits": ["batch", 2]},
        {
            "left": np.eye(4, 2, dtype=FLOAT),
            "right": np.eye(4, 2, -2, dtype=FLOAT),
            "deviation": np.full(2, np.log(0.5), FLOAT),
        },
    )


class Branched:
    logits = np.array([0.0, 1.0, -1.0, 2.0, 0.5], FLOAT)
    """Branches of 2 and 3 choices."""


def test_branches_are_drawn_each_by_its_own_softmax(tmp_path: Path) -> None:
    model = models.linear(tmp_path / "model.onnx", np.eye(5))
    agent = (
        relevo.AgentBuilder()
        .default_model(model, head="categorical", branches=[2, 3])
        .actor_count(ROWS)
        .seed(3)
        .build()
    )
    with agent:
        actors = agent.actors()
        assert actors.branches == (2, 3)
        batch = actors.act(np.tile(Branched.logits, (ROWS, 1)))
        assert (batch.action.shape, batch.action.dtype) == ((ROWS, 2), np.int64)
        left, right = log_softmax(Branched.logits[:2]), log_softmax(Branched.logits[2:])
        np.testing.assert_allclose(batch.log_prob, left[batch.action[:, 0]] + right[batch.action[:, 1]], atol=1e-5)
        # Four standard errors of a share of 20,000 are at most 0.015.
        joint = np.zeros((2, 3))
        np.add.at(joint, (batch.action[:, 0], batch.action[:, 1]), 1 / ROWS)
        np.testing.assert_allclose(joint, np.exp(left)[:, None] * np.exp(right), atol=0.015)

        best = actors.act(np.tile(Branched.logits, (ROWS, 1)), deterministic=True)
        assert (best.action == [1, 1]).all()


def test_a_mask_holds_in_each_branch(tmp_path: Path) -> None:
    model = models.linear(tmp_path / "model.onnx", np.eye(5))
    agent = relevo.AgentBuilder().default_model(model, head="categorical", branches=[2, 3]).actor_count(64).build()
    with agent:
        actors = agent.actors()
        obs = np.tile(Branched.logits, (64, 1))
        mask = np.tile([True, False, False, True, True], (64, 1))
        batch = actors.act(obs, mask)
        assert (batch.action[:, 0] == 0).all()
        assert set(batch.action[:, 1]) <= {1, 2}
        mask[5, 3:] = False
        with pytest.raises(relevo.ContractError, match=r"row 5\) allows no action in branch 1; at least one of the 3"):
            actors.act(obs, mask)
        with pytest.raises(relevo.ContractError, match="a column for each of the 5"):
            actors.act(obs, mask[:, :3])


@pytest.mark.parametrize("branches", [[2, 2], [5, 1], [6]])
def test_branches_that_do_not_add_up_are_refused(tmp_path: Path, branches: list[int]) -> None:
    model = models.linear(tmp_path / "model.onnx", np.eye(5))
    with pytest.raises(relevo.ContractError, match=f"take {sum(branches)} logits, but output `logits` has 5"):
        relevo.AgentBuilder().default_model(model, branches=branches).build()


def test_branches_without_logits_are_refused(tmp_path: Path) -> None:
    model = models.gaussian(tmp_path / "model.onnx", [0.0, 0.0])
    with pytest.raises(relevo.ContractError, match="no head picks from logits"):
        relevo.AgentBuilder().default_model(model, branches=[2]).build()
    with pytest.raises(relevo.ConfigError, match="a branch must be at least 1"):
        relevo.AgentBuilder().default_model(model, branches=[0])


def test_hybrid_actions_have_a_column_each(tmp_path: Path) -> None:
    agent = (
        relevo.AgentBuilder()
        .default_model(hybrid(tmp_path / "model.onnx"))
        .actor_count(ROWS)
        .seed(5)
        .record(tmp_path / "run")
        .build()
    )
    row = np.array([0.3, -2.0, 0.0, 1.0], FLOAT)
    with agent:
        actors = agent.actors()
        assert actors.action_columns == {"mu": ("float32", (2,)), "discrete_logits": ("int64", ())}
        batch = actors.act(np.tile(row, (ROWS, 1)))
        push, choice = batch.action["mu"], batch.action["discrete_logits"]
        np.testing.assert_allclose(push.mean(0), row[:2], atol=0.02)
        np.testing.assert_allclose(push.std(0), 0.5, rtol=0.03)
        assert abs((choice == 1).mean() - 1 / (1 + np.exp(-1.0))) < 0.015
        # The parts are drawn independently of each other.
        assert abs(np.corrcoef(push[:, 0], choice)[0, 1]) < 0.03
        density = (-0.5 * ((push - row[:2]) / 0.5) ** 2 - np.log(0.5) - 0.5 * np.log(2 * np.pi)).sum(-1)
        np.testing.assert_allclose(batch.log_prob, density + log_softmax(row[2:])[choice], atol=1e-4)
        with pytest.raises(relevo.ContractError, match="no one array"):
            np.asarray(batch)
        actors.observe(np.ones(ROWS), np.ones(ROWS, bool))
        agent.flush()
    episode = next(relevo.open_run(tmp_path / "run").episodes())
    assert set(episode.actions) == {"mu", "discrete_logits"}
    at = actors.ids.index(episode.actor_id)
    np.testing.assert_array_equal(episode.actions["mu"][0], push[at])
    assert episode.actions["discrete_logits"][0] == choice[at]


def test_a_head_for_one_kind_of_a_hybrid_policy_leaves_the_other(tmp_path: Path) -> None:
    agent = relevo.AgentBuilder().default_model(hybrid(tmp_path / "model.onnx"), head="argmax").actor_count(9).build()
    with agent:
        batch = agent.actors().act(np.tile(np.array([0, 0, 1, 0], FLOAT), (9, 1)))
    assert (batch.action["discrete_logits"] == 0).all()
    assert len(np.unique(batch.action["mu"])) == 18
    assert batch.log_prob is None


@pytest.mark.parametrize("how", ["clip", "rescale", "tanh"])
def test_actions_are_brought_into_bounds_and_recorded_before(tmp_path: Path, how: Any) -> None:
    low, high = np.array([-2.0, 0.0], FLOAT), np.array([2.0, 0.5], FLOAT)
    model = models.gaussian(tmp_path / "model.onnx", [0.5, 0.5])
    agent = (
        relevo.AgentBuilder()
        .default_model(model, bounds=relevo.Bounds.of(spaces.Box(low, high), how))
        .actor_count(64)
        .seed(1)
        .record(tmp_path / "run")
        .build()
    )
    plain = relevo.AgentBuilder().default_model(model).actor_count(64).seed(1).build()
    obs = np.random.default_rng(0).normal(size=(64, 2)).astype(FLOAT)
    with agent, plain:
        actors = agent.actors()
        batch, drawn = actors.act(obs), plain.actors().act(obs)
        raw, action, log_prob = drawn.action.copy(), batch.action.copy(), batch.log_prob
        own = np.tanh(raw) if how == "tanh" else raw
        share = (np.clip(own, -1, 1) + 1) / 2
        expected = np.clip(own, low, high) if how == "clip" else low + share * (high - low)
        np.testing.assert_allclose(action, expected, atol=1e-6)
        assert (action >= low).all()
        assert (action <= high).all()
        change = np.log(1 - np.tanh(raw.astype(float)) ** 2).sum(-1) if how == "tanh" else 0.0
        np.testing.assert_allclose(log_prob, drawn.log_prob - change, atol=1e-3)
        actors.observe(np.ones(64), np.ones(64, bool))
    info = relevo.open_run(tmp_path / "run").info
    assert info["config"]["bounds"]["default"] == {"low": low.tolist(), "high": high.tolist(), "how": how}
    for episode in relevo.open_run(tmp_path / "run").episodes():
        np.testing.assert_allclose(episode.actions[0], own[actors.ids.index(episode.actor_id)], atol=1e-6)


def test_bounds_hold_for_single_calls_and_for_each_policy_of_a_call(tmp_path: Path) -> None:
    model = models.gaussian(tmp_path / "model.onnx", [-9.0, -9.0])
    agent = (
        relevo.AgentBuilder()
        .default_model(model, bounds=relevo.Bounds([-1, -1], [1, 1]))
        .policy("free", model)
        .actor_count(3)
        .build()
    )
    with agent:
        ids = agent.get_actor_ids()
        agent.assign([ids[1]], "free")
        far = np.full((3, 2), 5.0, FLOAT)
        np.testing.assert_allclose(agent.actors().act(far).action, [[1, 1], [5, 5], [1, 1]], atol=1e-2)
        np.testing.assert_allclose(agent.actors([ids[0]]).act(far[:1]).action, [[1, 1]])


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        (lambda: relevo.Bounds([0], [1, 2]), "1 and 2"),
        (lambda: relevo.Bounds([1, 1], [0, 2]), "element 0 must be below"),
        (lambda: relevo.Bounds([-np.inf] * 2, [1, 1], "tanh"), "must be finite"),
        (lambda: relevo.Bounds([0, 0, 0], [1, 1, 1]), "actions of 3 float32, but the policy gives float32 of shape"),
        (lambda: relevo.Bounds(["a"], [1]), "low must be numbers"),
        (lambda: relevo.Bounds([0], [1], "squash"), "clip, rescale, tanh"),
        (lambda: relevo.Bounds.of(spaces.Discrete(2)), "those of a Box"),
    ],
)
def test_bounds_that_mean_nothing_are_refused(tmp_path: Path, bounds: Any, words: str) -> None:
    model = models.gaussian(tmp_path / "model.onnx", [0.0, 0.0])
    with pytest.raises((relevo.ConfigError, relevo.ContractError), match=words):
        relevo.AgentBuilder().default_model(model, bounds=bounds()).build()


def test_bounds_for_whole_numbers_are_refused(tmp_path: Path) -> None:
    model = models.linear(tmp_path / "model.onnx", np.eye(2))
    with pytest.raises(relevo.ContractError, match="whole numbers"):
        relevo.AgentBuilder().default_model(model, bounds=relevo.Bounds([0], [1])).build()


def test_observations_are_normalised_for_the_model_and_recorded_as_they_came(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    mean, variance = rng.normal(size=3), rng.uniform(0.1, 4.0, 3)
    path = tmp_path / "statistics.json"
    path.write_text(json.dumps({"mean": mean.tolist(), "variance": variance.tolist(), "epsilon": 1e-3, "clip": 1.5}))
    model = models.linear(tmp_path / "model.onnx", np.eye(3), "actions")
    agent = (
        relevo.AgentBuilder()
        .default_model(model, normalization=relevo.Normalization.from_json(path))
        .actor_count(8)
        .record(tmp_path / "run")
        .build()
    )
    obs = rng.normal(size=(8, 3), scale=3).astype(FLOAT)
    expected = np.clip((obs - mean) / np.sqrt(variance + 1e-3), -1.5, 1.5)
    with agent:
        actors = agent.actors()
        np.testing.assert_allclose(actors.act(obs).action, expected, atol=1e-5)
        actors.observe(np.ones(8), np.ones(8, bool))
        one = agent.actors([actors.ids[2]])
        np.testing.assert_allclose(one.act(obs[2:3]).action, expected[2:3], atol=1e-5)
        agent.update_model(models.linear(tmp_path / "next.onnx", 2 * np.eye(3), "actions"))
        np.testing.assert_allclose(actors.act(obs).action, 2 * expected, atol=1e-5)
    run = relevo.open_run(tmp_path / "run")
    assert run.info["config"]["normalization"]["default"]["obs"]["clip"] == 1.5
    for episode in run.episodes():
        if episode.complete:
            np.testing.assert_array_equal(episode.observations[0], obs[actors.ids.index(episode.actor_id)])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda: relevo.Normalization([0.0], [1.0]), "1 elements was given for the observation `obs`"),
        (
            lambda: {"other": relevo.Normalization([0.0] * 3, [1.0] * 3)},
            "for the observation `other`, but the model observes obs",
        ),
        (lambda: relevo.Normalization([0.0] * 3, [1.0] * 2), "3 means and 2 variances"),
        (lambda: relevo.Normalization([np.nan] * 3, [1.0] * 3), "mean of element 0"),
        (lambda: relevo.Normalization([0.0] * 3, [-1.0] * 3), "variance of element 0"),
        (lambda: relevo.Normalization([0.0] * 3, [1.0] * 3, clip=0), "above 0"),
        (lambda: relevo.Normalization({}, [1.0] * 3), "mean must be numbers"),
    ],
)
def test_statistics_that_mean_nothing_are_refused(tmp_path: Path, given: Any, words: str) -> None:
    model = models.linear(tmp_path / "model.onnx", np.eye(3), "actions")
    with pytest.raises((relevo.ConfigError, relevo.ContractError), match=words):
        relevo.AgentBuilder().default_model(model, normalization=given()).build()


@pytest.mark.parametrize(
    "text", ["", "[1]", '{"mean": [0]}', '{"mean": [0], "variance": [1], "code": 1}', "cos\nsystem"]
)
def test_a_file_that_is_no_normalisation_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "statistics.json"
    path.write_text(text)
    with pytest.raises(relevo.ConfigError, match=r"statistics\.json"):
        relevo.Normalization.from_json(path)


class Crossing(gym.Env[Any, Any]):
    """Takes a push and a choice; the reward says whether they came as they were chosen."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.normal(size=4).astype(np.float32), options or {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        return self.np_random.normal(size=4).astype(np.float32), 1.0, bool(self.np_random.random() < 0.2), False, {}


@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict({"mu": spaces.Box(-np.inf, np.inf, (2,)), "discrete_logits": spaces.Discrete(2)}),
        spaces.Dict({"jump": spaces.Discrete(2), "push": spaces.Box(-np.inf, np.inf, (2,))}),
        spaces.Tuple([spaces.Discrete(2), spaces.Box(-np.inf, np.inf, (2,))]),
    ],
)
def test_collect_hands_hybrid_actions_to_nested_spaces(tmp_path: Path, space: spaces.Space[Any]) -> None:
    envs = gym.vector.SyncVectorEnv([lambda: Crossing(space)] * 4)
    agent = relevo.AgentBuilder().default_model(hybrid(tmp_path / "model.onnx")).actor_count(4).seed(1).build()
    with agent:
        result = relevo.collect(agent, envs, steps=400, seed=1)
    assert result.steps >= 400


def test_spaces_that_a_hybrid_policy_does_not_fit(tmp_path: Path) -> None:
    agent = relevo.AgentBuilder().default_model(hybrid(tmp_path / "model.onnx")).actor_count(1).build()
    with agent:
        for space, words in (
            (spaces.Discrete(2), "several kinds"),
            (spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)]), "name its outputs"),
            (spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,))]), "one of 3 actions"),
        ):
            envs = gym.vector.SyncVectorEnv([lambda space=space: Crossing(space)])
            with pytest.raises(relevo.UnsuitableEnvironmentError, match=words):
                vector.fit_actions(envs, agent.actors())


def test_ml_agents_says_its_branches_and_old_files_give_log_probabilities(shared: Path) -> None:
    sorter = relevo.ModelModule.load_from_path(shared / "mlagents_sorter.onnx")
    assert sorter.contract.branches == (3, 3, 3)
    agent = relevo.AgentBuilder().default_model(sorter).actor_count(2).build()
    with agent:
        obs = {
            "obs_0": np.zeros((2, 20, 23), FLOAT),
            "obs_1": np.zeros((2, 10), FLOAT),
            "obs_2": np.zeros((2, 8), FLOAT),
        }
        mask = np.ones((2, 9))
        mask[1, 3:6] = 0
        with pytest.raises(relevo.ContractError, match=r"row 1\) allows no action in branch 1; at least one of the 3"):
            agent.actors().act(obs, mask)

    food = relevo.ModelModule.load_from_path(shared / "mlagents_gridfood.onnx")
    roles = {tensor.name: tensor.role for tensor in food.contract.outputs}
    assert (roles["discrete_actions"], roles["continuous_actions"]) == ("logits", "action")
    agent = relevo.AgentBuilder().default_model(food).actor_count(2_000).keep_outputs().build()
    with agent:
        batch = agent.actors().act(np.zeros((2_000, 5, 40, 40), FLOAT))
        assert batch.action["continuous_actions"].shape == (2_000, 3)
        assert batch.action["discrete_actions"].shape == (2_000, 1)
        assert batch.outputs is not None
        share = np.exp(log_softmax(batch.outputs["discrete_actions"].astype(float)))[:, 1].mean()
        assert abs((batch.action["discrete_actions"] == 1).mean() - share) < 0.05


def test_three_outputs_without_names_are_those_of_stable_baselines(tmp_path: Path) -> None:
    path = models.save(
        tmp_path / "model.onnx",
        [
            helper.make_node("Identity", ["input"], ["17"]),
            helper.make_node("ReduceSum", ["input", "axes"], ["19"], keepdims=1),
            helper.make_node("ReduceSum", ["input", "axes"], ["23"], keepdims=0),
        ],
        {"input": ["batch", 2]},
        {"17": ["batch", 2], "19": ["batch", 1], "23": ["batch"]},
        {"axes": np.array([1], np.int64)},
    )
    model = relevo.ModelModule.load_from_path(path)
    assert [tensor.role for tensor in model.contract.outputs] == ["action", "value", "log_prob"]
    agent = relevo.AgentBuilder().default_model(model).actor_count(1).build()
    with agent:
        batch = agent.actors().act(np.array([[0.5, 1.0]], FLOAT))
    np.testing.assert_array_equal(batch.action, [[0.5, 1.0]])
    assert (batch.value, batch.log_prob) == (1.5, 1.5)
