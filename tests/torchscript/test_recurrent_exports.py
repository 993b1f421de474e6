"""Exports of recurrent modules, against the module itself over episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import relevo
import relevo.export

BOX = gym.spaces.Box(-1, 1, (4,), np.float32)
EXPORTS = {"onnx": relevo.export.to_onnx, "pt": relevo.export.to_torchscript}
ACTORS = 5


class Gru(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.GRU(4, 8, 2)
        self.head = nn.Linear(8, 3)
        self.value = nn.Linear(8, 1)

    def forward(self, obs: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, h = self.memory(obs[None], h)
        return self.head(y[0]), self.value(y[0]), h

    def step(self, obs: torch.Tensor, states: Any) -> tuple[torch.Tensor, Any]:
        action, _, h = self(obs, torch.zeros(2, len(obs), 8) if states is None else states)
        return action, h


class Lstm(nn.Module):
    """Takes its states in a tuple, which may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.LSTM(4, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, state: Any = None) -> tuple[torch.Tensor, Any]:
        y, state = self.memory(x[None], state)
        return self.head(y[0]), state

    def step(self, obs: torch.Tensor, states: Any) -> tuple[torch.Tensor, Any]:
        return self(obs, states)


class Cell(nn.Module):
    """Takes its arguments in an order of its own, and counts rows first."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.LSTMCell(4, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, c: torch.Tensor, h: torch.Tensor, obs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h, c = self.memory(obs, (h, c))
        return self.head(h), c, h

    def step(self, obs: torch.Tensor, states: Any) -> tuple[torch.Tensor, Any]:
        zeros = torch.zeros(len(obs), 8)
        action, *states = self(*(states or (zeros, zeros)), obs)
        return action, states


@pytest.mark.parametrize("form", EXPORTS)
@pytest.mark.parametrize(
    ("module", "outputs", "states", "axis"),
    [
        (Gru, ["action", "value"], {"h": (2, 8)}, 1),
        (Lstm, ["action"], {"h": (1, 8), "c": (1, 8)}, 1),
        (Cell, ["action"], {"h": (8,), "c": (8,)}, 0),
    ],
)
def test_a_file_goes_on_as_the_module_does(  # noqa: PLR0917 : what is varied
    form: str, module: Any, outputs: list[str], states: dict[str, tuple[int, ...]], axis: int, tmp_path: Path
) -> None:
    own, path = module(), tmp_path / f"policy.{form}"
    report = EXPORTS[form](own, path, BOX, outputs=outputs, states=states)
    assert report.contract is not None
    assert report.contract.batch == "dynamic"
    prefix = "" if form == "onnx" else "hidden_"
    assert [(state.input, state.output, state.batch_axis) for state in report.contract.states] == [
        (f"{prefix}{name}_in", f"{name}_out", axis) for name in states
    ]
    random = np.random.default_rng(0)
    held: list[Any] = [None] * ACTORS
    with relevo.AgentBuilder().default_model(path).actor_count(ACTORS).build() as agent:
        actors = agent.actors()
        for step in range(8):
            if step == 6:
                agent.update_model(own)
            rows = random.standard_normal((ACTORS, 4)).astype(np.float32)
            found = np.array(actors.act(rows).action)
            for actor in range(ACTORS):
                with torch.no_grad():
                    expected, held[actor] = own.step(torch.from_numpy(rows[actor : actor + 1]), held[actor])
                np.testing.assert_allclose(found[actor], expected[0], atol=5e-5, rtol=5e-5)
            ends = np.array([step == 3 and actor == 1 for actor in range(ACTORS)])
            held = [None if end else state for end, state in zip(ends, held, strict=True)]
            actors.observe(0.0, ends)


class Agent(nn.Module):
    """As CleanRL's PPO with an LSTM has it."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Linear(4, 8)
        self.lstm = nn.LSTM(8, 8)
        self.actor = nn.Linear(8, 3)
        self.critic = nn.Linear(8, 1)

    def get_states(self, x: torch.Tensor, state: Any, done: torch.Tensor) -> tuple[torch.Tensor, Any]:
        rows = state[0].shape[1]
        hidden, done = self.network(x).reshape(-1, rows, 8), done.reshape(-1, rows)
        found = []
        for own, ended in zip(hidden, done, strict=True):
            kept = (1.0 - ended).view(1, -1, 1)
            result, state = self.lstm(own.unsqueeze(0), (kept * state[0], kept * state[1]))
            found.append(result)
        return torch.flatten(torch.cat(found), 0, 1), state

    def get_action_and_value(self, x: torch.Tensor, state: Any, done: torch.Tensor, action: Any = None) -> Any:
        hidden, state = self.get_states(x, state, done)
        probs = torch.distributions.Categorical(logits=self.actor(hidden))
        action = probs.sample() if action is None else action
        return action, probs.log_prob(action), probs.entropy(), self.critic(hidden), state


