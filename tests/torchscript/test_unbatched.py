"""Modules that take one row and give it no axis."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import relevo

ACTORS = 8
WIDTH = 6


class Viewed(nn.Module):
    """`x.view(6)`: one row, and an answer without an axis for it; beside it a value that is one number."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        action = self.policy(x.view(6))
        return action, action.sum()


@pytest.mark.parametrize("trace", [True, False])
def test_rows_are_run_one_by_one(trace: bool, tmp_path: Path) -> None:
    module = Viewed().eval()
    path = tmp_path / "policy.pt"
    torch.jit.save(torch.jit.trace(module, torch.zeros(1, WIDTH)) if trace else torch.jit.script(module), str(path))
    model = relevo.ModelModule.load_from_path(path)
    assert model.contract.batch == "one"
    obs = np.random.default_rng(3).normal(size=(ACTORS, WIDTH)).astype(np.float32)
    with relevo.AgentBuilder().default_model(model).actor_count(ACTORS).build() as agent:
        actions = agent.actors().act(obs).action
    answers = model.forward({"x": obs})
    for actor, row in enumerate(obs):
        action, value = module(torch.from_numpy(row))
        np.testing.assert_allclose(actions[actor], action.detach(), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(answers["output_1"][actor], value.detach(), rtol=1e-5, atol=1e-5)
