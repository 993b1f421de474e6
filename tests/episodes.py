"""Runs that tests make, of every kind of episode, and what their episodes must come back as."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import models
import numpy as np

import relevo
from relevo.record_settings import Compression
from relevo.trajectories import EpisodeData
from relevo.trajectories.episode_data import Arrays, named

REWARDS = [0.1, -2.5e-9, float("nan"), float("inf"), 1e300, 3.0, -0.0]


def play(agent: relevo.Agent, steps: int, *, width: int, length: int = 4, dtype: Any = np.float32) -> None:
    """Episodes of `length` steps, each third one truncated, with rewards that are hard to hold."""
    actors = agent.actors()
    count = len(actors)
    random = np.random.default_rng(0)
    for step in range(steps):
        obs = (random.normal(size=(count, width)) * 40).astype(dtype)
        actors.act(obs)
        ends = step % length == length - 1
        truncated = ends and step // length % 3 == 2
        actors.observe(
            np.roll(REWARDS, step // 2)[:count] if step % 2 else 1.0,
            terminated=ends and not truncated,
            truncated=truncated,
            final_obs=obs + 1 if ends else None,
        )


def recorded(
    folder: Path, *, steps: int = 22, policy: str = "default", compression: Compression = "none", versions: int = 1
) -> relevo.Run:
    """Two actors with log-probabilities and values; the last episodes are unfinished, their last rewards never came.

    Each of the versions plays as many steps.
    """
    model = models.actor_critic(folder / "policy.onnx")
    builder = relevo.AgentBuilder().policy(policy, model).actor_count(2).seed(3)
    with builder.record(folder / "run", compression=compression).build() as agent:
        for version in range(versions):
            if version:
                agent.update_model(model, policy=policy)
            play(agent, steps, width=2)
        agent.actors().act(np.zeros((2, 2), np.float32))
    return relevo.open_run(folder / "run")


def assert_same(one: EpisodeData, other: EpisodeData) -> None:
    """Equal in every field, to the bit; times and actors too."""
    for field in EpisodeData.__dataclass_fields__:
        left, right = getattr(one, field), getattr(other, field)
        if field in {"observations", "actions"}:
            assert_same_arrays(left, right)
        elif field == "extras":
            texts = {name for name, given in left.items() if isinstance(given, list)}
            assert {name: left[name] for name in texts} == {name: right[name] for name in texts}
            assert_same_arrays(*({name: own[name] for name in own.keys() - texts} for own in (left, right)))
        elif isinstance(left, np.ndarray):
            assert_equal(left, right, field)
        else:
            assert left == right, field


def assert_same_arrays(one: Arrays, other: Arrays) -> None:
    left, right = named("", one), named("", other)
    assert left.keys() == right.keys()
    for name in left:
        assert_equal(left[name], right[name], name)


def assert_equal(left: Any, right: Any, what: str) -> None:
    assert left.dtype == right.dtype, what
    np.testing.assert_array_equal(left, right, err_msg=what)
    if left.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(left), np.signbit(right), err_msg=what)
