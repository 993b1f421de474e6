"""Modules whose code decides by what is in its inputs, which a trace would not see; and weights that cannot be used."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
import torch_modules
from torch import nn

import relevo
import relevo.export
from relevo.export.decisions import decisions

BOX = gym.spaces.Box(-1, 1, (4,), np.float32)
ROWS = np.random.default_rng(0).uniform(-1, 1, (64, 4)).astype(np.float32)
EXPORTS = {"onnx": relevo.export.to_onnx, "pt": relevo.export.to_torchscript}


class Loop(nn.Module):
    """Goes on until the values are small: random rows seldom tell more than one number of rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, o: torch.Tensor) -> torch.Tensor:
        rounds = 0
        while o.abs().max() > 0.1 and rounds < 20:
            o = self.layer(o) * 0.3
            rounds += 1
        return o


def alone(module: nn.Module) -> np.ndarray:
    with torch.no_grad():
        return np.concatenate([module(torch.from_numpy(ROWS[row : row + 1])).numpy() for row in range(len(ROWS))])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("form", EXPORTS)
def test_a_loop_stays_a_loop(form: str, seed: int, tmp_path: Path) -> None:
    torch.manual_seed(seed)
    module, other = Loop(), Loop()
    path = tmp_path / f"policy.{form}"
    EXPORTS[form](module, path, BOX, outputs=["action"])
    with relevo.AgentBuilder().default_model(path).actor_count(len(ROWS)).build() as agent:
        np.testing.assert_allclose(agent.actors().act(ROWS).action, alone(module), atol=5e-5)
        agent.update_model(other)
        np.testing.assert_allclose(agent.actors().act(ROWS).action, alone(other), atol=5e-5)


class Rare(torch_modules.Branching):
    """A branch that no row within the bounds takes, in words that TorchScript has not."""

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        layers = {True: self.large, False: self.small}
        return layers[obs.abs().max().item() > 100.0](obs)


@pytest.mark.parametrize("form", EXPORTS)
def test_a_rare_branch_is_told_with_its_line(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"policy.{form}"
    with pytest.raises(relevo.ExportError, match=r"in `return layers\[obs.abs.*` \(test_decisions.py, line \d+\)"):
        EXPORTS[form](Rare(), path, BOX, outputs=["logits"])
    assert not path.exists()


class Harmless(nn.Module):
    """Asks for sizes, for weights, and for assertions alone; and TorchScript does not take it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        obs = given[0]
        assert not obs.isnan().any()
        factor = 2.0 if obs.shape[0] > 1_000 or self.scale.item() > 5 else 1.0
        return self.layer(obs) * factor


def test_sizes_weights_and_assertions_decide_nothing(tmp_path: Path) -> None:
    module = Harmless()
    assert decisions(module, (torch.zeros(2, 4),)) == []
    relevo.export.to_onnx(module, tmp_path / "policy.onnx", BOX, outputs=["logits"])


def served(tmp_path: Path) -> relevo.Agent:
    path = tmp_path / "policy.onnx"
    relevo.export.to_onnx(nn.Linear(4, 3), path, BOX, outputs=["logits"])
    return relevo.AgentBuilder().default_model(path).build()


@pytest.mark.parametrize("form", EXPORTS)
def test_a_lazy_module_is_told_what_to_do(form: str, tmp_path: Path) -> None:
    with pytest.raises(relevo.ExportError, match=r"2 weights without a shape yet, .* is weight.*Call it once"):
        EXPORTS[form](nn.LazyLinear(3), tmp_path / f"policy.{form}", BOX, outputs=["logits"])
    with served(tmp_path) as agent, pytest.raises(relevo.ContractError, match="2 weights without a shape yet"):
        agent.update_model(nn.LazyLinear(3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.bfloat16])
def test_other_weights_than_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    name = str(dtype).removeprefix("torch.")
    module = nn.Linear(4, 3).to(dtype)
    with pytest.raises(relevo.ExportError, match=rf"its weights are {name}: .*\.float\(\)"):
        relevo.export.to_torchscript(module, tmp_path / "policy.pt", BOX, outputs=["logits"])
    with served(tmp_path) as agent, pytest.raises(relevo.ContractError, match=rf"weights are {name}: .*\.float\(\)"):
        agent.update_model(module)


def test_names_that_come_twice_are_refused(tmp_path: Path) -> None:
    for outputs in (["obs"], ["action", "action"]):
        with pytest.raises(relevo.ConfigError, match=f"{outputs[0]} comes twice"):
            relevo.export.to_onnx(torch_modules.Branching(), tmp_path / "policy.onnx", BOX, outputs=outputs)


@pytest.mark.parametrize("ending", [".jit", ".torchscript", ""])
def test_a_bfloat16_module_of_another_ending_serves(ending: str, tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)).bfloat16()
    path = tmp_path / f"policy{ending}"
    torch.jit.script(module).save(str(path))
    with relevo.AgentBuilder().default_model(path, head="raw").actor_count(len(ROWS)).build() as agent:
        found = agent.actors().act(ROWS).action
    with torch.no_grad():
        expected = module(torch.from_numpy(ROWS).bfloat16()).float().numpy()
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-2)
