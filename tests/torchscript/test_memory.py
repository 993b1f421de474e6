"""Memory that a module keeps in its attributes, of whatever form: each actor gets what it would get alone."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import relevo

Load = Callable[..., relevo.ModelModule]

ACTORS, STEPS = 8, 7


class Counter(nn.Module):
    """Counts its steps in an int."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.steps = 0

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        return self.linear(x) * self.steps

    @torch.jit.export
    def reset(self) -> None:
        self.steps = 0


class Lstm(nn.Module):
    """Has no state before its first step."""

    state: tuple[Tensor, Tensor] | None

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(4, 6)
        self.head = nn.Linear(6, 3)
        self.state = None

    def forward(self, x: Tensor) -> Tensor:
        state = self.state
        if state is None:
            state = (torch.full((1, 6), 0.5), torch.zeros(1, 6))
        h, c = self.cell(x, state)
        self.state = (h, c)
        return self.head(h)

    @torch.jit.export
    def reset(self) -> None:
        self.state = None


class Pair(nn.Module):
    """Begins with what `reset` leaves, which is not what the file holds."""

    state: tuple[Tensor, int]

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.state = (torch.zeros(1, 3), 0)

    def forward(self, x: Tensor) -> Tensor:
        total, steps = self.state
        total = total + self.linear(x)
        self.state = (total, steps + 1)
        return total / (steps + 1)

    @torch.jit.export
    def reset(self) -> None:
        self.state = (torch.full((1, 3), 0.25), 2)


class Mixed(nn.Module):
    """A list, a float and a bool, and no way to reset them."""

    history: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.history = [torch.zeros(1, 4), torch.ones(1, 4)]
        self.decay = 1.0
        self.is_first = True

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x + self.history[0] * self.decay)
        if self.is_first:
            y = y + 1
        self.is_first = False
        self.decay *= 0.5
        self.history[0] = self.history[1]
        self.history[1] = x
        return y


class Flickers(nn.Module):
    """Forgets after each second step."""

    memory: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.memory = None

    def forward(self, x: Tensor) -> Tensor:
        memory = self.memory
        y = self.linear(x)
        if memory is None:
            self.memory = y
            return y
        self.memory = None
        return y + memory


class Scalars(nn.Module):
    """Counts and averages in tensors without axes, one written to and one replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        self.mean = self.mean + (x.mean() - self.mean) / self.steps
        return self.linear(x - self.mean)

    @torch.jit.export
    def reset(self) -> None:
        self.steps.zero_()
        self.mean = torch.tensor(0.25)


class Normaliser(nn.Module):
    """Has a count without axes beside a mean whose axis is no actors' one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("count", torch.tensor(1e-4))

    def forward(self, x: Tensor) -> Tensor:
        self.count += x.shape[0]
        self.mean += (x.mean(0) - self.mean) / self.count
        return self.linear(x - self.mean)

    @torch.jit.export
    def reset(self) -> None:
        self.mean.zero_()
        self.count.fill_(1e-4)


@pytest.mark.parametrize("kind", [Counter, Lstm, Pair, Mixed, Flickers, Scalars, Normaliser])
def test_each_actor_gets_what_it_gets_alone(scripted: Load, kind: type[nn.Module]) -> None:
    module = kind().eval()
    model = scripted(module)
    assert (model.contract.batch, model.contract.recurrent) == ("one", True)
    x = torch.randn(STEPS, ACTORS, 4, generator=torch.Generator().manual_seed(3))
    # Actor 2 ends an episode after its third step.
    ends = 3
    expected = np.zeros((STEPS, ACTORS, 3), np.float32)
    for actor in range(ACTORS):
        own = fresh(module)
        for step in range(STEPS):
            if actor == 2 and step == ends:
                own = fresh(module)
            with torch.no_grad():
                expected[step, actor] = own(x[step, actor][None])[0].numpy()
    with relevo.AgentBuilder().default_model(model, head="raw").actor_count(ACTORS).build() as agent:
        actors = agent.actors()
        for step in range(STEPS):
            actions = actors.act(x[step].numpy()).action
            np.testing.assert_allclose(actions, expected[step], atol=5e-5, err_msg=f"step {step}")
            actors.observe(0.0, terminated=(np.arange(ACTORS) == 2) & (step == ends - 1))


def fresh(module: nn.Module) -> torch.jit.ScriptModule:
    """The script as it is at an episode's start."""
    script = torch.jit.script(module)
    own = script.copy() if hasattr(script, "copy") else script
    if hasattr(own, "reset"):
        own.reset()
    return own


def test_what_is_remembered_has_names(scripted: Load) -> None:
    names = lambda module: [state.input for state in scripted(module).contract.states]  # noqa: E731 - it is short
    assert names(Counter()) == ["steps"]
    assert names(Lstm()) == ["state.is_set", "state.0", "state.1"]
    assert names(Pair()) == ["state.0", "state.1"]
    assert names(Mixed()) == ["history.0", "history.1", "decay", "is_first"]
    assert names(Scalars()) == ["steps", "mean"]


def test_the_file_says_how_an_episode_begins(scripted: Load) -> None:
    assert any("as `reset()` leaves it" in note for note in scripted(Pair()).contract.notes)
    assert any("begins as in the file" in note for note in scripted(Mixed()).contract.notes)


def test_a_memory_that_grows_is_refused(scripted: Load) -> None:
    class Grows(nn.Module):
        seen: list[Tensor]

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)
            self.seen = []

        def forward(self, x: Tensor) -> Tensor:
            self.seen.append(x)
            return self.linear(torch.stack(self.seen).sum(0))

    with pytest.raises(relevo.ContractError, match=r"`seen` changed its form or size.*tensors of fixed size"):
        scripted(Grows(), shapes={"x": (4,)})


def test_a_memory_of_texts_is_refused(scripted: Load) -> None:
    class Says(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)
            self.said = ""

        def forward(self, x: Tensor) -> Tensor:
            self.said = self.said + "."
            return self.linear(x)

    with pytest.raises(relevo.ContractError, match=r"`said`.*a String, not made of tensors and numbers"):
        scripted(Says())


def test_memory_outlives_a_hot_swap(scripted: Load) -> None:
    torch.manual_seed(0)
    model = scripted(Counter())
    with relevo.AgentBuilder().default_model(model, head="raw").actor_count(2).build() as agent:
        actors = agent.actors()
        x = np.ones((2, 4), np.float32)
        first = np.array(actors.act(x).action)
        agent.update_model(model)
        np.testing.assert_allclose(actors.act(x).action, first * 2, rtol=1e-5)
