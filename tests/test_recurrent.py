"""Recurrent policies: each actor gets what it would get alone."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, TypeAlias

import gymnasium as gym
import models
import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
from agents import LONG
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from test_policies import inputs_of, manifest, tensor

import relevo

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Rows: TypeAlias = "npt.NDArray[Any]"

STATES = ("h", "c")


def build(policy: Path, actors: int, **others: Path) -> relevo.Agent:
    builder = relevo.AgentBuilder().default_model(policy).actor_count(actors).seed(7).keep_in_memory(10_000)
    for name, other in others.items():
        builder = builder.policy(name, other)
    return builder.build()


class Alone:
    """One actor's LSTM, run by ONNX Runtime itself."""

    def __init__(self, path: Path, hidden: int = 6) -> None:
        self._session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        self._hidden = hidden
        self.forget()

    def forget(self) -> None:
        self._states = {f"{name}_in": np.zeros((1, 1, self._hidden), np.float32) for name in STATES}

    def act(self, obs: Rows) -> Rows:
        actions, h, c = self._session.run(None, {"obs": obs[None], **self._states})
        self._states = {"h_in": h, "c_in": c}
        return np.asarray(actions[0])


def assert_alike(got: Rows, expected: Rows, message: str = "") -> None:
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5, err_msg=message)


# --- real files ---


class Played:
    """A step of a recorded sequence, as actors take it."""

    def __init__(self, policy: dict[str, Any], step: dict[str, Any]) -> None:
        fed = {state["input"] for state in policy["state"]}
        given = [entry for entry in policy["inputs"] if entry["name"] not in fed]
        values = inputs_of({"inputs": given}, step)
        self.obs = {entry["name"]: values[entry["name"]] for entry in given if entry["role"] == "obs"}
        masks = [values[entry["name"]] for entry in given if entry["role"] == "mask"]
        self.mask = masks[0] if masks else None
        self._expected = step["outputs"]

    def check(self, batch: relevo.ActionBatch, rows: slice, message: str, tolerance: dict[str, float]) -> None:
        assert batch.outputs is not None
        for name, written in self._expected.items():
            got = batch.outputs[name]
            expected = tensor(written, str(got.dtype))
            np.testing.assert_allclose(
                got[rows], expected, rtol=tolerance["rtol"], atol=tolerance["atol"], err_msg=f"{message} {name}"
            )


def recurrent_files(shared: Path) -> Iterator[tuple[dict[str, Any], relevo.Agent, dict[str, float]]]:
    """Each recurrent ONNX file, and an agent of two actors that it serves."""
    files = [policy for policy in manifest(shared)["policies"] if policy["format"] == "onnx" and policy["recurrent"]]
    assert files
    for policy in files:
        path = shared / policy["file"]
        agent = relevo.AgentBuilder().default_model(path).actor_count(2).keep_outputs().build()
        with agent:
            yield policy, agent, manifest(shared)["tolerance"]


def sequence(policy: dict[str, Any], name: str) -> list[Played | None]:
    """The steps; None is a reset."""
    (found,) = [sequence for sequence in policy["sequences"] if sequence["name"] == name]
    return [None if step.get("reset") else Played(policy, step) for step in found["steps"]]


@pytest.mark.parametrize("by_hand", [True, False])
def test_sequences_of_one_actor(shared: Path, by_hand: bool) -> None:
    for policy, agent, tolerance in recurrent_files(shared):
        for name in ("actor_a", "actor_b", "reset_before_step_3"):
            actor = agent.actors(agent.get_actor_ids()[:1])
            actor.reset_state()
            for number, step in enumerate(sequence(policy, name)):
                if step is not None:
                    batch = actor.act(step.obs, step.mask)
                    step.check(batch, slice(None), f"{policy['id']} {name} {number}", tolerance)
                elif by_hand:
                    actor.reset_state()
                else:
                    actor.observe(1.0, terminated=True)


def test_a_sequence_of_two_actors_in_one_batch(shared: Path) -> None:
    for policy, agent, tolerance in recurrent_files(shared):
        actors = agent.actors()
        for number, step in enumerate(sequence(policy, "actors_a_and_b_as_batch2")):
            assert step is not None
            step.check(actors.act(step.obs, step.mask), slice(None), f"{policy['id']} {number}", tolerance)


