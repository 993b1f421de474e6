"""Modules of the kinds that people export: what is found out of them, and what they give."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import relevo

Load = Callable[..., relevo.ModelModule]


def shapes(model: relevo.ModelModule) -> dict[str, tuple[int | str, ...]]:
    return {tensor.name: tensor.shape for tensor in model.contract.inputs}


class Dictionary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Linear(3, 8)
        self.speed = nn.Linear(5, 8)
        self.policy = nn.Linear(8, 4)
        self.critic = nn.Linear(8, 1)

    def forward(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        hidden = torch.tanh(self.position(obs["position"]) + self.speed(obs["speed"]))
        return {"logits": self.policy(hidden), "value": self.critic(hidden)}


class Image(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(nn.Conv2d(3, 8, 8, 4), nn.ReLU(), nn.Conv2d(8, 8, 4, 2), nn.ReLU())
        self.policy = nn.Linear(8 * 9 * 9, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.policy(self.convolutions(x).flatten(1))


class Relay(nn.Module):
    """RelayRL 0.4's interface."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = nn.Linear(6, 3)
        self.observations = 6

    @torch.jit.export
    def get_obs_dim(self) -> int:
        return self.observations

    @torch.jit.export
    def get_act_dim(self) -> int:
        return 3

    @torch.jit.export
    def step(self, obs: Tensor, mask: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        logits = self.policy(obs) + (mask - 1.0) * 1e8
        chances = torch.log_softmax(logits, -1)
        action = torch.multinomial(chances.exp(), 1).squeeze(-1)
        return action, {"logp_a": chances.gather(-1, action.unsqueeze(-1)).squeeze(-1)}

    def forward(self, obs: Tensor) -> Tensor:
        return self.policy(obs)


class Memory(nn.Module):
    """A memory that is put anew in each pass, and begins with something else than zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 6)
        self.head = nn.Linear(6, 2)
        self.register_buffer("memory", torch.full((1, 6), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        self.memory = self.cell(x, self.memory)
        return self.head(self.memory)

    @torch.jit.export
    def reset(self) -> None:
        self.memory = torch.full((1, 6), 0.25)


class Answer(NamedTuple):
    logits: Tensor
    value: Tensor


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.policy = nn.Linear(7, 3)

    def forward(self, x: Tensor, hidden: Tensor | None = None, temperature: float = 2.0) -> Answer:  # noqa: ARG002
        logits = self.policy(x) / temperature
        return Answer(logits, logits.sum(-1))


class Writer(nn.Module):
    """Writes to what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x.clamp_(-1.0, 1.0)
        return self.linear(x)


class Raises(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        if bool((x > 100).any()):
            raise ValueError("such observations are not for me")
        return self.linear(x)


class Mixed(nn.Module):
    """Rows of a batch influence each other."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x - x.mean(0))


def test_a_dictionary_of_observations(scripted: Load) -> None:
    module = Dictionary()
    model = scripted(module)
    assert shapes(model) == {"position": ("?", 3), "speed": ("?", 5)}
    assert {output.name: output.role for output in model.contract.outputs} == {"logits": "logits", "value": "value"}
    obs = {"position": torch.randn(4, 3), "speed": torch.randn(4, 5)}
    with torch.no_grad():
        expected = module(obs)
    outputs = model.forward({key: value.numpy() for key, value in obs.items()})
    for key, value in expected.items():
        np.testing.assert_allclose(outputs[key], value.numpy(), atol=5e-5)


def test_an_image(scripted: Load) -> None:
    module = Image()
    model = scripted(module)
    assert shapes(model) == {"x": ("?", 3, 84, 84)}
    x = torch.rand(2, 3, 84, 84)
    with torch.no_grad():
        expected = module(x).numpy()
    np.testing.assert_allclose(model.forward({"x": x.numpy()})["output_0"], expected, atol=5e-5, rtol=5e-5)


def test_relayrl_modules_act_by_step(scripted: Load) -> None:
    model = scripted(Relay())
    assert shapes(model) == {"obs": ("?", 6), "mask": ("?", 3)}
    roles = {tensor.name: tensor.role for tensor in (*model.contract.inputs, *model.contract.outputs)}
    assert roles == {"obs": "observation", "mask": "action_mask", "output_0": "action", "logp_a": "log_prob"}
    assert model.contract.random_ops == ["aten::multinomial"]
    assert any("`step`" in note for note in model.contract.notes)
    mask = np.tile(np.array([0, 1, 0], np.float32), (50, 1))
    outputs = model.forward({"obs": np.zeros((50, 6), np.float32), "mask": mask})
    np.testing.assert_array_equal(outputs["output_0"], np.ones(50))


def test_memory_in_a_buffer_becomes_a_state(scripted: Load) -> None:
    module = Memory().eval()
    model = scripted(module)
    assert shapes(model) == {"x": (1, 4), "memory": (1, 6)}
    assert (model.contract.batch, model.contract.recurrent) == ("one", True)
    (state,) = model.contract.states
    assert (state.input, state.output, state.initial) == ("memory", "memory", "the model's own")
    x = torch.randn(5, 3, 4)  # steps, actors
    expected = []
    with torch.no_grad():
        for actor in range(3):
            module.reset()
            expected.append([module(x[step, actor][None])[0].numpy() for step in range(5)])
    with relevo.AgentBuilder().default_model(model).actor_count(3).build() as agent:
        actors = agent.actors()
        for step in range(5):
            actions = actors.act(x[step].numpy()).action
            np.testing.assert_allclose(actions, [row[step] for row in expected], atol=5e-5)


def memory_with(method: str, arguments: str = "") -> nn.Module:
    """A memory that such a method puts to 0.25."""

    class Remembers(nn.Module):
        """Of its own in each call, as torch defines methods for a class."""

    module = Remembers()
    module.register_buffer("memory", torch.full((1, 4), 0.5))
    script = torch.jit.script(module)
    script.define(f"""
        def forward(self, x: Tensor) -> Tensor:
            self.memory = self.memory + x
            return self.memory
        def {method}(self{arguments}) -> None:
            self.memory = torch.full((1, 4), 0.25)
    """)
    return script


@pytest.mark.parametrize(
    "method",
    [
        "reset",
        "reset_memory",
        "clear_memory",
        "reset_state",
        "reset_states",
        "reset_hidden",
        "reset_hidden_state",
        "reset_hidden_states",
    ],
)
def test_an_episode_begins_with_what_the_reset_method_leaves(scripted: Load, method: str) -> None:
    model = scripted(memory_with(method), shapes={"x": (4,)})
    assert any(f"as `{method}()` leaves it" in note for note in model.contract.notes)
    with relevo.AgentBuilder().default_model(model, head="raw").actor_count(2).build() as agent:
        np.testing.assert_array_equal(agent.actors().act(np.ones((2, 4), np.float32)).action, 1.25)


def test_a_reset_method_that_needs_arguments_is_not_called(scripted: Load) -> None:
    model = scripted(memory_with("reset", ", which: Tensor"), shapes={"x": (4,)})
    assert any("begins as in the file" in note for note in model.contract.notes)
    with relevo.AgentBuilder().default_model(model, head="raw").actor_count(2).build() as agent:
        np.testing.assert_array_equal(agent.actors().act(np.ones((2, 4), np.float32)).action, 1.5)


def test_named_tuples_and_defaults(scripted: Load) -> None:
    model = scripted(Named())
    assert shapes(model) == {"x": ("?", 7)}
    assert [output.name for output in model.contract.outputs] == ["logits", "value"]


def test_what_a_module_writes_to_is_a_copy(scripted: Load) -> None:
    model = scripted(Writer())
    with relevo.AgentBuilder().default_model(model).actor_count(2).keep_in_memory(4).build() as agent:
        actors = agent.actors()
        obs = np.full((2, 4), 7, np.float32)
        actors.act(obs)
        actors.observe(np.zeros(2), terminated=True)
        (first, _) = agent.trajectories()
    np.testing.assert_array_equal(first.observations[0], np.full(4, 7))
    np.testing.assert_array_equal(obs, 7)


def test_a_module_that_raises_leaves_the_agent_usable(scripted: Load) -> None:
    model = scripted(Raises())
    with relevo.AgentBuilder().default_model(model).actor_count(3).build() as agent:
        actors = agent.actors()
        before = actors.act(np.ones((3, 4), np.float32)).action
        for _ in range(3):
            with pytest.raises(relevo.InferenceError, match="such observations are not for me"):
                actors.act(np.full((3, 4), 200, np.float32))
        np.testing.assert_array_equal(actors.act(np.ones((3, 4), np.float32)).action, before)


def test_rows_that_influence_each_other_are_not_batched(scripted: Load) -> None:
    model = scripted(Mixed())
    assert model.contract.batch == "one"
    assert "otherwise than each alone" in model.contract.batch_reason


def test_widths_that_nothing_tells_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "any.pt"
    torch.jit.script(nn.Tanh()).save(str(path))
    with pytest.raises(relevo.ModelLoadError, match=r"any width.*shapes=\{\"input\": \(…,\)\}"):
        relevo.ModelModule.load_from_path(path)
    model = relevo.ModelModule.load_from_path(path, shapes={"input": (3,)})
    assert shapes(model) == {"input": ("?", 3)}
    with pytest.raises(relevo.ConfigError, match=r"shapes names `obs`.* it has input"):
        relevo.ModelModule.load_from_path(path, shapes={"obs": (3,)})
    wrong = tmp_path / "wrong.pt"
    torch.jit.script(nn.Linear(4, 2)).save(str(wrong))
    with pytest.raises(relevo.ModelLoadError, match=r"does not run on rows of input \[5\]"):
        relevo.ModelModule.load_from_path(wrong, shapes={"input": (5,)})


def test_recurrence_by_tuples(scripted: Load) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(5, 16, num_layers=2)
            self.head = nn.Linear(16, 3)

        def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            y, after = self.lstm(x.unsqueeze(0), state)
            return self.head(y[0]), after

    model = scripted(Recurrent())
    assert shapes(model) == {"x": ("?", 5), "state.0": (2, "?", 16), "state.1": (2, "?", 16)}
    assert [(state.input, state.output) for state in model.contract.states] == [
        ("state.0", "output_1.0"),
        ("state.1", "output_1.1"),
    ]


class TwoMemories(nn.Module):
    """Traced, it checks nothing: a state of another size would have oneDNN write beyond its memory."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = nn.LSTM(4, 16), nn.LSTM(4, 16)
        self.head = nn.Linear(16, 3)

    def forward(
        self, obs: Tensor, lstm_h: Tensor, lstm_c: Tensor, critic_lstm_h: Tensor, critic_lstm_c: Tensor
    ) -> tuple[Tensor, ...]:
        y, (lstm_h, lstm_c) = self.actor(obs.unsqueeze(0), (lstm_h, lstm_c))
        z, (critic_lstm_h, critic_lstm_c) = self.critic(obs.unsqueeze(0), (critic_lstm_h, critic_lstm_c))
        return self.head(y[0]), self.head(z[0]), lstm_h, lstm_c, critic_lstm_h, critic_lstm_c


@pytest.mark.filterwarnings("ignore")
def test_states_that_are_inputs_of_their_own_are_found(tmp_path: Path) -> None:
    # In a process of its own, which a damaged heap ends.
    state = torch.zeros(1, 2, 16)
    path = tmp_path / "policy.pt"
    torch.jit.trace(TwoMemories().eval(), (torch.zeros(2, 4), state, state, state, state)).save(str(path))
    code = """if True:
        import sys, relevo
        print([state.row_shape for state in relevo.ModelModule.load_from_path(sys.argv[1]).contract.states])
    """
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout.strip(), done.returncode) == (str([(1, 16)] * 4), 0), done.stderr


def test_onednn_is_put_back_after_files_are_loaded_by_many_threads(tmp_path: Path) -> None:
    path = tmp_path / "policy.pt"
    torch.jit.script(nn.Linear(4, 2)).save(str(path))
    assert torch._C._get_mkldnn_enabled(), "or the test shows nothing"
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(relevo.ModelModule.load_from_path, [path] * 64))
    assert torch._C._get_mkldnn_enabled()


