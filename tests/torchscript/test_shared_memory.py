"""Buffers of a module that are the same numbers: copies of them for each actor would come apart."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import relevo

Load = Callable[..., relevo.ModelModule]


class Views(nn.Module):
    """Writes to parts of a tensor, and reads the whole."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        state = torch.zeros(2, 1, 2)
        self.register_buffer("state", state)
        self.register_buffer("h", state[0])
        self.register_buffer("c", state[1])

    def forward(self, x: Tensor) -> Tensor:
        self.h.mul_(0.5).add_(self.linear(x))
        self.c.add_(self.h)
        return self.state[0] + self.state[1]


class Replaced(nn.Module):
    """Begins with one tensor of zeros for both, which is never written to."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(4, 3)
        zeros = torch.zeros(1, 3)
        self.register_buffer("h", zeros)
        self.register_buffer("c", zeros)

    def forward(self, x: Tensor) -> Tensor:
        self.h, self.c = self.cell(x, (self.h, self.c))
        return self.h


class Apart(nn.Module):
    """Has parts of a tensor that is no attribute itself."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        state = torch.zeros(2, 1, 2)
        self.register_buffer("h", state[0])
        self.register_buffer("c", state[1])

    def forward(self, x: Tensor) -> Tensor:
        self.h.mul_(0.5).add_(self.linear(x))
        self.c.add_(self.h)
        return self.h + self.c


def test_what_is_written_to_must_be_one_attribute(scripted: Load) -> None:
    with pytest.raises(
        relevo.ContractError, match=r"write to the attribute `h`, whose numbers are also those of `state`.*views"
    ):
        scripted(Views())


@pytest.mark.parametrize("kind", [Replaced, Apart])
def test_other_shared_storage_is_no_matter(scripted: Load, kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    module = kind()
    model = scripted(module)
    assert [state.input for state in model.contract.states] == ["h", "c"]
    x = torch.randn(4, 3, 4)
    own = [torch.jit.script(kind().eval()) for _ in range(3)]
    for instance in own:
        instance.load_state_dict(module.state_dict())
    with relevo.AgentBuilder().default_model(model, head="raw").actor_count(3).build() as agent:
        actors = agent.actors()
        for step in x:
            actions = actors.act(step.numpy(), record=False).action
            with torch.no_grad():
                expected = torch.cat([instance(row[None]) for instance, row in zip(own, step, strict=True)])
            np.testing.assert_allclose(actions, expected.numpy(), atol=5e-5)
