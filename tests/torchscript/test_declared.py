"""What an export writes into its file about the policy: statistics and bounds, and what becomes of them later."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

import relevo
import relevo.export

EXPORTS = {"onnx": relevo.export.to_onnx, "pt": relevo.export.to_torchscript}
SPACE = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
STATISTICS = relevo.Normalization(mean=[5, -3, 0.5], variance=[4, 0.25, 9], epsilon=1e-6, clip=2)
NEWER = relevo.Normalization(mean=[1, 0, 2], variance=[1, 2, 3], clip=5)
ROWS = (np.random.default_rng(1).standard_normal((8, 3)) * 5).astype(np.float32)


class Actor(nn.Module):
    """Gives a mean and a log standard deviation."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2))
        self.log_std = nn.Parameter(torch.zeros(2))

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean = self.body(obs)
        return mean, self.log_std.expand_as(mean)


class Remembering(nn.Module):
    """Keeps its memory in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("hidden_state", torch.zeros(1, 3))
        self.layer = nn.Linear(3, 3)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        self.hidden_state = self.hidden_state + obs
        action: torch.Tensor = self.layer(self.hidden_state)
        return action


def normalized(statistics: relevo.Normalization | None) -> npt.NDArray[np.float64]:
    if statistics is None:
        return ROWS.astype(np.float64)
    deviation = np.sqrt(np.array(statistics.variance) + statistics.epsilon)
    return ((ROWS - np.array(statistics.mean)) / deviation).clip(-statistics.clip, statistics.clip)


def expected(module: nn.Module, statistics: relevo.Normalization | None) -> npt.NDArray[Any]:
    with torch.no_grad():
        return np.asarray(module(torch.from_numpy(normalized(statistics).astype(np.float32)))[0].numpy())


def likeliest(agent: relevo.Agent) -> npt.NDArray[Any]:
    return np.asarray(agent.actors().act(ROWS, deterministic=True))


@pytest.fixture(params=EXPORTS)
def serve(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., relevo.Agent]:
    def run(module: nn.Module, **options: Any) -> relevo.Agent:
        path = tmp_path / f"policy.{request.param}"
        report = EXPORTS[request.param](module, path, SPACE, outputs=["mean", "log_std"], **options)
        assert report.contract is not None
        return relevo.AgentBuilder().default_model(path).actor_count(8).build()

    return run


def test_a_module_is_normalised_as_the_file_that_served(serve: Callable[..., relevo.Agent]) -> None:
    module = Actor()
    with serve(module, normalization=STATISTICS) as agent:
        np.testing.assert_allclose(likeliest(agent), expected(module, STATISTICS), atol=1e-5)
        # The version after the next takes them over as well, from a trace that is filled and from one that is new.
        for new in (module, module, Actor(1)):
            agent.update_model(new)
            np.testing.assert_allclose(likeliest(agent), expected(new, STATISTICS), atol=1e-5)
    assert not np.allclose(expected(module, STATISTICS), expected(module, None), atol=1e-2)


def test_newer_statistics_and_none(serve: Callable[..., relevo.Agent]) -> None:
    module = Actor()
    with serve(module, normalization=STATISTICS) as agent:
        for given in (NEWER, {"obs": STATISTICS}):
            agent.update_model(module, normalization=given)
            own = given if isinstance(given, relevo.Normalization) else given["obs"]
            np.testing.assert_allclose(likeliest(agent), expected(module, own), atol=1e-5)
            # They hold from then on.
            agent.update_model(module)
            np.testing.assert_allclose(likeliest(agent), expected(module, own), atol=1e-5)
        agent.update_model(module, normalization={})
        np.testing.assert_allclose(likeliest(agent), expected(module, None), atol=1e-5)
        agent.update_model(module)
        np.testing.assert_allclose(likeliest(agent), expected(module, None), atol=1e-5)


def test_another_limit_makes_another_trace(serve: Callable[..., relevo.Agent], tmp_path: Path) -> None:
    # One module in two policies: of the same statistics, but for the limit, which a trace holds as a constant.
    module = Actor()
    wide = relevo.Normalization(STATISTICS.mean, STATISTICS.variance, STATISTICS.epsilon, clip=1e6)
    with serve(module, normalization=STATISTICS) as agent:
        agent.update_model(module)
        path = tmp_path / "wide.onnx"
        relevo.export.to_onnx(module, path, SPACE, outputs=["mean", "log_std"], normalization=wide)
        agent.update_model(path)
        agent.update_model(module)
        np.testing.assert_allclose(likeliest(agent), expected(module, wide), atol=1e-4)


def test_statistics_twice_are_refused(serve: Callable[..., relevo.Agent], tmp_path: Path) -> None:
    module = Actor()
    with serve(module, normalization=STATISTICS) as agent:
        path = next(tmp_path.glob("policy.*"))
        with pytest.raises(relevo.ContractError, match="normalises it itself"):
            agent.update_model(path, normalization=NEWER)
        with pytest.raises(relevo.ConfigError, match=r"must be a relevo\.Normalization"):
            agent.update_model(module, normalization="none")  # type: ignore[arg-type]
        with pytest.raises(relevo.ContractError, match=r"3 elements.*the observation `wrong`"):
            agent.update_model(module, normalization={"wrong": NEWER})
        assert agent.get_model_version() == [1] * 8
    with pytest.raises(relevo.ContractError, match="leave the normalisation out"):
        relevo.AgentBuilder().default_model(path, normalization=NEWER).build()


def test_a_module_with_memory_is_not_normalised_in_silence(tmp_path: Path) -> None:
    torch.jit.script(Remembering().eval()).save(
        str(tmp_path / "policy.pt"),
        _extra_files={"relevo.json": json.dumps({"normalization": {"obs": STATISTICS.as_dict()}})},
    )
    agent = relevo.AgentBuilder().default_model(tmp_path / "policy.pt").build()
    with agent:
        with pytest.raises(relevo.ContractError, match=r"normalization=contract\.normalization.*\{\} for none"):
            agent.update_model(Remembering())
        contract = relevo.ModelModule.load_from_path(tmp_path / "policy.pt").contract
        assert agent.update_model(Remembering(), normalization=contract.normalization) == 2


def test_the_report_and_the_contract_say_it(tmp_path: Path) -> None:
    for name, export in EXPORTS.items():
        path = tmp_path / f"policy.{name}"
        bounds = relevo.Bounds([-1, -np.inf], [1, np.inf])
        report = export(Actor(), path, SPACE, outputs=["mean", "log_std"], normalization=STATISTICS, bounds=bounds)
        assert report.normalization["obs"].as_dict() == STATISTICS.as_dict()
        assert "normalisation: obs: Normalization(3 elements" in str(report)
        contract = relevo.ModelModule.load_from_path(path).contract
        assert contract.normalization["obs"].as_dict() == STATISTICS.as_dict()
        assert contract.bounds is not None
        assert contract.bounds.as_dict() == bounds.as_dict()
        assert "from the file" in str(contract)
        plain = export(Actor(), path, SPACE, outputs=["mean", "log_std"])
        assert plain.normalization == {}
        assert "normalisation: none went in" in str(plain)
        assert relevo.ModelModule.load_from_path(path).contract.bounds is None


def test_the_bounds_of_a_file_are_the_default(serve: Callable[..., relevo.Agent]) -> None:
    module = Actor()
    low, high = np.array([-2, 0], np.float32), np.array([2, 10], np.float32)
    with serve(module, bounds=relevo.Bounds(low, high, "tanh")) as agent:
        squashed = low + (np.tanh(expected(module, None)) + 1) / 2 * (high - low)
        np.testing.assert_allclose(likeliest(agent), squashed, atol=1e-5)
        agent.update_model(module)
        np.testing.assert_allclose(likeliest(agent), squashed, atol=1e-5)


def test_bounds_that_are_given_come_first(serve: Callable[..., relevo.Agent], tmp_path: Path) -> None:
    module = Actor()
    serve(module, bounds=relevo.Bounds([-2, -2], [2, 2], "tanh"))
    path = next(tmp_path.glob("policy.*"))
    narrow, none = relevo.Bounds([-0.01] * 2, [0.01] * 2), relevo.Bounds([-np.inf] * 2, [np.inf] * 2)
    with relevo.AgentBuilder().default_model(path, bounds=narrow).actor_count(8).build() as agent:
        np.testing.assert_allclose(likeliest(agent), expected(module, None).clip(-0.01, 0.01), atol=1e-5)
    with relevo.AgentBuilder().default_model(path, bounds=none).actor_count(8).build() as agent:
        np.testing.assert_allclose(likeliest(agent), expected(module, None), atol=1e-5)


def test_a_file_of_other_bounds_is_no_new_version(serve: Callable[..., relevo.Agent], tmp_path: Path) -> None:
    module = Actor()
    with serve(module, bounds=relevo.Bounds([-2, -2], [2, 2], "tanh")) as agent:
        other = tmp_path / "other.onnx"
        relevo.export.to_onnx(
            module, other, SPACE, outputs=["mean", "log_std"], bounds=relevo.Bounds([-2, -2], [2, 2], "clip")
        )
        with pytest.raises(relevo.ContractError, match=r"clip to \[-2, 2\].*tanh to \[-2, 2\].*bounds="):
            agent.update_model(other)


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        (relevo.Bounds([0], [1]), "1 float32, but the policy gives float32 of shape"),
        ((0, 1), "must be a relevo.Bounds"),
    ],
)
def test_bounds_that_do_not_fit_are_not_written(bounds: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(relevo.RelevoError, match=message):
        relevo.export.to_onnx(Actor(), tmp_path / "p.onnx", SPACE, outputs=["mean", "log_std"], bounds=bounds)
    assert list(tmp_path.iterdir()) == []
