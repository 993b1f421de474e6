"""States that are None at the start of an episode, of which the module makes something else than zeros."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

import relevo

ROWS = np.random.default_rng(3).standard_normal((6, 8, 4)).astype(np.float32)


class LearnedGru(nn.Module):
    """Begins with a state that was learned."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.randn(8))
        self.cell = nn.GRUCell(4, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, h: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        if h is None:
            h = self.start.expand(x.size(0), 8)
        h = self.cell(x, h)
        return self.head(h), h


class LearnedLstm(nn.Module):
    """A tuple of states, whose rows lie behind an axis of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.randn(2, 1, 1, 8))
        self.memory = nn.LSTM(4, 8)
        self.head = nn.Linear(8, 3)

    def forward(
        self, x: torch.Tensor, hc: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        if hc is None:
            hc = (self.start[0].repeat(1, x.size(0), 1), self.start[1].repeat(1, x.size(0), 1))
        y, hc = self.memory(x.unsqueeze(0), hc)
        return self.head(y[0]), hc


class OwnWidth(nn.Module):
    """No weight tells the width of its state, which the state that comes out of None has."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, h: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        if h is None:
            h = torch.ones(x.size(0), 11)
        return self.head(x) + h.sum(1, keepdim=True), h * 0.5


class Zeros(nn.Module):
    """Makes zeros of None."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 8)

    def forward(self, x: torch.Tensor, h: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.cell(x, h)
        return h, h


def alone(module: Any, actor: int, ends: int | None) -> npt.NDArray[Any]:
    """What an actor gets from the module itself, whose first episode ends behind a step."""
    state, found = None, []
    for step in range(len(ROWS)):
        with torch.no_grad():
            action, state = module(torch.from_numpy(ROWS[step, actor : actor + 1]), state)
        found.append(action[0].numpy())
        if step == ends:
            state = None
    return np.stack(found)


@pytest.mark.parametrize("module", [LearnedGru, LearnedLstm, OwnWidth])
def test_an_episode_begins_with_what_the_module_makes_of_none(
    module: type[nn.Module], scripted: Callable[..., relevo.ModelModule]
) -> None:
    own = module()
    model = scripted(own)
    assert {state.initial for state in model.contract.states} == {"the model's own"}
    assert model.contract.batch == "dynamic"
    assert any("is None at the start of an episode" in note for note in model.contract.notes)
    with relevo.AgentBuilder().default_model(model).actor_count(8).build() as agent:
        actors, found = agent.actors(), []
        for step in range(len(ROWS)):
            found.append(np.array(actors.act(ROWS[step]).action))
            # Some rows begin while others go on.
            actors.observe(0.0, np.array([step == 2 and actor in {1, 6} for actor in range(8)]))
    for actor in range(8):
        expected = alone(own, actor, 2 if actor in {1, 6} else None)
        np.testing.assert_allclose(np.stack(found)[:, actor], expected, atol=5e-5, rtol=5e-5)


def test_none_that_is_zeros_is_zeros(scripted: Callable[..., relevo.ModelModule]) -> None:
    assert [state.initial for state in scripted(Zeros()).contract.states] == ["zeros"]


def test_a_new_version_begins_by_its_own_start(scripted: Callable[..., relevo.ModelModule]) -> None:
    """The states of actors stay; only new episodes begin otherwise."""
    first, second = LearnedGru(), LearnedGru()
    models = [scripted(first), scripted(second)]
    with relevo.AgentBuilder().default_model(models[0]).actor_count(8).build() as agent:
        actors = agent.actors()
        actors.act(ROWS[0])
        actors.observe(0.0, np.arange(8) < 4)
        agent.update_model(models[1])
        found = np.asarray(actors.act(ROWS[1]).action)
    with torch.no_grad():
        began = second(torch.from_numpy(ROWS[1]))[0]
        went_on = second(torch.from_numpy(ROWS[1]), first(torch.from_numpy(ROWS[0]))[1])[0]
    expected = np.where(np.arange(8)[:, None] < 4, began, went_on)
    np.testing.assert_allclose(found, expected, atol=5e-5, rtol=5e-5)


def test_a_module_of_such_a_start_is_no_new_version(scripted: Callable[..., relevo.ModelModule]) -> None:
    """It is traced with its state given, so the start would be lost."""
    model = scripted(Zeros())
    replacement = LearnedGru()
    replacement.head = nn.Identity()
    with relevo.AgentBuilder().default_model(model).actor_count(8).build() as agent:
        agent.update_model(Zeros())
        with pytest.raises(relevo.ContractError, match=r"begins an episode otherwise .*torch.jit.script"):
            agent.update_model(replacement)
