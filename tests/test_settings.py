"""Numbers that people give: taken in every form that is one, refused in words otherwise. When changes come too late."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import models
import numpy as np
import pytest
from agents import builder, one_hot

import relevo

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return models.linear(tmp_path / "policy.onnx", np.eye(4))


def test_numbers_of_numpy_are_numbers(policy: Path) -> None:
    made = builder(policy, 2).max_batch(np.int32(8)).routers(np.int64(1))  # type: ignore[arg-type]
    for wait in (np.float32(0.001), np.int64(3), 1_000_000, True):
        made.max_wait(wait)  # type: ignore[arg-type]
    with made.max_wait(0).build() as agent:
        assert agent.scale_throughput(np.int8(1)) == 2  # type: ignore[arg-type]
        assert len(agent.new_actors(np.uint16(3))) == 3  # type: ignore[arg-type]
        actor = agent.actors(agent.get_actor_ids()[:1])
        for record in (np.bool_(True), np.bool_(False), np.array(True), True):
            actor.act(one_hot(1), record=record)
            actor.observe(0.0, terminated=True)
        assert [len(episode) for episode in agent.trajectories()] == [1, 1, 1]


@pytest.mark.parametrize("wait", [1e300, 2**64, 10**400, np.inf, -1e-9, None, "0.1", 1j, [1, 2]], ids=str)
def test_waits_out_of_bounds(wait: Any) -> None:
    with pytest.raises(relevo.ConfigError, match=r"max_wait must be at least 0 and at most 1,000,000 seconds, but is "):
        relevo.AgentBuilder().max_wait(wait)


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 1.5, None, "x"], ids=str)
def test_numbers_that_are_none(number: Any, policy: Path) -> None:
    words = r"must be a whole number between -2\*\*63 and 2\*\*63 - 1, but .* came"
    with builder(policy, 1).build() as agent:
        for call in (agent.scale_throughput, agent.new_actors):
            with pytest.raises(relevo.ConfigError, match=words):
                call(number)
        with pytest.raises(relevo.ConfigError, match="would leave none"):
            agent.scale_throughput(-(2**63))
        assert len(agent.get_actor_ids()) == len(agent.stats()["routers"]) == 1


def test_what_changes_an_agent_before_its_start_and_after_its_end(policy: Path) -> None:
    agent = builder(policy, 2).policy("other", policy, head="argmax").build()
    first, second = agent.get_actor_ids()
    changes: list[Callable[[], object]] = [
        lambda: agent.scale_throughput(1),
        agent.new_actor,
        lambda: agent.new_actors(2),
        lambda: agent.new_actor(model=policy),
        lambda: agent.set_actor_id(first, first),
        lambda: agent.assign([first], "other"),
        lambda: agent.update_model(policy, "other"),
        agent.pause_recording,
        agent.resume_recording,
        lambda: agent.remove_actor(second),
    ]
    for change in changes:
        change()
    with agent:
        assert len(agent.get_actor_ids()) == 5
        assert len(agent.stats()["routers"]) == 2
    for change in [*changes, agent.start]:
        with pytest.raises(relevo.AgentStateError, match="shut down"):
            change()
    assert len(agent.get_actor_ids()) == 5


def test_an_agent_that_was_shut_down_before_its_start_does_not_start(policy: Path) -> None:
    agent = builder(policy, 1).build()
    agent.shutdown()
    with pytest.raises(relevo.AgentStateError, match="shut down"):
        agent.start()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"bounds": (-1, 1)}, r"a relevo\.Bounds, but \(-1, 1\) \(tuple\) came; write Bounds\(low, high\)"),
        ({"normalization": 3}, r"a relevo\.Normalization.* but 3 \(int\) came; write Normalization"),
        ({"normalization": {"obs": 3}}, r"a relevo\.Normalization.* \(dict\) came"),
        ({"branches": 2}, r"a list of whole numbers, such as \[3, 2\], but 2 \(int\) came"),
        ({"branches": "22"}, "a list of whole numbers.*'22'"),
        ({"branches": [2, 1.5]}, r"a branch must be a whole number, but 1\.5"),
        ({"roles": ["x"]}, r"a dict of names and roles.*but \['x'\] came"),
        ({"roles": {"obs": 3}}, "a dict of names and roles"),
    ],
    ids=str,
)
def test_settings_of_a_policy_of_another_type(given: Any, words: str, policy: Path) -> None:
    with pytest.raises(relevo.ConfigError, match=words):
        relevo.AgentBuilder().default_model(policy, **given)


def test_a_model_of_another_type(policy: Path) -> None:
    with pytest.raises(relevo.ConfigError, match=r"a path or a relevo\.ModelModule, but 3 \(int\) came"):
        relevo.AgentBuilder().default_model(3)  # type: ignore[arg-type]
    agent = builder(policy, 1).build()
    with pytest.raises(relevo.ConfigError, match=r"a path or a relevo\.ModelModule, but int came"):
        agent.new_actor(model=3)  # type: ignore[arg-type]


def test_ids_of_another_type(policy: Path) -> None:
    agent = builder(policy, 2).build()
    first, second = agent.get_actor_ids()
    words = r"must be a list of uuid\.UUID, as agent\.get_actor_ids\(\) gives them, but {} came; .*uuid\.UUID\(text\)"
    wrong: list[tuple[Any, str]] = [(["x"], "'x'"), ([first, str(second)], f"'{second}'"), ("ab", "'ab'"), (3, "3")]
    calls: list[Callable[[Any], object]] = [
        agent.actors,
        agent.get_model_version,
        lambda ids: agent.assign(ids, "default"),
    ]
    for ids, came in wrong:
        for call in calls:
            with pytest.raises(relevo.ConfigError, match=words.format(came)):
                call(ids)
    with pytest.raises(relevo.ConfigError, match=r"an actor's id must be a uuid\.UUID"):
        agent.remove_actor(str(first))  # type: ignore[arg-type]
    assert agent.get_actor_ids() == [first, second]


@pytest.mark.parametrize("count", [3, 5])
def test_bounds_of_another_width(count: int, tmp_path: Path) -> None:
    path = models.linear(tmp_path / "continuous.onnx", np.eye(4), "actions")
    bounds = relevo.Bounds([-1.0] * count, [1.0] * count)
    with pytest.raises(relevo.ContractError, match=r"give as many .* as an action has elements, 4"):
        relevo.AgentBuilder().default_model(path, head="raw", bounds=bounds).build()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: relevo.Bounds([0], [1, 2]), "as many lower as upper ones, but there are 1 and 2"),
        (lambda: relevo.Bounds(np.zeros((2, 3)), np.ones((3, 2))), r"one shape.* \(2, 3\) and \(3, 2\)"),
        (lambda: relevo.Bounds([], []), r"a number for each element.* \(0,\) and \(0,\)"),
        (lambda: relevo.Bounds([0, 1], [1, 1]), "element 1 must be below the upper one, but they are 1 and 1"),
        (lambda: relevo.Bounds([np.nan], [1]), "element 0 must be below"),
        (lambda: relevo.Bounds([0], [np.inf], "rescale"), "must be finite"),
        (lambda: relevo.Normalization([0, 0], [1]), "2 means and 1 variances"),
        (lambda: relevo.Normalization([0, np.inf], [1, 1]), "mean of element 1 must be finite"),
        (lambda: relevo.Normalization([0, 0], [1, -1]), "variance of element 1 must be at least 0"),
        (lambda: relevo.Normalization([0], [np.nan]), "variance of element 0"),
        (lambda: relevo.Normalization([0], [0], epsilon=0), "above 0 together with epsilon"),
        (lambda: relevo.Normalization([0], [1], clip=-1), "a number above 0, but clip is -1"),
        (lambda: relevo.Normalization([0], [1], clip="x"), "clip must be numbers, but 'x' came"),
        (lambda: relevo.Normalization([0], [1], epsilon=[1, 2]), "epsilon must be one number"),
    ],
)
def test_bounds_and_statistics_are_checked_when_they_are_made(make: Callable[[], object], words: str) -> None:
    with pytest.raises(relevo.ConfigError, match=words):
        make()


def test_bounds_and_statistics_that_are_right() -> None:
    assert relevo.Bounds(-1, 1).low == [-1.0]
    assert relevo.Bounds([[-np.inf, 0]], [[np.inf, 1]]).high == [np.inf, 1.0]
    assert relevo.Normalization([[0, 1]], [[1, 0]], clip=np.inf).variance == [1.0, 0.0]


def test_bounds_of_whole_numbers() -> None:
    with pytest.raises(relevo.ConfigError, match=r"the space is Discrete\(2\); leave bounds out"):
        relevo.Bounds.of(gymnasium.spaces.Discrete(2))


@pytest.mark.parametrize("content", ["no JSON", "[1]", '{"mean": [0]}', '{"mean": [0], "variance": [1], "more": 1}'])
def test_a_normalization_that_is_none(content: str, tmp_path: Path) -> None:
    file = tmp_path / "statistics.json"
    file.write_text(content)
    with pytest.raises(relevo.ConfigError, match=r'statistics\.json.*write one JSON object .*"mean": \[numbers\]'):
        relevo.Normalization.from_json(file)