def test_two_sequences_interleaved(shared: Path) -> None:
    for policy, agent, tolerance in recurrent_files(shared):
        singles = [agent.actors([actor_id]) for actor_id in agent.get_actor_ids()]
        steps = [sequence(policy, name) for name in ("actor_a", "actor_b")]
        # The second actor begins two steps later.
        for number in range(len(steps[0]) + 2):
            for late, (actor, played) in enumerate(zip(singles, steps, strict=True)):
                at = number - 2 * late
                if 0 <= at < len(played):
                    step = played[at]
                    assert step is not None
                    step.check(actor.act(step.obs, step.mask), slice(None), f"{policy['id']} {late} {at}", tolerance)


def test_two_sequences_in_two_tasks_of_one_loop(shared: Path) -> None:
    for policy, agent, tolerance in recurrent_files(shared):
        calls_before = agent.stats()["policies"]["default"]["calls"]

        async def play(actor: relevo.Actors, name: str) -> None:
            for number, step in enumerate(sequence(policy, name)):  # noqa: B023 : awaited in this round
                assert step is not None
                batch = await actor.act_async(step.obs, step.mask)
                step.check(batch, slice(None), f"{name} {number}", tolerance)  # noqa: B023

        async def both() -> None:
            singles = [agent.actors([actor_id]) for actor_id in agent.get_actor_ids()]  # noqa: B023
            await asyncio.gather(*(play(actor, f"actor_{name}") for actor, name in zip(singles, "ab", strict=True)))

        asyncio.run(asyncio.wait_for(both(), LONG))
        # They shared passes: all, unless the machine was too busy for the loop to turn in time.
        assert agent.stats()["policies"]["default"]["calls"] < calls_before + 10


# --- models made here ---


def test_states_are_told(tmp_path: Path) -> None:
    contract = relevo.ModelModule.load_from_path(models.lstm(tmp_path / "lstm.onnx")).contract
    assert contract.recurrent
    assert [(state.input, state.output, state.batch_axis) for state in contract.states] == [
        ("h_in", "h_out", 1),
        ("c_in", "c_out", 1),
    ]
    state = contract.states[0]
    assert (state.dtype, state.row_shape, state.initial) == ("float32", (1, 6), "zeros")
    assert "h_in <- h_out: float32 (1, 6), actors along axis 1, begins with zeros" in repr(contract)
    plain = relevo.ModelModule.load_from_path(models.linear(tmp_path / "linear.onnx", np.eye(2))).contract
    assert not plain.recurrent
    assert plain.states == []


@pytest.mark.parametrize("batch", ["batch", 1])
def test_many_actors_get_what_each_would_get_alone(tmp_path: Path, batch: int | str) -> None:
    path = models.lstm(tmp_path / "lstm.onnx", batch)
    draws = np.random.default_rng(0)
    players = [Alone(path) for _ in range(9)]
    with build(path, len(players)) as agent:
        ids = agent.get_actor_ids()
        for step in range(200):
            # Together, by parts of any size in any order, or one by one.
            chosen = draws.permutation(len(players))[: draws.integers(1, len(players) + 1)]
            obs = draws.normal(size=(len(chosen), 3)).astype(np.float32)
            ended = draws.random(len(chosen)) < 0.1
            if step % 3 == 0:
                actors = [agent.actors([ids[at]]) for at in chosen]
                got = np.concatenate([actor.act(obs[row : row + 1]).action for row, actor in enumerate(actors)])
                for row, actor in enumerate(actors):
                    actor.observe(1.0, terminated=ended[row : row + 1])
            else:
                together = agent.actors([ids[at] for at in chosen])
                got = together.act(obs, record=bool(step % 2)).action
                together.observe(np.ones(len(chosen)), truncated=ended)
            assert_alike(got, np.stack([players[at].act(row) for at, row in zip(chosen, obs, strict=True)]), f"{step}")
            for at in chosen[ended]:
                players[at].forget()


