"""Modules that decide for a whole batch at once are run row by row; those that only look so are not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import relevo

Load = Callable[..., relevo.ModelModule]


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)


class ByValue(Policy):
    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        if bool(x.max() > 50):
            y = y * 0
        return y


class BySize(Policy):
    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] > 20:
            return self.linear(x) * 0
        return self.linear(x)


class ByBoth(Policy):
    def forward(self, x: Tensor) -> Tensor:
        scale = 2 if x.dim() == 2 and float(x.sum()) > 1e4 else 1
        return self.linear(x) * scale


class ByAttribute(Policy):
    def __init__(self) -> None:
        super().__init__()
        self.large = False

    def forward(self, x: Tensor) -> Tensor:
        self.large = bool(x.max() > 50)
        if self.large:
            return self.linear(x) * 0
        return self.linear(x)


class ByWriting(Policy):
    def forward(self, x: Tensor) -> Tensor:
        held = torch.zeros(1)
        held[0] = x.max()
        if held.item() > 50:
            return self.linear(x) * 0
        return self.linear(x)


class Rounds(Policy):
    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        while bool(y.abs().max() > 50):
            y = y / 2
        return y


class Rows(Policy):
    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for row in range(x.size(0)):
            kept.append(self.linear(x[row]))  # noqa: PERF401 - a comprehension is another loop to TorchScript
        return torch.stack(kept)


class ByChance(Policy):
    def forward(self, x: Tensor) -> Tensor:
        if bool(torch.rand(1) < 0.5):
            return self.linear(x) * 0
        return self.linear(x)


@pytest.mark.parametrize("kind", [ByValue, BySize, ByBoth, ByWriting, Rounds, Rows, ByChance])
def test_decisions_for_a_whole_batch(scripted: Load, kind: type[Policy]) -> None:
    contract = scripted(kind()).contract
    assert contract.batch == "one"
    assert "decides for a whole batch" in contract.batch_reason, contract.batch_reason


def test_decisions_by_what_the_module_keeps(scripted: Load) -> None:
    contract = scripted(ByAttribute()).contract
    assert contract.batch == "one"
    assert "its state lives in the module, in `large`" in contract.batch_reason, contract.batch_reason


def test_the_reason_names_the_line(scripted: Load) -> None:
    assert "if bool(x.max() > 50)" in scripted(ByValue()).contract.batch_reason


@pytest.mark.parametrize("kind", [ByValue, BySize, Rounds])
def test_each_actor_gets_what_its_row_gives_alone(scripted: Load, kind: type[Policy]) -> None:
    module = kind()
    obs = np.random.default_rng(0).standard_normal((24, 6)).astype(np.float32)
    obs[3] *= 1000
    with torch.no_grad():
        expected = np.concatenate([module(torch.from_numpy(row[None])).numpy() for row in obs])
    with relevo.AgentBuilder().default_model(scripted(module), head="raw").actor_count(24).build() as agent:
        np.testing.assert_allclose(agent.actors().act(obs).action, expected, atol=5e-5, rtol=5e-5)


class Fixed(Policy):
    """What stands in the code alone, the module's flags and errors decide nothing for a row."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = 3
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Tensor, temperature: Tensor | None = None) -> Tensor:
        if x.dim() != 2 or x.size(1) != 6:
            raise ValueError("rows of 6 are expected")
        if x.dtype != torch.float32:
            x = x.float()
        x = self.norm(x)
        for _ in range(self.layers):
            x = torch.tanh(x)
        if self.training and bool(x.max() > 0):
            x = x - x.mean(0)
        y = self.linear(x)
        return y if temperature is None else y / temperature


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(6, 8, num_layers=2)
        self.linear = nn.Linear(8, 3)

    def forward(self, x: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        y, after = self.gru(x.unsqueeze(0), hidden)
        return self.linear(y[0]), after


class ByWidth(Policy):
    """What a row is like, all rows share: only the first axis counts them."""

    def forward(self, x: Tensor) -> Tensor:
        rows, width = x.shape
        y = torch.zeros(rows, 3)
        if x.size(-1) == 6 and x.shape[1] > 2 and width < 100:
            y = y + self.linear(x)
        for column in range(width):
            y = y + x[:, column : column + 1]
        return y


class ByWidthOfACopy(Policy):
    """Of other tensors than the inputs it is not known which axis counts rows."""

    def forward(self, x: Tensor) -> Tensor:
        if x.t().size(1) > 20:
            return self.linear(x) * 0
        return self.linear(x)


class Resized(Policy):
    def forward(self, x: Tensor) -> Tensor:
        x.unsqueeze_(1)
        if x.size(0) > 20:
            return self.linear(x.squeeze(1)) * 0
        return self.linear(x.squeeze(1))


class ByRowsUnpacked(Policy):
    def forward(self, x: Tensor) -> Tensor:
        rows, _ = x.shape
        if rows > 20 or x.shape[-2] > 30:
            return self.linear(x) * 0
        return self.linear(x)


@pytest.mark.parametrize("kind", [ByWidthOfACopy, Resized, ByRowsUnpacked])
def test_sizes_that_may_count_rows(scripted: Load, kind: type[Policy]) -> None:
    assert "decides for a whole batch" in scripted(kind()).contract.batch_reason


def test_a_size_of_a_row_decides_nothing_for_a_batch(scripted: Load) -> None:
    module = ByWidth()
    model = scripted(module, shapes={"x": (6,)})
    assert model.contract.batch == "dynamic", model.contract.batch_reason
    obs = np.random.default_rng(0).standard_normal((24, 6)).astype(np.float32)
    with torch.no_grad():
        expected = module(torch.from_numpy(obs)).numpy()
    with relevo.AgentBuilder().default_model(model, head="raw").actor_count(24).build() as agent:
        np.testing.assert_allclose(agent.actors().act(obs).action, expected, atol=5e-5, rtol=5e-5)


class Window(nn.Module):
    """Rows behind the steps of a sequence, which a loop goes through."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(5, 8)
        self.linear = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.size(0), 8)
        for step in range(x.size(1)):
            h = self.cell(x[:, step], h)
        return self.linear(h)


def test_a_loop_over_the_steps_of_a_window(scripted: Load) -> None:
    module = Window()
    model = scripted(module, shapes={"x": (4, 5)})
    assert model.contract.batch == "dynamic", model.contract.batch_reason
    x = torch.randn(9, 4, 5)
    with torch.no_grad():
        np.testing.assert_allclose(model.forward({"x": x.numpy()})["output_0"], module(x).numpy(), atol=5e-5)


@pytest.mark.parametrize("kind", [Fixed, Recurrent])
def test_what_only_looks_like_a_decision(scripted: Load, kind: type[nn.Module]) -> None:
    contract = scripted(kind()).contract
    assert contract.batch == "dynamic", contract.batch_reason


class Large(Policy):
    """Without a branch: a row that is large changes the others."""

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * torch.where(x.max() > 50, 0.0, 1.0)


class Many(Policy):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * (1.0 + (x.size(0) // 8))


@pytest.mark.parametrize("kind", [Large, Many])
def test_a_larger_batch_with_a_large_row_shows_more(scripted: Load, kind: type[Policy]) -> None:
    contract = scripted(kind()).contract
    assert contract.batch == "one"
    assert "otherwise than each alone" in contract.batch_reason


def test_a_module_that_refuses_large_rows_is_batched(scripted: Load) -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(4, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.table(x.abs().long()).flatten(1)

    contract = scripted(Table(), shapes={"x": (3,)}).contract
    assert contract.batch == "dynamic", contract.batch_reason


def test_draws_come_from_torchs_generator(scripted: Load) -> None:
    class Noisy(Policy):
        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) + torch.randn_like(self.linear(x))

    model = scripted(Noisy())
    assert model.contract.random_ops == ["aten::randn_like"]
    obs = np.ones((4, 6), np.float32)

    def draw(torch_seed: int, seed: int) -> np.ndarray:
        with relevo.AgentBuilder().default_model(model, head="raw").actor_count(4).seed(seed).build() as agent:
            torch.manual_seed(torch_seed)
            return np.array(agent.actors().act(obs).action)

    np.testing.assert_array_equal(draw(1, seed=1), draw(1, seed=2))
    assert not np.array_equal(draw(1, seed=1), draw(2, seed=1))


def test_floats_come_before_whole_numbers_that_run_in_batches(scripted: Load) -> None:
    class ByLargest(Policy):
        def forward(self, x: Tensor) -> Tensor:
            # Whole numbers that are tried are 0 and 1, with which no row changes another.
            return self.linear(x / torch.clamp(x.abs().max(), min=1.0))

    for shapes in (None, {"x": (6,)}):
        contract = scripted(ByLargest(), shapes=shapes).contract
        assert contract.inputs[0].dtype == "float32"
        assert contract.batch == "one"
