"""Observations and actions that are tensors of PyTorch."""

from __future__ import annotations

from pathlib import Path

import models
import numpy as np
import pytest
import torch

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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here")
def test_a_tensor_on_a_gpu_is_copied_and_actions_may_go_back(agent: relevo.Agent) -> None:
    with agent:
        observations = torch.eye(3, device="cuda")
        actions = torch.from_dlpack(agent.actors().act(observations)).to(observations.device)
        assert actions.tolist() == [0, 1, 2]
        assert actions.device == observations.device