def test_threads_share_batches_and_no_memories(tmp_path: Path) -> None:
    path = models.lstm(tmp_path / "lstm.onnx")
    faults: list[BaseException] = []

    def play(actor: relevo.Actors, seed: int) -> None:
        try:
            draws, player = np.random.default_rng(seed), Alone(path)
            for step in range(100):
                obs = draws.normal(size=3).astype(np.float32)
                assert_alike(actor.act(obs[None]).action[0], player.act(obs), f"actor {seed}, step {step}")
                if ended := bool(draws.random() < 0.1):
                    player.forget()
                actor.observe(1.0, terminated=ended)
        except BaseException as fault:  # noqa: BLE001 : raised below, where it is seen
            faults.append(fault)

    with build(path, 8) as agent:
        threads = [
            threading.Thread(target=play, args=(agent.actors([actor_id]), seed))
            for seed, actor_id in enumerate(agent.get_actor_ids())
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        if faults:
            raise faults[0]
        served = agent.stats()["policies"]["default"]
    assert served["rows"] == 800
    assert served["calls"] < 800


def test_the_other_names_for_the_end_of_an_episode(tmp_path: Path) -> None:
    with build(models.counter(tmp_path / "counter.onnx"), 3) as agent:
        ids, obs = agent.get_actor_ids(), np.zeros((3, 1), np.float32)

        def ask() -> list[float]:
            return [float(action) for action in agent.request_action(ids, obs).action[:, 0]]

        assert [ask(), ask()] == [[1, 1, 1], [2, 2, 2]]
        agent.flag_last_action(ids[:1], 1.0)
        assert ask() == [1, 3, 3]
        agent.flag_last_action(ids[1:2], truncated=True)
        assert ask() == [2, 1, 4]
        agent.actors(ids).reset_state(np.array([False, False, True]))
        assert ask() == [3, 2, 1]
        agent.actors(ids[:2]).reset_state()
        assert ask() == [1, 1, 2]
        with pytest.raises(relevo.ContractError, match="which"):
            agent.actors(ids).reset_state(np.zeros(3))
        with pytest.raises(relevo.ContractError, match="which"):
            agent.actors(ids).reset_state(np.zeros(2, np.bool_))


def test_another_policy_begins_anew_and_an_update_goes_on(tmp_path: Path) -> None:
    path = models.counter(tmp_path / "counter.onnx")
    with build(path, 2, other=path) as agent:
        ids, actors, obs = agent.get_actor_ids(), agent.actors(), np.zeros((2, 1), np.float32)
        actors.act(obs)
        agent.assign(ids[:1], "other")
        assert actors.act(obs).action[:, 0].tolist() == [1, 2]
        # To where it is already: nothing changes.
        agent.assign(ids[:1], "other")
        agent.update_model(path)
        assert actors.act(obs).action[:, 0].tolist() == [2, 3]
        assert actors.act(obs).policy_version.tolist() == [1, 2]
        with pytest.raises(relevo.ContractError, match="the states count_in float32"):
            agent.update_model(models.linear(tmp_path / "linear.onnx", np.eye(1), "action"))
        assert actors.act(obs).action[:, 0].tolist() == [4, 5]


def test_a_state_with_nan_names_the_actor_and_spoils_no_memory(tmp_path: Path) -> None:
    with build(models.root_of_sum(tmp_path / "root.onnx"), 2) as agent:
        ids, actors = agent.get_actor_ids(), agent.actors()
        actors.act(np.full((2, 1), 4.0, np.float32))
        with pytest.raises(relevo.InferenceError, match=rf"NaN in the state `memory_in` for actor {ids[1]}"):
            actors.act(np.array([[1.0], [-3.0]], np.float32))
        one = agent.actors(ids[1:])
        with pytest.raises(relevo.InferenceError, match="NaN in the state"):
            one.act(np.full((1, 1), -3.0, np.float32))
        # 2 − 2 = 0: the memory is still 2.
        one.act(np.full((1, 1), -2.0, np.float32))


class Fixed(gym.Env[Any, Any]):
    """Episodes of a number of steps that is drawn at reset; the observation says nothing."""

    metadata = {"render_modes": []}  # noqa: RUF012 : Gymnasium's own form
    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Box(0, np.inf, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._left = int(self.np_random.integers(1, 7))
        return np.zeros(1, np.float32), {}

    def step(self, action: Rows) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        self._left -= 1
        ends = self._left == 0
        return np.zeros(1, np.float32), 1.0, ends and self.np_random.random() < 0.5, ends, {}


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_collected_episodes_begin_with_an_empty_memory(tmp_path: Path, mode: AutoresetMode) -> None:
    envs = SyncVectorEnv([Fixed for _ in range(4)], autoreset_mode=mode)
    with build(models.counter(tmp_path / "counter.onnx"), 4) as agent:
        for seed in range(2):
            # The second collection cuts off what the first one left open.
            relevo.collect(agent, envs, steps=150, seed=seed)
        agent.flush()
        episodes = agent.trajectories()
    assert len(episodes) > 50
    for episode in episodes:
        # The action is how often the policy was asked in this episode.
        np.testing.assert_array_equal(episode.actions[:, 0], np.arange(1, len(episode.actions) + 1))
