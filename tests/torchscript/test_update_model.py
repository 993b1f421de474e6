"""Modules of a training loop, handed to a policy that serves."""

from __future__ import annotations

import gc
import io
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch_modules
from torch import nn

import relevo
import relevo.export
from relevo.export import handover

BOX = gym.spaces.Box(-10, 10, (4,), np.float32)
ROWS = np.random.default_rng(4).standard_normal((8, 4)).astype(np.float32)


class WithExtra(torch_modules.ActorCritic):
    """Gives one more than the model that serves."""

    def forward(self, obs: torch.Tensor) -> Any:
        logits, value = super().forward(obs)
        return logits, value, value


def other_weights(module: nn.Module) -> None:
    with torch.no_grad():
        for weights in module.parameters():
            weights.normal_()


def likeliest(module: nn.Module) -> npt.NDArray[np.int64]:
    training = module.training
    with torch.no_grad():
        logits = module.eval()(torch.from_numpy(ROWS))[0].argmax(1).numpy()
    module.train(training)
    return np.asarray(logits)


@pytest.fixture(params=["onnx", "pt"])
def serving(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., relevo.Agent]]:
    """An agent that serves a file of a module, of either format."""
    agents: list[relevo.Agent] = []

    def serve(module: Any, observation: Any = BOX, **options: Any) -> relevo.Agent:
        path = tmp_path / f"policy.{request.param}"
        write = relevo.export.to_onnx if request.param == "onnx" else relevo.export.to_torchscript
        report = write(module, path, observation, **options)
        assert report.contract is not None
        shapes = {tensor.name: tensor.row_shape for tensor in report.contract.inputs}
        model = relevo.ModelModule.load_from_path(path, shapes=shapes)
        agents.append(relevo.AgentBuilder().default_model(model).actor_count(8).seed(7).build())
        agents[-1].start()
        return agents[-1]

    yield serve
    for agent in agents:
        agent.shutdown()


def actions(agent: relevo.Agent) -> npt.NDArray[Any]:
    return np.asarray(agent.actors().act(ROWS, deterministic=True))


def test_a_module_serves_and_keeps_the_roles(serving: Callable[..., relevo.Agent]) -> None:
    module = torch_modules.ActorCritic()
    agent = serving(module, outputs=["logits", "value"])
    for version in (2, 3, 4):
        other_weights(module)
        assert agent.update_model(module) == version
        batch = agent.actors().act(ROWS, deterministic=True)
        np.testing.assert_array_equal(np.asarray(batch), likeliest(module))
        with torch.no_grad():
            value = module.eval()(torch.from_numpy(ROWS))[1][:, 0]
        np.testing.assert_allclose(batch.value, value, atol=1e-5)
        assert (batch.policy_version == version).all()


def test_the_module_is_as_it_was(serving: Callable[..., relevo.Agent]) -> None:
    module = torch_modules.ActorCritic()
    agent = serving(module, outputs=["logits", "value"])
    module.body.eval()
    flags, random = [part.training for part in module.modules()], torch.get_rng_state()
    gradients = [torch.ones_like(weights) for weights in module.parameters()]
    for weights, gradient in zip(module.parameters(), gradients, strict=True):
        weights.grad = gradient
    agent.update_model(module)
    assert [part.training for part in module.modules()] == flags
    assert torch.equal(torch.get_rng_state(), random)
    assert all(weights.grad is own for weights, own in zip(module.parameters(), gradients, strict=True))
    assert torch.is_grad_enabled()


def test_a_module_that_cannot_be_copied(serving: Callable[..., relevo.Agent]) -> None:
    module = torch_modules.ActorCritic()
    agent = serving(module, outputs=["logits", "value"])
    module.lock = threading.Lock()
    module.body.eval()
    flags = [part.training for part in module.modules()]
    other_weights(module)
    agent.update_model(module)
    assert [part.training for part in module.modules()] == flags
    np.testing.assert_array_equal(actions(agent), likeliest(module))


