"""Modules that print, sleep or raise: standard output holds JSON alone, and the agent stays usable."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import relevo

COMMAND = [sys.executable, "-c", "from relevo.cli import main; main()"]
ROWS = np.ones((1, 4), np.float32)


class Printing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("hello", x.size(1))  # noqa: T201 : what is tested
        return self.head(x)


class Sleeping(nn.Module):
    """Works for long on a row that asks for it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.register_buffer("work", torch.eye(256))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.head(x)
        if bool((x > 1000.0).any()):
            done = self.work
            for _ in range(400):
                done = done.mm(self.work)
            result = result + done[0, 1]
        return result


class Raising(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x > 1000.0).any()):
            raise ValueError("not this one")
        return self.head(x)


@pytest.fixture
def printing(tmp_path: Path) -> Path:
    path = tmp_path / "printing.pt"
    torch.jit.script(Printing()).save(str(path))
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect", "FILE", "--json"),
        (
            "run",
            "--policy",
            "FILE",
            "--env",
            "CartPole-v1",
            "--actors",
            "2",
            "--steps",
            "20",
            "--head",
            "argmax",
            "--json",
        ),
    ],
    ids=["inspect", "run"],
)
def test_standard_output_is_json_alone(printing: Path, arguments: tuple[str, ...]) -> None:
    words = [str(printing) if word == "FILE" else word for word in arguments]
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), dict)
    assert "hello 4" in done.stderr


def test_an_agent_whose_model_prints_is_usable(printing: Path) -> None:
    expected = torch.jit.load(str(printing)).head(torch.from_numpy(ROWS)).detach().numpy()
    with relevo.AgentBuilder().default_model(printing, head="raw").build() as agent:
        actors = agent.actors()
        for _ in range(100):
            np.testing.assert_allclose(actors.act(ROWS).action, expected, atol=1e-5)
            actors.observe(0.0)


def test_a_call_that_raises_leaves_the_agent_usable(tmp_path: Path) -> None:
    path = tmp_path / "policy.pt"
    own = Raising()
    torch.jit.script(own).save(str(path))
    expected = own.head(torch.from_numpy(ROWS)).detach().numpy()
    with relevo.AgentBuilder().default_model(path, head="raw").build() as agent:
        actors = agent.actors()
        for call in range(200):
            if call % 100 == 50:
                with pytest.raises(relevo.InferenceError, match="not this one"):
                    actors.act(ROWS * 5000)
            np.testing.assert_allclose(actors.act(ROWS).action, expected, atol=1e-5)
            actors.observe(0.0)


def test_a_call_that_takes_long_leaves_the_agent_usable(tmp_path: Path) -> None:
    path = tmp_path / "policy.pt"
    own = Sleeping()
    torch.jit.script(own).save(str(path))
    expected = own.head(torch.from_numpy(ROWS)).detach().numpy()
    with relevo.AgentBuilder().default_model(path, head="raw").build() as agent:
        actors, usual, odd = agent.actors(), [], []
        for call in range(200):
            is_odd = call % 100 == 50
            begun = time.perf_counter()
            found = actors.act(ROWS * 5000 if is_odd else ROWS).action
            (odd if is_odd else usual).append(time.perf_counter() - begun)
            if not is_odd:
                np.testing.assert_allclose(found, expected, atol=1e-5)
            actors.observe(0.0)
    # It was long, and none behind it waited as long as it took.
    assert min(odd) > 10 * np.median(usual)
    assert np.median(usual[50:60]) < min(odd) / 3