def test_other_types(scripted: Load) -> None:
    model = scripted(nn.Linear(4, 2).double())
    (spec,) = model.contract.inputs
    assert spec.dtype == "float64"
    assert model.forward({"input": np.zeros((3, 4))})["output_0"].dtype == np.float64


class Typed(nn.Module):
    """Takes one type, and says so."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != self.dtype:
            raise ValueError("another type")
        return self.linear(x.float())


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "bool", "float32"])
def test_types_that_only_a_pass_shows(scripted: Load, dtype: str) -> None:
    module = Typed(getattr(torch, dtype))
    model = scripted(module, shapes={"x": (4,)})
    (spec,) = model.contract.inputs
    assert (spec.dtype, spec.row_shape, model.contract.batch) == (dtype, (4,), "dynamic")
    x = (np.arange(12).reshape(3, 4) % 3).astype(dtype)
    with torch.no_grad():
        expected = module(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(model.forward({"x": x})["output_0"], expected, atol=5e-5)


def test_observations_need_not_be_of_the_first_weights_type(scripted: Load) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones((), dtype=torch.float64))
            self.linear = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) * self.scale.float()

    (spec,) = scripted(Scaled(), shapes={"x": (4,)}).contract.inputs
    assert (spec.dtype, spec.row_shape) == ("float32", (4,))


def test_dropout_is_off(scripted: Load) -> None:
    model = scripted(nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.9)))
    assert model.contract.random_ops == []


def test_eight_threads_with_a_session_each(scripted: Load) -> None:
    module = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
    model = scripted(module)
    obs = torch.randn(8, 4)
    with torch.no_grad():
        expected = module(obs).numpy()

    def forward(_: int) -> Any:
        return model.forward({"input": obs.numpy()})["output_0"]

    with ThreadPoolExecutor(8) as threads:
        for got in threads.map(forward, range(200)):
            np.testing.assert_allclose(got, expected, atol=5e-5)


def test_the_threads_of_the_program_stay(scripted: Load) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        model = scripted(nn.Linear(4, 2))
        model.forward({"input": np.zeros((1, 4), np.float32)})
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
