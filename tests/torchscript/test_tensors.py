"""Observations and actions that are tensors of PyTorch."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
import torch
from torch import nn

import relevo


@pytest.fixture
def agent(tmp_path: Path) -> relevo.Agent:
    policy = models.linear(tmp_path / "policy.onnx", np.eye(3))
    return relevo.AgentBuilder().default_model(policy, head="argmax").actor_count(3).build()


def test_observations_are_tensors(agent: relevo.Agent) -> None:
    with agent:
        assert np.asarray(agent.actors().act(torch.eye(3))).tolist() == [0, 1, 2]
        assert np.asarray(agent.actors().act(torch.eye(3).flip(0).T)).tolist() == [2, 1, 0]


def test_a_tensor_that_requires_grad_is_refused_with_the_way_out(agent: relevo.Agent) -> None:
    with agent, pytest.raises(relevo.ContractError, match="detach"):
        agent.actors().act(torch.eye(3, requires_grad=True))


def test_actions_become_a_tensor_on_the_same_memory(agent: relevo.Agent) -> None:
    with agent:
        batch = agent.actors().act(torch.eye(3))
        actions = torch.from_dlpack(batch)
        assert actions.dtype == torch.int64
        assert actions.data_ptr() == np.asarray(batch).__array_interface__["data"][0]


class Distant(torch.Tensor):
    """Lies on another device, as far as its interface says: on `meta`, to which any tensor can be copied."""

    device = torch.device("meta")  # type: ignore[assignment]

    def __dlpack_device__(self) -> tuple[int, int]:  # type: ignore[override]
        return (2, 0)

    def __array__(self, *_options: Any, **_more: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def __deepcopy__(self, _memo: Any) -> Any:
        return distant(self.as_subclass(torch.Tensor).clone())

    def cpu(self, *_options: Any) -> torch.Tensor:  # type: ignore[override]
        return torch.from_numpy(torch.Tensor.numpy(self.as_subclass(torch.Tensor)).copy())


def distant(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(Distant)


def is_distant(tensor: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> bool:
    return (tensor.device.type, tensor.dtype, tuple(tensor.shape)) == ("meta", dtype, shape)


def test_actions_go_to_the_device_of_the_observations(agent: relevo.Agent) -> None:
    with agent:
        batch = agent.actors().act(distant(torch.eye(3)))
        assert is_distant(batch.action, torch.int64, (3,))
        assert batch.action is batch.action, "they are copied once"
        assert is_distant(batch[1:], torch.int64, (2,))
        assert batch.value is None
        # What is asked for as an array is one.
        assert np.asarray(batch).tolist() == [0, 1, 2]
        assert isinstance(batch.policy_version, np.ndarray)


def test_one_distant_observation_is_enough(tmp_path: Path) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, near: torch.Tensor, far: torch.Tensor) -> dict[str, torch.Tensor]:
            logits = self.linear(near + far)
            return {"logits": logits, "value": logits.sum(-1)}

    path = tmp_path / "two.pt"
    torch.jit.script(Two()).save(str(path))
    model = relevo.ModelModule.load_from_path(path, roles={"near": "observation", "far": "observation"})
    with relevo.AgentBuilder().default_model(model).actor_count(2).build() as agent:
        given = {"near": torch.ones(2, 3), "far": distant(torch.ones(2, 3))}
        for obs in (given, tuple(given.values())):
            batch = agent.actors().act(obs)
            assert is_distant(batch.action, torch.int64, (2,))
            assert is_distant(batch.log_prob, torch.float32, (2,))
            assert is_distant(batch.value, torch.float32, (2,))
        assert isinstance(agent.actors().act({name: np.ones((2, 3), np.float32) for name in given}).action, np.ndarray)


def test_single_calls_and_awaited_ones(agent: relevo.Agent) -> None:
    async def awaited(actors: relevo.Actors) -> relevo.ActionBatch:
        return await actors.act_async(distant(torch.eye(3)[: len(actors)]))

    with agent:
        one = agent.actors(agent.get_actor_ids()[:1])
        assert is_distant(one.act(distant(torch.eye(3)[:1])).action, torch.int64, (1,))
        assert is_distant(asyncio.run(awaited(one)).action, torch.int64, (1,))
        assert is_distant(asyncio.run(awaited(agent.actors())).action, torch.int64, (3,))
        same = agent.request_action(agent.get_actor_ids(), distant(torch.eye(3)[:1]))
        assert is_distant(same.action, torch.int64, (3,))
        assert np.asarray(same).tolist() == [0, 0, 0]


def test_what_is_recorded_is_what_was_observed(tmp_path: Path) -> None:
    policy = models.linear(tmp_path / "policy.onnx", np.eye(3))
    with relevo.AgentBuilder().default_model(policy).actor_count(3).keep_in_memory(3).build() as agent:
        actors = agent.actors()
        actors.act(distant(torch.eye(3)))
        actors.observe(distant(torch.ones(3, dtype=torch.float64)), terminated=True, final_obs=distant(torch.eye(3)))
        episodes = agent.trajectories()
    np.testing.assert_array_equal([episode.observations[0] for episode in episodes], np.eye(3))
    assert [float(episode.rewards[0]) for episode in episodes] == [1, 1, 1]


def test_a_tensor_without_values_is_refused(agent: relevo.Agent) -> None:
    with agent, pytest.raises(relevo.ContractError, match="Cannot copy out of meta tensor"):
        agent.actors().act(torch.empty((3, 3), device="meta"))


CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here")


@CUDA
def test_actions_come_back_to_the_gpu(agent: relevo.Agent) -> None:
    with agent:
        observations = torch.eye(3, device="cuda")
        batch = agent.actors().act(observations)
        assert batch.action.device == observations.device
        assert batch.action.tolist() == [0, 1, 2]
        assert torch.from_dlpack(batch).device == observations.device


class Remembers(nn.Module):
    """Keeps a tensor, which lies on the device, and a number, which does not."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.steps = 0
        self.register_buffer("total", torch.zeros(1, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total = self.total + self.linear(x)
        self.steps += 1
        return self.total / self.steps


@CUDA
@pytest.mark.parametrize("recurrent", [False, True])
def test_torchscript_on_the_gpu_gives_what_the_cpu_gives(tmp_path: Path, recurrent: bool) -> None:
    path = tmp_path / "policy.pt"
    torch.jit.script((Remembers() if recurrent else nn.Linear(4, 3)).eval()).save(str(path))
    obs = torch.randn(5, 6, 4)
    actions = {}
    for device in ("cpu", "cuda:0"):
        model = relevo.ModelModule.load_from_path(path, device=device)
        with relevo.AgentBuilder().default_model(model, head="raw").actor_count(6).build() as agent:
            actors = agent.actors()
            actions[device] = [torch.as_tensor(actors.act(rows.to(device)).action).cpu().numpy() for rows in obs]
    np.testing.assert_allclose(actions["cuda:0"], actions["cpu"], rtol=1e-4, atol=1e-4)


def test_torchs_devices_are_told() -> None:
    devices = dict(relevo._core.devices()["torchscript"])
    assert devices["cpu"] is None
    if torch.cuda.is_available():
        assert devices["cuda:0"] is None
    elif sys.platform != "darwin":
        fault = devices["cuda:0"]
        assert fault is not None
        assert fault.startswith("torch finds no NVIDIA GPU" if torch.version.cuda else "the torch that is installed")
        assert "; " in fault, "what to do is behind it"
