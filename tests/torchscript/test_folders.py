"""TorchScript files in folders with `metadata.json`, as RelayRL 0.5 writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import relevo


def folder(path: Path, module: nn.Module, input_shape: list[int], output_shape: list[int]) -> Path:
    torch.jit.script(module.eval()).save(str(path / "client_model.pt"))
    metadata = {
        "model_file": "client_model.pt",
        "model_type": "pt",
        "input_dtype": {"Tch": "F32"},
        "output_dtype": {"Tch": "F32"},
        "input_shape": input_shape,
        "output_shape": output_shape,
        "default_device": "cpu",
    }
    (path / "metadata.json").write_text(json.dumps(metadata))
    return path


class AnyWidth(nn.Module):
    """Takes any width; only the folder knows."""

    def forward(self, whatever: Tensor) -> Tensor:
        return torch.tanh(whatever)


class Gray(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 2, 3)
        self.policy = nn.Linear(2 * 10 * 10, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.policy(self.convolution(x).flatten(-3))


class Two(nn.Module):
    """Takes positions of any width."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = nn.Linear(4, 2)

    def forward(self, position: Tensor, speed: Tensor) -> Tensor:
        return self.policy(speed) * position.sum(-1, keepdim=True)


@pytest.mark.parametrize("shape", [[1, 4], [4]])
@pytest.mark.parametrize("module", [nn.Linear(4, 4), AnyWidth()])
def test_the_folder_tells_the_width(tmp_path: Path, module: nn.Module, shape: list[int]) -> None:
    model = relevo.ModelModule.load_from_path(folder(tmp_path, module, shape, shape))
    (spec,) = model.contract.inputs
    assert (spec.row_shape, spec.dtype, model.contract.batch) == ((4,), "float32", "dynamic")
    assert "metadata.json" not in repr(model.contract)
    obs = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    with torch.no_grad():
        expected = module(torch.from_numpy(obs)).numpy()
    with relevo.AgentBuilder().default_model(tmp_path, head="raw").actor_count(8).build() as agent:
        np.testing.assert_allclose(agent.actors().act(obs).action, expected, atol=5e-5)


@pytest.mark.parametrize("shape", [[1, 1, 12, 12], [1, 12, 12]])
def test_a_leading_axis_of_1_may_belong_to_the_row(tmp_path: Path, shape: list[int]) -> None:
    model = relevo.ModelModule.load_from_path(folder(tmp_path, Gray(), shape, [1, 3]))
    (spec,) = model.contract.inputs
    assert (spec.row_shape, model.contract.batch) == ((1, 12, 12), "dynamic")


def test_the_first_observation_has_the_folders_shape(tmp_path: Path) -> None:
    contract = relevo.ModelModule.load_from_path(folder(tmp_path, Two(), [1, 9], [1, 2])).contract
    assert {tensor.name: tensor.row_shape for tensor in contract.inputs} == {"position": (9,), "speed": (4,)}


def test_a_wrong_shape_gives_way_to_what_runs(tmp_path: Path) -> None:
    contract = relevo.ModelModule.load_from_path(folder(tmp_path, nn.Linear(4, 2), [1, 9], [1, 2])).contract
    (spec,) = contract.inputs
    assert spec.row_shape == (4,)
    assert "metadata.json says float32 (9" in spec.reason


def test_a_shape_of_the_user_comes_before_the_folders(tmp_path: Path) -> None:
    path = folder(tmp_path, AnyWidth(), [1, 9], [1, 9])
    options: dict[str, Any] = {"shapes": {"whatever": (3,)}}
    (spec,) = relevo.ModelModule.load_from_path(path, **options).contract.inputs
    assert spec.row_shape == (3,)
