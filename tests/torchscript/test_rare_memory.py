"""Memory that few rows change: it is read off the module's code, since the passes at load time need not move it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import relevo

Load = Callable[..., relevo.ModelModule]

ACTORS, STEPS = 6, 24


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)


class AboveThreshold(Policy):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 2))

    def forward(self, x: Tensor) -> Tensor:
        if bool(x[0, 0] > 40.0):
            self.h += 1.0
        return self.linear(x) + self.h


class OnceAboveThreshold(Policy):
    h: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.h = None

    def forward(self, x: Tensor) -> Tensor:
        h = self.h
        y = self.linear(x)
        if h is not None:
            y = y + h
        if bool(x[0, 0] > 40.0):
            self.h = y
        return y


class Peak(Policy):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("peak", torch.full((1, 4), 50.0))

    def forward(self, x: Tensor) -> Tensor:
        self.peak = torch.maximum(self.peak, x)
        return self.linear(x - self.peak)


class Stop(Policy):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("stopped", torch.zeros(1, dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:
        self.stopped = self.stopped | (x[:, 0] > 100)
        return self.linear(x) * (~self.stopped).float().unsqueeze(1)


class EveryTenth(Policy):
    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.register_buffer("h", torch.zeros(1, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        if self.steps % 10 == 0:
            self.h = x.clone()
        return self.linear(x + self.h)


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(2, 4))

    def forward(self, x: Tensor) -> Tensor:
        # Through views, in a loop, by a helper: the attribute is never named where it is written.
        for row in self.rows.unbind(0):
            self.put(row, x)
        return x + self.rows.sum(0, keepdim=True)

    def put(self, row: Tensor, x: Tensor) -> None:
        if bool(x[0, 0] > 40.0):
            row.add_(x[0])


class ThroughViews(Policy):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.inner(x))


class ThroughOut(Policy):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 4))

    def forward(self, x: Tensor) -> Tensor:
        if bool(x[0, 0] > 40.0):
            torch.add(self.h, x, out=self.h)
        return self.linear(x + self.h)


class ThroughAList(Policy):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 4))

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        kept.append(self.h)
        if bool(x[0, 0] > 40.0):
            kept[0].add_(x)
        return self.linear(x + self.h)


class FirstObservation(Policy):
    """The first pass decides what all others give, also that of a shape that is only tried at load time."""

    def __init__(self) -> None:
        super().__init__()
        self.is_set = False
        self.register_buffer("first", torch.zeros(1, 4))

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_set:
            self.first = x.clone()
            self.is_set = True
        return self.linear(x - self.first)


class Frames(nn.Module):
    frames: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 2)
        self.frames = [torch.zeros(1, 4) for _ in range(3)]

    def forward(self, x: Tensor) -> Tensor:
        self.frames.pop(0)
        self.frames.append(x)
        return self.linear(torch.cat(self.frames, 1))


def alone(path: Path, x: Tensor) -> np.ndarray:
    """What torch gives each actor by an instance of its own: [step, actor, width]."""
    given = []
    for actor in range(x.shape[1]):
        own = torch.jit.load(path)
        with torch.no_grad():
            given.append(torch.stack([own(row[None])[0].clone() for row in x[:, actor]]))
    return torch.stack(given, 1).numpy()


def expect_what_each_gets_alone(model: relevo.ModelModule, path: Path) -> None:
    x = torch.randn(STEPS, ACTORS, 4, generator=torch.Generator().manual_seed(5)) * 60
    expected = alone(path, x)
    with relevo.AgentBuilder().default_model(model, head="raw").actor_count(ACTORS).build() as agent:
        actors = agent.actors()
        for step in range(STEPS):
            actions = actors.act(x[step].numpy(), record=False).action
            np.testing.assert_allclose(actions, expected[step], atol=1e-3, rtol=1e-4, err_msg=f"step {step}")


@pytest.mark.parametrize(
    ("kind", "memory"),
    [
        (AboveThreshold, ["h"]),
        (OnceAboveThreshold, ["h.is_set", "h"]),
        (Peak, ["peak"]),
        (Stop, ["stopped"]),
        (EveryTenth, ["h", "steps"]),
        (ThroughViews, ["inner.rows"]),
        (ThroughOut, ["h"]),
        (ThroughAList, ["h"]),
        (FirstObservation, ["first", "is_set"]),
        (Frames, ["frames.0", "frames.1", "frames.2"]),
    ],
)
def test_each_actor_has_its_own(scripted: Load, tmp_path: Path, kind: type[nn.Module], memory: list[str]) -> None:
    torch.manual_seed(0)
    shapes = {"x": (4,)} if kind is Frames else None
    model = scripted(kind(), shapes=shapes)
    assert sorted(state.input for state in model.contract.states) == sorted(memory)
    expect_what_each_gets_alone(model, tmp_path / "policy.pt")


def test_code_that_never_runs_in_eval_mode_remembers_nothing(scripted: Load) -> None:
    class Normalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(
                nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(8, 2)
            )
            self.register_buffer("mean", torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.mean += x.mean(0)
            y = x - self.mean
            y[:, 0] = 0.5
            y.clamp_(-5.0, 5.0)
            return self.layers(y)

    contract = scripted(Normalised()).contract
    assert (contract.batch, contract.states) == ("dynamic", [])


def test_what_no_pass_sets_is_refused(scripted: Load) -> None:
    class Never(Policy):
        h: Tensor | None

        def __init__(self) -> None:
            super().__init__()
            self.h = None

        def forward(self, x: Tensor) -> Tensor:
            if bool(x[0, 0] == 12345.0):
                self.h = x
            h = self.h
            return self.linear(x) if h is None else self.linear(h)

    with pytest.raises(
        relevo.ContractError, match=r"may set the attribute `h`, which is None at the start, and no pass"
    ):
        scripted(Never())


def test_a_trace_that_writes_to_a_constant_is_refused(tmp_path: Path) -> None:
    class Unregistered(Policy):
        def __init__(self) -> None:
            super().__init__()
            self.h = torch.zeros(1, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.h.mul_(0.5).add_(self.linear(x)).clone()

    path = tmp_path / "policy.pt"
    with torch.no_grad():
        torch.jit.trace(Unregistered().eval(), torch.zeros(1, 4), check_trace=False).save(str(path))
    with pytest.raises(
        relevo.ContractError, match=r"writes to a constant, which all actors would share.*register_buffer"
    ):
        relevo.ModelModule.load_from_path(path)