@pytest.mark.parametrize("form", EXPORTS)
def test_an_agent_of_cleanrl(form: str, tmp_path: Path) -> None:
    own, path = Agent(), tmp_path / f"policy.{form}"
    report = EXPORTS[form](own, path, BOX, states={"h": (1, 8), "c": (1, 8)})
    assert report.contract is not None
    assert [state.output for state in report.contract.states] == ["h_out", "c_out"]
    assert (report.roles["logits"], report.roles["value"]) == ("logits", "value")
    state: Any = (torch.zeros(1, ACTORS, 8), torch.zeros(1, ACTORS, 8))
    done = torch.zeros(ACTORS)
    random = np.random.default_rng(0)
    with relevo.AgentBuilder().default_model(path).actor_count(ACTORS).build() as agent:
        actors = agent.actors()
        for step in range(6):
            rows = random.standard_normal((ACTORS, 4)).astype(np.float32)
            batch = actors.act(rows, deterministic=True)
            with torch.no_grad():
                hidden, state = own.get_states(torch.from_numpy(rows), state, done)
                np.testing.assert_array_equal(batch.action, own.actor(hidden).argmax(1))
                np.testing.assert_allclose(batch.value, own.critic(hidden)[:, 0], atol=5e-5)
            ends = np.array([step == 3 and actor == 1 for actor in range(ACTORS)])
            done = torch.from_numpy(ends).float()
            actors.observe(0.0, ends)


class Learned(Lstm):
    """Begins with ones."""

    def forward(self, x: torch.Tensor, state: Any = None) -> tuple[torch.Tensor, Any]:
        return super().forward(x, (torch.ones(1, len(x), 8),) * 2 if state is None else state)


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (Gru, {"outputs": ["action", "value"], "states": {"h": (2, 9)}}, r"states of the shapes h_in \(2, 9\)"),
        (Gru, {"outputs": ["action"], "states": {"h": (2, 8)}}, "gives 3 tensors, but 2 are named"),
        (Learned, {"outputs": ["action"], "states": {"h": (1, 8), "c": (1, 8)}}, r"otherwise than with zeros"),
    ],
)
def test_states_that_do_not_fit(module: Any, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(relevo.ExportError, match=message):
        relevo.export.to_onnx(module(), tmp_path / "policy.onnx", BOX, **options)
    assert list(tmp_path.iterdir()) == []


def test_outputs_of_a_recurrent_module_are_named(tmp_path: Path) -> None:
    with pytest.raises(relevo.ConfigError, match="name the outputs of a recurrent module"):
        relevo.export.to_onnx(Gru(), tmp_path / "policy.onnx", BOX, states={"h": (2, 8)})


def test_a_module_that_misses_its_states_is_told_of_them(tmp_path: Path) -> None:
    with pytest.raises(relevo.ExportError, match=r"missing 1 required positional argument: 'h'.*states="):
        relevo.export.to_onnx(Gru(), tmp_path / "policy.onnx", BOX, outputs=["action", "value", "h_out"])
