"""Recurrent policies that are told whether an episode goes on: `forward(inputs, rnn_hxs, masks)`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

import relevo

# What torch's own layers check of shapes is no part of a trace.
pytestmark = [
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:Exporting a model to ONNX:UserWarning"),
]

WIDTH, HIDDEN, ACTORS = 5, 12, 8
Form = Literal["onnx", "onnx-1", "traced", "scripted", "frozen"]


class Cell(nn.Module):
    """The state is [B, H]: masked before a GRU that gets a sequence of one step."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(WIDTH, HIDDEN)
        self.critic, self.actor = nn.Linear(HIDDEN, 1), nn.Linear(HIDDEN, 3)
        # What an episode begins with, so that zeros alone would not do.
        self.first = nn.Parameter(torch.randn(HIDDEN))

    def forward(
        self, inputs: torch.Tensor, rnn_hxs: torch.Tensor, masks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        goes_on = masks.to(rnn_hxs.dtype)
        before = rnn_hxs * goes_on + self.first * (1 - goes_on)
        x, after = self.gru(inputs.unsqueeze(0), before.unsqueeze(0))
        x = x.squeeze(0)
        return self.critic(x), self.actor(x), after.squeeze(0)


class Layers(nn.Module):
    """The state is [L, B, H]."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(WIDTH, HIDDEN, num_layers=2)
        self.critic, self.actor = nn.Linear(HIDDEN, 1), nn.Linear(HIDDEN, 3)
        self.first = nn.Parameter(torch.randn(HIDDEN))

    def forward(
        self, inputs: torch.Tensor, rnn_hxs: torch.Tensor, masks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        goes_on = masks.to(rnn_hxs.dtype)
        before = rnn_hxs * goes_on + self.first * (1 - goes_on)
        x, after = self.gru(inputs.unsqueeze(0), before)
        x = x.squeeze(0)
        return self.critic(x), self.actor(x), after


class Starts(nn.Module):
    """Told when an episode begins, by a bool for each row: as CleanRL and sb3-contrib have it."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(WIDTH, HIDDEN)
        self.actor = nn.Linear(HIDDEN, 3)
        self.first = nn.Parameter(torch.randn(HIDDEN))

    def forward(
        self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, done: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        begins = done.to(h.dtype).unsqueeze(1)
        h, c = self.cell(x, (h * (1 - begins) + self.first * begins, c * (1 - begins)))
        return self.actor(h), h, c


def save(module: nn.Module, form: Form, folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    state = (HIDDEN,) if isinstance(module, Cell) else (2,)
    rows = 1 if form == "onnx-1" else 3
    hxs = torch.randn(rows, *state) if isinstance(module, Cell) else torch.randn(2, rows, HIDDEN)
    examples = (torch.randn(rows, WIDTH), hxs, torch.ones(rows, 1).to(dtype))
    path = folder / ("policy.onnx" if form.startswith("onnx") else "policy.pt")
    if not form.startswith("onnx"):
        script = torch.jit.trace(module, examples) if form == "traced" else torch.jit.script(module)
        if form == "frozen":
            # Its weights are constants without names: errors alone tell how wide its inputs are.
            script = torch.jit.freeze(script)
        script.save(str(path))
        return path
    axis = 0 if isinstance(module, Cell) else 1
    names = {"inputs": {0: "batch"}, "rnn_hxs": {axis: "batch"}, "masks": {0: "batch"}}
    outputs = {"value": {0: "batch"}, "action": {0: "batch"}, "node_31": {axis: "batch"}}
    torch.onnx.export(
        module,
        examples,
        str(path),
        dynamo=False,
        input_names=list(names),
        output_names=list(outputs),
        dynamic_axes=None if form == "onnx-1" else names | outputs,
    )
    return path


def played(actors: Any, observations: npt.NDArray[Any], ends: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    """The actions of some steps; where `ends`, the episode is over after the step."""
    actions = []
    for obs, over in zip(observations, ends, strict=True):
        actions.append(np.asarray(actors.act(obs)))
        actors.observe(reward=0.0, terminated=over)
    return np.array(actions)


def eager(module: nn.Module, observations: npt.NDArray[Any], ends: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    """What the module gives one actor after the other."""
    actions = np.zeros((*ends.shape, 3), np.float32)
    for actor in range(ends.shape[1]):
        hidden, goes_on = None, 0.0
        for step, obs in enumerate(observations[:, actor]):
            if hidden is None:
                hidden = torch.zeros(1, HIDDEN) if isinstance(module, Cell) else torch.zeros(2, 1, HIDDEN)
            with torch.no_grad():
                _, action, hidden = module(torch.from_numpy(obs)[None], hidden, torch.tensor([[goes_on]]))
            actions[step, actor] = action[0].numpy()
            goes_on = 0.0 if ends[step, actor] else 1.0
    return actions


def game() -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    random = np.random.default_rng(3)
    return random.standard_normal((20, ACTORS, WIDTH)).astype(np.float32), random.random((20, ACTORS)) < 0.2


ROLES = {"output_1": "action", "output_0": "value"}


def load(path: Path) -> relevo.ModelModule:
    return relevo.ModelModule.load_from_path(path, roles=ROLES if path.suffix == ".pt" else None)


@pytest.mark.parametrize("form", ["onnx", "onnx-1", "traced", "scripted", "frozen"])
@pytest.mark.parametrize("kind", [Cell, Layers])
def test_each_actor_gets_what_the_module_gives_it(kind: type[nn.Module], form: Form, tmp_path: Path) -> None:
    torch.manual_seed(2)
    module = kind().eval()
    model = load(save(module, form, tmp_path))
    roles = {tensor.name: tensor.role for tensor in model.contract.inputs}
    assert roles == {"inputs": "observation", "rnn_hxs": "state", "masks": "episode_mask"}
    assert model.contract.recurrent
    (state,) = model.contract.states
    assert (state.input, state.batch_axis) == ("rnn_hxs", 0 if kind is Cell else 1)
    observations, ends = game()
    expected = eager(module, observations, ends)
    with relevo.AgentBuilder().default_model(model).actor_count(ACTORS).build() as agent:
        np.testing.assert_allclose(played(agent.actors(), observations, ends), expected, atol=2e-5)
    with relevo.AgentBuilder().default_model(model).actor_count(ACTORS).build() as agent:
        for at, actor in enumerate(agent.get_actor_ids()):
            one = played(agent.actors([actor]), observations[:, at : at + 1], ends[:, at : at + 1])
            np.testing.assert_allclose(one[:, 0], expected[:, at], atol=2e-5)


@pytest.mark.parametrize("form", ["onnx", "traced"])
def test_a_mask_of_bool(form: Form, tmp_path: Path) -> None:
    torch.manual_seed(2)
    module = Cell().eval()
    path = save(module, form, tmp_path, torch.bool)
    model = load(path)
    (mask,) = [tensor for tensor in model.contract.inputs if tensor.role == "episode_mask"]
    assert form == "traced" or mask.dtype == "bool"
    observations, ends = game()
    with relevo.AgentBuilder().default_model(model).actor_count(ACTORS).build() as agent:
        actions = played(agent.actors(), observations, ends)
    np.testing.assert_allclose(actions, eager(module, observations, ends), atol=2e-5)


def test_an_input_that_says_when_an_episode_begins(tmp_path: Path) -> None:
    torch.manual_seed(5)
    module = Starts().eval()
    path = tmp_path / "policy.pt"
    torch.jit.script(module).save(str(path))
    model = relevo.ModelModule.load_from_path(path)
    assert {tensor.name: tensor.role for tensor in model.contract.inputs}["done"] == "episode_start"
    observations, ends = game()
    with relevo.AgentBuilder().default_model(model).actor_count(ACTORS).build() as agent:
        actions = played(agent.actors(), observations, ends)
    for actor in range(ACTORS):
        h = c = torch.zeros(1, HIDDEN)
        begins = 1.0
        for step in range(len(ends)):
            with torch.no_grad():
                action, h, c = module(torch.from_numpy(observations[step, actor])[None], h, c, torch.tensor([begins]))
            np.testing.assert_allclose(actions[step, actor], action[0].numpy(), atol=2e-5)
            begins = float(ends[step, actor])


def test_single_calls_are_told_too(tmp_path: Path) -> None:
    module = Cell().eval()
    model = load(save(module, "onnx", tmp_path))
    observations, ends = game()
    expected = eager(module, observations, ends)
    with relevo.AgentBuilder().default_model(model).actor_count(ACTORS).max_wait(0).build() as agent:
        handles = [agent.actors([actor]) for actor in agent.get_actor_ids()]
        for step, (obs, over) in enumerate(zip(observations, ends, strict=True)):
            for at, handle in enumerate(handles):
                action = np.asarray(handle.act(obs[at : at + 1]))
                np.testing.assert_allclose(action[0], expected[step, at], atol=2e-5)
                handle.observe(reward=0.0, terminated=bool(over[at]))


@pytest.mark.parametrize("form", ["onnx", "pt"])
def test_a_new_version_goes_on_with_the_episode(form: str, tmp_path: Path) -> None:
    torch.manual_seed(2)
    module = Cell().eval()
    model = load(save(module, "onnx" if form == "onnx" else "traced", tmp_path))
    observations, ends = game()
    expected = eager(module, observations, ends)
    with relevo.AgentBuilder().default_model(model).actor_count(ACTORS).build() as agent:
        first = played(agent.actors(), observations[:10], ends[:10])
        agent.update_model(module)
        second = played(agent.actors(), observations[10:], ends[10:])
    np.testing.assert_allclose(np.concatenate([first, second]), expected, atol=2e-5)


class Unknown(nn.Module):
    """States by names that tell nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(WIDTH, HIDDEN, num_layers=2)
        self.actor = nn.Linear(HIDDEN, 3)

    def forward(self, x: torch.Tensor, carried: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, after = self.gru(x.unsqueeze(0), carried)
        return self.actor(y.squeeze(0)), after


def test_a_role_says_where_the_rows_of_a_state_lie(tmp_path: Path) -> None:
    path = tmp_path / "policy.pt"
    torch.jit.script(Unknown().eval()).save(str(path))
    model = relevo.ModelModule.load_from_path(path, roles={"carried": "state:output_1"})
    (state,) = model.contract.states
    assert (state.input, state.output, state.row_shape, state.batch_axis) == ("carried", "output_1", (2, HIDDEN), 1)
    assert model.contract.batch == "dynamic"


def test_without_states_a_mask_is_one_of_actions(tmp_path: Path) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, 1)

        def forward(self, obs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.layer(obs) + (1 - mask) * -1e9
            return logits

    path = tmp_path / "policy.pt"
    torch.jit.script(Masked().eval()).save(str(path))
    contract = relevo.ModelModule.load_from_path(path).contract
    assert [tensor.role for tensor in contract.inputs] == ["observation", "action_mask"]