def test_a_trace_is_used_again_until_it_no_longer_holds(
    serving: Callable[..., relevo.Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Scaled(torch_modules.ActorCritic):
        scale = 1.0

        def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            logits, value = super().forward(obs)
            return logits * self.scale, value

    traces = 0
    trace = torch.jit.trace

    def counting(*arguments: Any, **options: Any) -> Any:
        nonlocal traces
        traces += 1
        return trace(*arguments, **options)

    module = Scaled()
    agent = serving(module, outputs=["logits", "value"])
    monkeypatch.setattr(torch.jit, "trace", counting)
    for _ in range(3):
        other_weights(module)
        agent.update_model(module)
    assert traces == 1
    module.scale = -1.0
    agent.update_model(module)
    assert traces == 2
    np.testing.assert_array_equal(actions(agent), likeliest(module))
    module.actor = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))
    agent.update_model(module)
    assert traces == 3
    np.testing.assert_array_equal(actions(agent), likeliest(module))


@dataclass
class Limits:
    low: float
    high: float


class Limited(nn.Module):
    """Has its limits where the rows that a trace is compared on do not reach them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.most = 1000.0
        self.limits = {"input": Limits(-1000.0, 1000.0)}
        self.offset = torch.zeros(2)
        self.sign = [1, (1,)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        limits = self.limits["input"]
        y = self.linear(x.clamp(-self.most, self.most).clamp(limits.low, limits.high))
        return torch.where(x.abs().amax(1, keepdim=True) > 500, y * self.sign[0] + self.offset, y)


def change_number(module: Limited) -> None:
    module.most = 100.0


def change_data_class(module: Limited) -> None:
    module.limits["input"].high = 100.0


def change_tensor(module: Limited) -> None:
    module.offset += 3


def change_list(module: Limited) -> None:
    module.sign[0] = -1


@pytest.mark.parametrize("change", [change_number, change_data_class, change_tensor, change_list])
def test_other_constants_make_another_trace(
    serving: Callable[..., relevo.Agent], change: Callable[[Limited], None]
) -> None:
    module = Limited()
    agent = serving(module, outputs=["action"])
    agent.update_model(module)
    change(module)
    agent.update_model(module)
    far = ROWS * 600
    with torch.no_grad():
        expected = module(torch.from_numpy(far)).numpy()
    np.testing.assert_allclose(np.asarray(agent.actors().act(far, deterministic=True)), expected, rtol=1e-4)


def test_traces_go_with_their_modules(serving: Callable[..., relevo.Agent]) -> None:
    module = torch_modules.ActorCritic()
    agent = serving(module, outputs=["logits", "value"])
    gc.collect()
    before = len(handover._TRACES)
    agent.update_model(module)
    assert len(handover._TRACES) == before + 1
    del module
    gc.collect()
    assert len(handover._TRACES) == before


def test_a_branch_on_values_is_scripted(serving: Callable[..., relevo.Agent]) -> None:
    module = torch_modules.Branching()
    agent = serving(module, outputs=["logits"])
    other_weights(module)
    agent.update_model(module)
    large = np.full((8, 4), 9, np.float32)
    expected = module.large(torch.from_numpy(large)).argmax(1)
    np.testing.assert_array_equal(np.asarray(agent.actors().act(large, deterministic=True)), expected)


def test_what_neither_traces_nor_scripts_is_refused(serving: Callable[..., relevo.Agent]) -> None:
    agent = serving(torch_modules.Branching(), outputs=["logits"])
    with pytest.raises(
        relevo.ModelLoadError,
        match=r"module Unscriptable.*bool\(obs.abs\(\).max\(\) > 5.0\).*line \d+.*scripted, it fails",
    ):
        agent.update_model(torch_modules.Unscriptable())
    assert agent.get_model_version()[0] == 1


def test_weights_with_nan_are_refused(serving: Callable[..., relevo.Agent]) -> None:
    module = torch_modules.ActorCritic()
    agent = serving(module, outputs=["logits", "value"])
    before = actions(agent)
    # Behind a unit that is 0 for the observation that the agent itself tries.
    with torch.no_grad():
        module.critic.weight[0, 3] = torch.nan
    with pytest.raises(relevo.ContractError, match=r"NaN in 1 of its weights, .* critic\.weight"):
        agent.update_model(module)
    np.testing.assert_array_equal(actions(agent), before)
    assert agent.get_model_version()[0] == 1


def test_a_module_without_values_is_refused(serving: Callable[..., relevo.Agent]) -> None:
    agent = serving(torch_modules.ActorCritic(), outputs=["logits", "value"])
    before = actions(agent)
    with torch.device("meta"):
        empty = torch_modules.ActorCritic()
    with pytest.raises(relevo.ContractError, match=r"no values in 6 of its weights, .*body\.0\.weight.*`meta`"):
        agent.update_model(empty)
    np.testing.assert_array_equal(actions(agent), before)
    # A buffer alone is enough.
    partly = torch_modules.ActorCritic()
    partly.register_buffer("scale", torch.ones(1, device="meta"))
    with pytest.raises(relevo.ContractError, match="no values in 1 of its weights, the first of which is scale"):
        agent.update_model(partly)
    assert agent.get_model_version()[0] == 1


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (torch_modules.ActorCritic(choices=4), "4 choices|int64"),
        (
            torch_modules.ActorCritic(width=5),
            r"which takes obs float32 \(4,\) .*fails on obs.*keeps its model.*another policy",
        ),
        (torch_modules.Branching(), "gives 1 tensors, where 2 are named: logits, value; the policy keeps its model"),
        (WithExtra(), "gives 3 tensors, where 2 are named: logits, value; the policy keeps its model"),
    ],
)
def test_another_contract_is_refused(serving: Callable[..., relevo.Agent], module: nn.Module, message: str) -> None:
    agent = serving(torch_modules.ActorCritic(), outputs=["logits", "value"])
    with pytest.raises(relevo.ContractError, match=message):
        agent.update_model(module)
    assert agent.get_model_version()[0] == 1
    assert actions(agent).shape == (8,)


def test_a_dict_of_observations(serving: Callable[..., relevo.Agent]) -> None:
    space = gym.spaces.Dict(
        {"image": gym.spaces.Box(0, 255, (3, 8, 8), np.uint8), "speed": gym.spaces.Box(-1, 1, (2,), np.float32)}
    )
    module = torch_modules.DictModule()
    agent = serving(module, space)
    other_weights(module)
    agent.update_model(module)
    rows = {"image": np.full((8, 3, 8, 8), 200, np.uint8), "speed": np.ones((8, 2), np.float32)}
    with torch.no_grad():
        expected = module({name: torch.from_numpy(array) for name, array in rows.items()})["logits"].argmax(1)
    np.testing.assert_array_equal(np.asarray(agent.actors().act(rows, deterministic=True)), expected)


def test_an_agent_of_cleanrl(serving: Callable[..., relevo.Agent]) -> None:
    module = torch_modules.CleanRLContinuous()
    agent = serving(module)
    other_weights(module)
    agent.update_model(module)
    with torch.no_grad():
        np.testing.assert_allclose(actions(agent), module.actor_mean(torch.from_numpy(ROWS)), atol=1e-5)


def test_branches_are_kept(serving: Callable[..., relevo.Agent]) -> None:
    module = torch_modules.ActorCritic(choices=5)
    agent = serving(module, outputs=["logits", "value"], branches=[2, 3])
    other_weights(module)
    agent.update_model(module)
    assert actions(agent).shape == (8, 2)


def test_a_compiled_module_is_the_one_inside(serving: Callable[..., relevo.Agent]) -> None:
    module = torch_modules.ActorCritic()
    agent = serving(module, outputs=["logits", "value"])
    other_weights(module)
    agent.update_model(torch.compile(module))
    np.testing.assert_array_equal(actions(agent), likeliest(module))


def test_a_scripted_module(serving: Callable[..., relevo.Agent]) -> None:
    module = torch_modules.Branching()
    agent = serving(module, outputs=["logits"])
    other_weights(module)
    agent.update_model(torch.jit.script(module))
    large = np.full((8, 4), 9, np.float32)
    expected = module.large(torch.from_numpy(large)).argmax(1)
    np.testing.assert_array_equal(np.asarray(agent.actors().act(large, deterministic=True)), expected)


def test_a_mask_is_handed_on(tmp_path: Path) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, obs: torch.Tensor, action_masks: torch.Tensor) -> torch.Tensor:
            return torch.where(action_masks > 0, self.layer(obs), torch.full((1,), -1e9))

    module = Masked()
    examples = {"obs": np.zeros((1, 4)), "action_masks": np.array([[0, 0, 0], [1, 1, 1]], np.uint8)}
    path = tmp_path / "policy.onnx"
    relevo.export.to_onnx(module, path, examples, outputs=["logits"])
    with relevo.AgentBuilder().default_model(path).actor_count(8).build() as agent:
        other_weights(module)
        agent.update_model(module)
        mask = np.array([[False, True, True]] * 8)
        batch = agent.actors().act(ROWS, mask, deterministic=True)
    with torch.no_grad():
        expected = module(torch.from_numpy(ROWS), torch.from_numpy(mask)).argmax(1)
    np.testing.assert_array_equal(np.asarray(batch), expected)


def test_bytes_of_a_trace_of_ones_own(tmp_path: Path) -> None:
    module = torch_modules.ActorCritic().eval()
    path, buffer = tmp_path / "policy.pt", io.BytesIO()
    report = relevo.export.to_torchscript(module, path, BOX, outputs=["logits", "value"])
    assert report.largest_difference <= 5e-5
    other_weights(module)
    relevo.export.to_torchscript(module, tmp_path / "next.pt", BOX, outputs=["logits", "value"])
    buffer.write((tmp_path / "next.pt").read_bytes())
    with relevo.AgentBuilder().default_model(path).actor_count(8).build() as agent:
        assert agent.update_model(buffer.getvalue()) == 2
        np.testing.assert_array_equal(actions(agent), likeliest(module))
        with pytest.raises(relevo.ModelLoadError):
            agent.update_model(buffer.getvalue()[:-200])
        assert agent.get_model_version()[0] == 2


def test_a_stable_baselines_model(serving: Callable[..., relevo.Agent]) -> None:
    library = pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")
    model = library.PPO("MlpPolicy", "CartPole-v1", n_steps=16, batch_size=16, device="cpu")
    agent = serving(model, None)
    other_weights(model.policy)
    assert agent.update_model(model) == 2
    np.testing.assert_array_equal(actions(agent), model.predict(ROWS, deterministic=True)[0])
    assert agent.update_model(model.policy) == 3


def test_updates_under_load_lose_no_request(serving: Callable[..., relevo.Agent]) -> None:
    module = torch_modules.ActorCritic()
    agent = serving(module, outputs=["logits", "value"])
    stop, failures, counts = threading.Event(), [], [0] * 4

    def act(which: int) -> None:
        actors = agent.actors(agent.get_actor_ids()[which : which + 1])
        last = 0
        try:
            while not stop.is_set():
                batch = actors.act(ROWS[:1])
                actors.observe(1.0)
                version = int(batch.policy_version[0])
                assert version >= last
                last = version
                counts[which] += 1
        except Exception as error:  # noqa: BLE001 : told below, in the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=act, args=(which,)) for which in range(len(counts))]
    for thread in threads:
        thread.start()
    for version in range(2, 12):
        other_weights(module)
        assert agent.update_model(module) == version
        before = counts.copy()
        deadline = time.monotonic() + 60
        while not failures and any(now <= was for now, was in zip(counts, before, strict=True)):
            assert time.monotonic() < deadline
            time.sleep(0.001)
    stop.set()
    for thread in threads:
        thread.join(60)
    assert failures == []
    stats = agent.stats()["policies"]["default"]
    assert stats["errors"] == 0
    assert stats["version"] == 11
