"""Finished trajectories for a reader in the same process, and episodes that are cut at a length."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import models
import numpy as np
import pytest

import relevo

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return models.linear(tmp_path / "policy.onnx", np.eye(2))


def play(agent: relevo.Agent, lengths: list[int]) -> None:
    """Each actor plays an episode of the length at its place, with observations [actor, step]."""
    actors, count = agent.actors(), len(lengths)
    for step in range(max(lengths)):
        obs = np.stack([np.arange(count), np.full(count, step)], axis=1).astype(np.float32)
        actors.act(obs)
        actors.observe(np.ones(count), terminated=np.array(lengths) == step + 1, truncated=False)


def test_a_reader_gets_each_trajectory_as_it_ends(policy: Path) -> None:
    agent = relevo.AgentBuilder().default_model(policy, head="argmax").actor_count(3).build()
    with pytest.raises(relevo.AgentStateError, match="has not started"):
        agent.subscribe()
    with agent:
        subscription = agent.subscribe()
        assert subscription.get(timeout=0.01) is None
        play(agent, [2, 3, 5])
        agent.flush()
        found = [subscription.get(timeout=10) for _ in range(3)]
        assert [(len(episode), episode.complete) for episode in found if episode] == [(2, True), (3, True), (5, True)]
    rest = list(subscription)
    # The actors that acted on without an end.
    assert [episode.complete for episode in rest] == [False] * len(rest)
    assert subscription.get() is None


def test_what_a_slow_reader_loses_is_counted(policy: Path) -> None:
    with relevo.AgentBuilder().default_model(policy, head="argmax").actor_count(6).build() as agent:
        newest, told = agent.subscribe(capacity=2), agent.subscribe(capacity=2, when_full="error")
        play(agent, [1, 2, 3, 4, 5, 6])
        agent.flush()
        kept = [newest.get(timeout=10), newest.get(timeout=10)]
        assert newest.dropped > 0
        assert len(kept[1] or []) == 6
        with pytest.raises(relevo.AgentStateError, match="the subscription is full"):
            told.get(timeout=10)
        assert len(told.get(timeout=10) or []) == 1
        with pytest.raises(relevo.ConfigError, match='one of "block", "drop_oldest", "error"'):
            agent.subscribe(when_full="wait")


def test_recording_waits_for_a_reader_that_nothing_may_get_past(policy: Path) -> None:
    with relevo.AgentBuilder().default_model(policy, head="argmax").actor_count(1).build() as agent:
        subscription = agent.subscribe(capacity=1, when_full="block")
        read: list[int] = []

        def learn() -> None:
            for episode in subscription:
                time.sleep(0.002)
                read.append(episode.number)

        learner = threading.Thread(target=learn)
        learner.start()
        for _ in range(50):
            play(agent, [1])
    learner.join(timeout=30)
    assert read == list(range(50))
    assert subscription.dropped == 0


def test_an_agent_ends_though_its_reader_is_gone(policy: Path) -> None:
    with relevo.AgentBuilder().default_model(policy, head="argmax").actor_count(4).build() as agent:
        with agent.subscribe(capacity=1, when_full="block"):
            pass
        del_me = agent.subscribe(capacity=1, when_full="block")
        del del_me
        started = time.monotonic()
        play(agent, [1, 2, 3, 4])
        agent.flush()
        assert time.monotonic() - started < 10
        assert agent.stats()["episodes_recorded"] >= 4


@pytest.mark.parametrize("length", [1, 3, 7, 100])
def test_long_episodes_are_cut_as_truncated_ones(policy: Path, tmp_path: Path, length: int) -> None:
    builder = relevo.AgentBuilder().default_model(policy, head="argmax").actor_count(2)
    with builder.max_trajectory_length(length).record(tmp_path / "run").build() as agent:
        play(agent, [40, 7])
    run = relevo.open_run(tmp_path / "run")
    episodes = sorted(run.episodes(), key=lambda episode: episode.number)
    for actor in (0, 1):
        own = [episode for episode in episodes if episode.observations[0, 0] == actor]
        assert max(map(len, own)) <= length
        steps = np.concatenate([episode.observations[: len(episode), 1] for episode in own])
        np.testing.assert_array_equal(steps, np.arange(40))
        for episode in own:
            if episode.truncated:
                assert len(episode) == length
                assert not episode.terminated
                assert episode.observations.shape[0] == length + 1
                assert episode.observations[-1, 1] == episode.observations[-2, 1] + 1
        assert sum(episode.terminated for episode in own) == 1
