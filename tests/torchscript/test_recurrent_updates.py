"""Recurrent modules of a training loop: handed to a policy that serves, and remembered by actors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

import relevo

ACTORS, STEPS = 4, 6
State = tuple[Tensor, Tensor]


class Tuple(nn.Module):
    """`(obs, (h, c)) -> (out, (h, c))`, rows on the second axis of the states."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 8, num_layers=2)
        self.head = nn.Linear(8, 3)

    def forward(self, obs: Tensor, state: State) -> tuple[Tensor, State]:
        out, after = self.lstm(obs.unsqueeze(0), state)
        return self.head(out[0]), after


class Separate(Tuple):
    """`(obs, h, c) -> (out, h, c)`."""

    def forward(self, obs: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        out, (h, c) = self.lstm(obs.unsqueeze(0), (h, c))
        return self.head(out[0]), h, c


class Optional(Tuple):
    """Its state may be left out, and something else too."""

    def forward(self, obs: Tensor, state: State | None = None, scale: float = 1.0) -> tuple[Tensor, State]:
        out, after = self.lstm(obs.unsqueeze(0), state)
        return self.head(out[0]) * scale, after


class Cell(nn.Module):
    """Rows on the first axis, one state."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, obs: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = self.cell(obs, h)
        return self.head(h), h


def zeros(module: nn.Module, rows: int) -> tuple[Any, ...]:
    h = torch.zeros(rows, 8) if isinstance(module, Cell) else torch.zeros(2, rows, 8)
    if isinstance(module, Cell):
        return (h,)
    return (h, h) if isinstance(module, Separate) else ((h, h),)


def traced(module: nn.Module, tmp_path: Path) -> Path:
    path = tmp_path / "policy.pt"
    torch.jit.trace(module.eval(), (torch.zeros(2, 4), *zeros(module, 2))).save(str(path))
    return path


def as_onnx(module: nn.Module, tmp_path: Path) -> Path:
    path = tmp_path / "policy.onnx"
    states = ["h"] if isinstance(module, Cell) else ["h", "c"]
    axis = 0 if isinstance(module, Cell) else 1
    torch.onnx.export(
        module.eval(),
        (torch.zeros(2, 4), *zeros(module, 2)),
        str(path),
        dynamo=False,
        input_names=["obs", *(f"{name}_in" for name in states)],
        output_names=["mean", *(f"{name}_out" for name in states)],
        dynamic_axes={"obs": {0: "b"}, "mean": {0: "b"}}
        | {f"{name}_{end}": {axis: "b"} for name in states for end in ("in", "out")},
    )
    return path


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "write"),
    # ONNX's exporter takes a default that is no tensor for an input.
    [
        *((kind, traced) for kind in (Tuple, Separate, Optional, Cell)),
        *((kind, as_onnx) for kind in (Tuple, Separate, Cell)),
    ],
)
def test_a_new_version_goes_on_with_what_the_old_one_remembered(
    kind: type[nn.Module], write: Callable[[nn.Module, Path], Path], tmp_path: Path
) -> None:
    old, new = kind(), kind()
    model = relevo.ModelModule.load_from_path(write(old, tmp_path))
    assert model.contract.recurrent
    assert model.contract.batch == "dynamic"
    obs = torch.randn(STEPS, ACTORS, 4)
    expected: list[npt.NDArray[Any]] = []
    state = zeros(old, ACTORS)
    with torch.no_grad():
        for step, rows in enumerate(obs):
            out, *state = (old if step < STEPS // 2 else new).eval()(rows, *state)
            expected.append(out.numpy())
    with relevo.AgentBuilder().default_model(model, head="raw").actor_count(ACTORS).build() as agent:
        actors = agent.actors()
        for step, rows in enumerate(obs):
            if step == STEPS // 2:
                assert agent.update_model(new) == 2
            np.testing.assert_allclose(actors.act(rows.numpy()).action, expected[step], atol=5e-5)
        # The trace that is kept takes new weights.
        assert agent.update_model(new) == 3


@pytest.mark.filterwarnings("ignore")
def test_states_are_paired_as_the_model_that_serves_pairs_them(tmp_path: Path) -> None:
    class Swapped(Separate):
        """Gives the cell's state first, which has the shape of the other."""

        def forward(self, obs: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            out, h, c = super().forward(obs, h, c)
            return out, c, h

    module = Swapped()
    path = tmp_path / "policy.onnx"
    torch.onnx.export(
        module.eval(),
        (torch.zeros(2, 4), *zeros(module, 2)),
        str(path),
        dynamo=False,
        input_names=["obs", "h_in", "c_in"],
        output_names=["mean", "c_out", "h_out"],
        dynamic_axes={"obs": {0: "b"}, "mean": {0: "b"}}
        | {name: {1: "b"} for name in ("h_in", "c_in", "h_out", "c_out")},
    )
    obs = torch.randn(STEPS, ACTORS, 4)
    with relevo.AgentBuilder().default_model(path, head="raw").actor_count(ACTORS).build() as agent:
        agent.update_model(module)
        h, c = zeros(module, ACTORS)
        for rows in obs:
            with torch.no_grad():
                out, c, h = module(rows, h, c)
            np.testing.assert_allclose(agent.actors().act(rows.numpy()).action, out.numpy(), atol=5e-5)


@pytest.mark.filterwarnings("ignore")
def test_states_of_another_size_are_refused(tmp_path: Path) -> None:
    class Wider(Tuple):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 16, num_layers=2)
            self.head = nn.Linear(16, 3)

    with relevo.AgentBuilder().default_model(traced(Tuple(), tmp_path), head="raw").actor_count(2).build() as agent:
        with pytest.raises((relevo.ContractError, relevo.ModelLoadError), match=r"Expected hidden\[0\] size"):
            agent.update_model(Wider())
        assert agent.get_model_version()[0] == 1


@pytest.mark.filterwarnings("ignore")
def test_a_memory_inside_the_module(tmp_path: Path) -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)
            self.register_buffer("total", torch.zeros(1, 3))

        def forward(self, obs: Tensor) -> Tensor:
            self.total = self.total + self.linear(obs)
            return self.total

    old, new = Sums(), Sums()
    path = tmp_path / "policy.pt"
    torch.jit.script(old.eval()).save(str(path))
    obs = np.random.default_rng(0).standard_normal((2, ACTORS, 4)).astype(np.float32)
    with relevo.AgentBuilder().default_model(path, head="raw").actor_count(ACTORS).build() as agent:
        actors = agent.actors()
        first = np.array(actors.act(obs[0]).action)
        assert agent.update_model(new) == 2
        with torch.no_grad():
            own = new.linear(torch.from_numpy(obs[1])).numpy()
        np.testing.assert_allclose(actors.act(obs[1]).action, first + own, atol=5e-5)
    assert torch.equal(new.total, torch.zeros(1, 3)), "the module is as it was"


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_module_without_states_is_told_of_them(tmp_path: Path) -> None:
    class Stateless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, obs: Tensor) -> Tensor:
            return self.linear(obs)

    model = traced(Separate(), tmp_path)
    with relevo.AgentBuilder().default_model(model, head="raw").actor_count(1).build() as agent:
        expected = r"The policy is recurrent, but forward takes `obs` alone.*as in forward\(obs, h, c\)"
        with pytest.raises(relevo.ContractError, match=expected):
            agent.update_model(Stateless())
