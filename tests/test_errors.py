"""Errors about an actor carry its id."""

from __future__ import annotations

import pickle
from pathlib import Path
from uuid import UUID, uuid4

import models
import numpy as np
import pytest
from agents import builder, one_hot

import relevo


@pytest.mark.parametrize("single", [False, True], ids=["many actors", "one actor"])
def test_errors_about_an_actor_carry_its_id(single: bool, tmp_path: Path) -> None:
    with builder(models.square_root(tmp_path / "root.onnx"), 3).build() as agent:
        ids = agent.get_actor_ids()
        actors = agent.actors(ids[1:2] if single else ids)
        good = np.array([[1, 4]] * len(actors), np.float32)
        row = 0 if single else 1

        def with_row(*values: float) -> np.ndarray:
            changed = good.copy()
            changed[row] = values
            return changed

        def named(error: type[relevo.RelevoError], **arguments: np.ndarray) -> UUID | None:
            with pytest.raises(error, match=str(ids[1])) as raised:
                actors.act(**{"obs": good, **arguments})
            travelled = pickle.loads(pickle.dumps(raised.value))  # noqa: S301 : made right here
            assert travelled.actor_id == raised.value.actor_id
            return raised.value.actor_id

        assert named(relevo.InferenceError, obs=with_row(-1, 4)) == ids[1]
        assert named(relevo.ContractError, obs=with_row(np.nan, 4)) == ids[1]
        mask = np.ones((len(actors), 2), np.bool_)
        mask[row] = False
        assert named(relevo.ContractError, mask=mask) == ids[1]
        agent.remove_actor(ids[1])
        with pytest.raises(relevo.ActorNotFoundError) as raised:
            actors.act(good)
        assert raised.value.actor_id == ids[1]


def test_errors_about_no_actor_in_particular_carry_none(tmp_path: Path) -> None:
    with builder(models.square_root(tmp_path / "root.onnx"), 2).build() as agent:
        unknown = uuid4()
        with pytest.raises(relevo.ActorNotFoundError) as missing:
            agent.actors([unknown])
        assert missing.value.actor_id == unknown
        with pytest.raises(relevo.ContractError) as wrong:
            agent.actors().act(one_hot(0))
        assert wrong.value.actor_id is None
        with pytest.raises(relevo.AgentStateError, match="no open step") as early:
            agent.actors().observe(0.0)
        assert early.value.actor_id == agent.get_actor_ids()[0]
    assert relevo.InferenceError("of somebody's own").actor_id is None
