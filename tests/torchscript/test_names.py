"""Arguments and results of modules that stand in another order than the file's: matched by name, or refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

import relevo
import relevo.export

PAIR = gym.spaces.Dict(
    {"goal": gym.spaces.Box(-9, 9, (3,), np.float32), "obs": gym.spaces.Box(-9, 9, (3,), np.float32)}
)
SEEN = {"goal": np.ones((2, 3), np.float32), "obs": np.full((2, 3), 5, np.float32)}
EXPORTS = {"onnx": relevo.export.to_onnx, "pt": relevo.export.to_torchscript}


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))


class InOrder(Weighted):
    def forward(self, goal: torch.Tensor, obs: torch.Tensor) -> torch.Tensor:
        return (obs - goal) * self.weight


class Swapped(Weighted):
    def forward(self, obs: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
        return (obs - goal) * self.weight


class Aliased(Weighted):
    def forward(self, observation: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
        return (observation - goal) * self.weight


class Unnamed(Weighted):
    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return (second - first) * self.weight


class Contradictory(Weighted):
    """Of three inputs, one is told by its name, and stands elsewhere."""

    def forward(self, obs: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return (obs - first - second) * self.weight


def action(agent: relevo.Agent, observation: Any) -> npt.NDArray[Any]:
    return np.asarray(agent.actors().act(observation, deterministic=True).action)


@pytest.mark.parametrize("form", EXPORTS)
@pytest.mark.parametrize("module", [Swapped, Aliased, Unnamed, InOrder])
def test_inputs_are_matched_by_name(form: str, module: type[nn.Module], tmp_path: Path) -> None:
    path = tmp_path / f"policy.{form}"
    EXPORTS[form](module(), path, PAIR, outputs=["action"])
    with relevo.AgentBuilder().default_model(path).actor_count(2).build() as agent:
        np.testing.assert_allclose(action(agent, SEEN), 4)
        for own in (module(), torch.jit.script(module())):
            agent.update_model(own)
            np.testing.assert_allclose(action(agent, SEEN), 4)


@pytest.mark.parametrize("form", EXPORTS)
def test_a_contradiction_is_refused(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"policy.{form}"
    part = gym.spaces.Box(-9, 9, (3,), np.float32)
    spaces = gym.spaces.Dict({"left": part, "obs": part, "right": part})
    with pytest.raises(relevo.ConfigError, match=r"inputs are left, obs, right, and the module's obs, first, second"):
        EXPORTS[form](Contradictory(), path, spaces, outputs=["action"])

    class Served(Weighted):
        def forward(self, left: torch.Tensor, obs: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            return (obs - left - right) * self.weight

    EXPORTS[form](Served(), path, spaces, outputs=["action"])
    with relevo.AgentBuilder().default_model(path).actor_count(2).build() as agent:
        with pytest.raises(relevo.ContractError, match="left, obs, right, and the module's obs, first, second"):
            agent.update_model(Contradictory())
        assert agent.get_model_version()[0] == 1


class Masked(Weighted):
    def forward(self, action_mask: torch.Tensor, obs: torch.Tensor) -> torch.Tensor:
        return obs * self.weight + (1 - action_mask) * -1e9


class MaskedServed(Weighted):
    def forward(self, obs: torch.Tensor, action_mask: torch.Tensor) -> torch.Tensor:
        return obs * self.weight + (1 - action_mask) * -1e9


def test_a_mask_is_matched_by_name(tmp_path: Path) -> None:
    spaces = gym.spaces.Dict({"obs": PAIR["obs"], "action_mask": gym.spaces.MultiBinary(3)})
    examples = {"obs": np.zeros((1, 3), np.float32), "action_mask": np.ones((1, 3), np.float32)}
    assert set(spaces.spaces) == set(examples)
    path = tmp_path / "policy.onnx"
    relevo.export.to_onnx(MaskedServed(), path, examples, outputs=["logits"])
    with relevo.AgentBuilder().default_model(path, head="argmax").build() as agent:
        agent.update_model(Masked())
        actors, seen = agent.actors(), np.array([[3, 1, 2]], np.float32)
        assert actors.act(seen, mask=np.array([[False, True, True]])).action[0] == 2
        assert actors.act(seen).action[0] == 0


def test_states_are_matched_by_name(scripted: Callable[..., relevo.ModelModule]) -> None:
    class Served(Weighted):
        def forward(
            self, obs: torch.Tensor, h_in: torch.Tensor, c_in: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            return obs * 0 * self.weight + h_in, h_in + 1, c_in + 100

    class Other(Weighted):
        def forward(self, obs: torch.Tensor, c_in: torch.Tensor, h_in: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return obs * 0 * self.weight + h_in, c_in + 100, h_in + 1

    model = scripted(Served(), shapes={"obs": (3,), "h_in": (3,), "c_in": (3,)})
    seen = np.zeros((1, 3), np.float32)
    with relevo.AgentBuilder().default_model(model).build() as agent:
        actors = agent.actors()
        counted = [actors.act(seen).action[0, 0] for _ in range(3)]
        agent.update_model(Other())
        counted += [actors.act(seen).action[0, 0] for _ in range(3)]
        assert counted == [0, 1, 2, 3, 4, 5]


class Pair(NamedTuple):
    log_std: torch.Tensor
    mean: torch.Tensor


class InDict(Weighted):
    def forward(self, obs: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"log_std": torch.full_like(obs, -5.0), "mean": obs * self.weight}


class InTuple(Weighted):
    def forward(self, obs: torch.Tensor) -> Pair:
        return Pair(log_std=torch.full_like(obs, -5.0), mean=obs * self.weight)


class Gaussian(Weighted):
    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return obs * 0 * self.weight, torch.full_like(obs, -1.0)


@pytest.mark.parametrize("form", EXPORTS)
@pytest.mark.parametrize("module", [InDict, InTuple])
def test_outputs_are_matched_by_name(form: str, module: type[nn.Module], tmp_path: Path) -> None:
    path = tmp_path / f"policy.{form}"
    EXPORTS[form](Gaussian(), path, PAIR["obs"], outputs=["mean", "log_std"])
    with relevo.AgentBuilder().default_model(path).actor_count(2).build() as agent:
        agent.update_model(module())
        np.testing.assert_allclose(action(agent, SEEN["obs"]), 5)


def test_contradictory_names_of_outputs_are_refused(tmp_path: Path) -> None:
    class Three(Weighted):
        def forward(self, obs: torch.Tensor) -> dict[str, torch.Tensor]:
            own = obs * self.weight
            return {"log_std": own, "one": own, "two": own}

    class Served(Weighted):
        def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            own = obs * self.weight
            return own, own * 0, own.sum(1, keepdim=True)

    path = tmp_path / "policy.onnx"
    relevo.export.to_onnx(Served(), path, PAIR["obs"], outputs=["mean", "log_std", "value"])
    with relevo.AgentBuilder().default_model(path).actor_count(2).build() as agent:
        with pytest.raises(relevo.ContractError, match=r"outputs are mean, log_std, value, and .* log_std, one, two"):
            agent.update_model(Three())
        assert agent.get_model_version()[0] == 1
