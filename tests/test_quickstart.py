"""The quick start, as the documentation has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import models

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_quick_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    models.linear(tmp_path / "policy.onnx", [[-0.1, 0.1], [-0.3, 0.3], [-3.0, 3.0], [-1.0, 1.0]])
    models.linear(tmp_path / "policy-v2.onnx", [[-1.0, 1.0], [-3.0, 3.0], [-30.0, 30.0], [-10.0, 10.0]])

    # fmt: off
    import gymnasium as gym
    import numpy as np

    import relevo

    envs = gym.make_vec("CartPole-v1", num_envs=64, vectorization_mode="sync",
                        vector_kwargs={"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP})
    model = relevo.ModelModule.load_from_path("policy.onnx")        # .onnx, .pt, or a folder with metadata.json
    print(model.contract)                                           # what it takes and gives, and how that was inferred  # noqa: T201

    agent = (
        relevo.AgentBuilder()
        .default_model(model, head="categorical")    # or a path; without a head the contract's own, see below
        .actor_count(64)
        .default_device("cpu")                       # "cuda:0", "mps"
        .routers(2)
        .record("runs/cartpole", format="arrow")
        .keep_in_memory(1_000)                       # trajectories, under a byte cap
        .seed(7)
        .build()
    )
    with agent:                                      # start() … shutdown(); both may be called by hand
        actors = agent.actors()                      # a handle on all of them; agent.actors(ids) on some
        obs, _ = envs.reset(seed=0)
        for _ in range(1_000):
            actions = actors.act(obs)                # one forward pass for all 64
            obs, reward, terminated, truncated, info = envs.step(np.asarray(actions))
            actors.observe(reward, terminated, truncated, final_obs=info.get("final_obs"))
        agent.update_model("policy-v2.onnx")         # atomic; the version is in every row written after it
        # fmt: on
        assert agent.get_model_version() == [2] * 64

    episodes = list(relevo.open_run("runs/cartpole").episodes())
    assert sum(len(episode) for episode in episodes) == 64_000
    ended = [episode for episode in episodes if episode.complete]
    assert len(ended) > 64
    assert all(episode.has_final_observation for episode in ended)
    assert all(episode.episode_return == len(episode) for episode in episodes)
    assert {version for episode in episodes for version in episode.policy_versions.tolist()} == {1}
