"""What `update_model` takes beside modules of PyTorch (see `torch/test_update_model.py`), and version numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest

import relevo

ONE, OTHER = np.eye(2), np.eye(2)[::-1]


@pytest.fixture
def agent(tmp_path: Path) -> relevo.Agent:
    policy = models.linear(tmp_path / "policy.onnx", ONE)
    return relevo.AgentBuilder().default_model(policy, head="argmax").build()


def action(agent: relevo.Agent) -> int:
    return int(np.asarray(agent.actors().act(np.array([[1, 0]], np.float32)))[0])


def test_bytes(agent: relevo.Agent, tmp_path: Path) -> None:
    data = models.linear(tmp_path / "other.onnx", OTHER).read_bytes()
    with agent:
        assert action(agent) == 0
        assert agent.update_model(data) == 2
        assert action(agent) == 1
        assert agent.update_model(bytearray(data)) == 3


def test_versions_may_be_given_and_rise(agent: relevo.Agent, tmp_path: Path) -> None:
    other = models.linear(tmp_path / "other.onnx", OTHER)
    with agent:
        assert agent.update_model(other, version=40) == 40
        assert agent.update_model(other) == 41
        for version in (41, 1, 0, -1):
            with pytest.raises(relevo.ConfigError, match="above"):
                agent.update_model(other, version=version)
        assert agent.get_model_version() == [41]
        assert agent.update_model(other, version=42) == 42


def test_the_range_of_versions(agent: relevo.Agent, tmp_path: Path) -> None:
    other = models.linear(tmp_path / "other.onnx", OTHER)
    with agent:
        for version in (2**64, 10**30, -(2**63) - 1, 1.5, "2"):
            with pytest.raises(relevo.ConfigError, match=r"whole number above 0 and below 2\*\*64, but .* came"):
                agent.update_model(other, version=version)  # type: ignore[arg-type]
        last = 2**64 - 1
        assert agent.update_model(other, version=np.uint64(last)) == last  # type: ignore[arg-type]
        assert agent.actors().act(np.ones((1, 2), np.float32)).policy_version.tolist() == [last]
        with pytest.raises(relevo.ConfigError, match=f"above it, but {last} was given"):
            agent.update_model(other)


def test_truncated_bytes_are_refused(agent: relevo.Agent, tmp_path: Path) -> None:
    data = models.linear(tmp_path / "other.onnx", OTHER).read_bytes()
    with agent:
        for bad in (b"", data[: len(data) // 2], b"no model at all"):
            with pytest.raises(relevo.ModelLoadError):
                agent.update_model(bad)
        assert action(agent) == 0
        assert agent.get_model_version() == [1]


@pytest.mark.parametrize("given", [None, 3, [1.0], {"weights": 1}])
def test_what_is_no_model(agent: relevo.Agent, given: Any) -> None:
    with (
        agent,
        pytest.raises(relevo.ConfigError, match=r"a ModelModule, a torch\.nn\.Module.* but .* came"),
    ):
        agent.update_model(given)
