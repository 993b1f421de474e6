"""Masks of actors that are assigned to policies that use none, or others."""

from __future__ import annotations

from pathlib import Path

import models
import numpy as np
import pytest

import relevo


@pytest.mark.parametrize("together", [False, True])
def test_what_was_known_of_masks_goes_with_the_policy(tmp_path: Path, together: bool) -> None:
    builder = (
        relevo.AgentBuilder()
        .default_model(models.linear(tmp_path / "two.onnx", np.eye(2)))
        .policy("three", models.linear(tmp_path / "three.onnx", np.ones((2, 3))))
        .policy("none", models.gaussian(tmp_path / "none.onnx", [0.0, 0.0]))
        .actor_count(2)
    )
    with builder.build() as agent:
        ids = agent.get_actor_ids()
        handle = agent.actors(ids if together else ids[:1])
        rows = len(handle)

        def act(mask: list[int] | None) -> None:
            masks = None if mask is None else np.tile(np.array(mask, np.bool_), (rows, 1))
            handle.act(np.zeros((rows, 2), np.float32), mask=masks)
            handle.observe(1.0)

        act([0, 1])
        act(None)
        agent.assign(ids, "none")
        act(None)
        with pytest.raises(relevo.ContractError, match="the policy `none` can use none"):
            act([1, 1])
        agent.assign(ids, "three")
        act(None)
        act([0, 0, 1])
        agent.assign(ids, "default")
        act([1, 0])
        agent.shutdown()
        played = [episode for episode in agent.trajectories() if episode.actor_id == ids[0]]
    found = [
        (
            [name for _, name, _ in episode.policy_runs],
            None if episode.action_masks is None else episode.action_masks.tolist(),
        )
        for episode in played
    ]
    assert found == [
        (["default"], [[0, 1], [1, 1]]),
        (["none"], None),
        (["three"], [[1, 1, 1], [0, 0, 1]]),
        (["default"], [[1, 0]]),
    ]
