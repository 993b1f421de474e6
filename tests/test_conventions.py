"""Files as the field's exporters write them: what actors get is what ONNX Runtime gives each of them alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import models
import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
from onnx import TensorProto, helper

import relevo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Arrays: TypeAlias = "dict[str, npt.NDArray[Any]]"

ACTORS = 8
STEPS = 4


@dataclass(frozen=True)
class Convention:
    """A way of exporting a policy."""

    write: Callable[[Path], Path]
    outputs: dict[str, str]
    """The role that each output is to be taken for."""
    head: str
    action: Callable[[Arrays], npt.NDArray[Any]]
    """The action without randomness, from the graph's outputs for one row."""
    states: dict[str, str] = field(default_factory=dict)
    """State inputs, and the outputs with their next values."""
    choices: int | None = None
    """How many choices a mask is for."""


def draw(*shape: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(5).normal(size=shape).astype(np.float32)


def isaac_lab(path: Path) -> Path:
    return models.save(
        path,
        [helper.make_node("MatMul", ["obs", "w"], ["raw"]), helper.make_node("Elu", ["raw"], ["actions"])],
        {"obs": [1, 4]},
        {"actions": [1, 2]},
        {"w": draw(4, 2)},
    )


def sample_factory(path: Path) -> Path:
    """A gated memory; the action is the largest logit, as an evaluation without sampling exports it."""
    return models.save(
        path,
        [
            helper.make_node("Concat", ["camera", "speed"], ["seen"], axis=1),
            helper.make_node("MatMul", ["seen", "w"], ["news"]),
            helper.make_node("MatMul", ["rnn_states", "u"], ["old"]),
            helper.make_node("Add", ["news", "old"], ["both"]),
            helper.make_node("Tanh", ["both"], ["output_rnn_states"]),
            helper.make_node("MatMul", ["output_rnn_states", "head"], ["output_action_logits"]),
            helper.make_node("ArgMax", ["output_action_logits"], ["output_actions"], axis=1, keepdims=0),
        ],
        {"camera": ["batch", 3], "speed": ["batch", 2], "rnn_states": ["batch", 6]},
        {"output_actions": ["batch"], "output_action_logits": ["batch", 4], "output_rnn_states": ["batch", 6]},
        {"w": draw(5, 6), "u": draw(6, 6), "head": draw(6, 4)},
        {"output_actions": TensorProto.INT64},
    )


def rl_games_continuous(path: Path) -> Path:
    return models.save(
        path,
        [
            helper.make_node("MatMul", ["obs", "w"], ["mu"]),
            helper.make_node("MatMul", ["obs", "zeros"], ["flat"]),
            helper.make_node("Add", ["flat", "deviation"], ["log_std"]),
            helper.make_node("MatMul", ["obs", "critic"], ["value"]),
        ],
        {"obs": ["batch", 4]},
        {"mu": ["batch", 2], "log_std": ["batch", 2], "value": ["batch", 1]},
        {
            "w": draw(4, 2),
            "zeros": np.zeros((4, 2), np.float32),
            "deviation": np.array([-1.0, 0.5], np.float32),
            "critic": draw(4, 1),
        },
    )


def rl_games_discrete(path: Path) -> Path:
    return models.save(
        path,
        [
            helper.make_node("MatMul", ["obs", "w"], ["logits"]),
            helper.make_node("MatMul", ["obs", "critic"], ["value"]),
        ],
        {"obs": ["batch", 4]},
        {"logits": ["batch", 3], "value": ["batch", 1]},
        {"w": draw(4, 3), "critic": draw(4, 1)},
    )


def action_values(path: Path) -> Path:
    return models.linear(path, draw(4, 3), "q_values")


def old_ml_agents(path: Path) -> Path:
    """Log-probabilities under the name `action`; constants say that the action is discrete, with three choices."""
    names = ("version_number", "memory_size", "is_continuous_control", "action_output_shape")
    constants = {name: np.array([value], np.float32) for name, value in zip(names, (2, 0, 0, 3), strict=True)}
    return models.save(
        path,
        [
            helper.make_node("MatMul", ["vector_observation", "w"], ["raw"]),
            helper.make_node("Sub", ["one", "action_masks"], ["forbidden"]),
            helper.make_node("Mul", ["forbidden", "far"], ["penalty"]),
            helper.make_node("Sub", ["raw", "penalty"], ["masked"]),
            helper.make_node("LogSoftmax", ["masked"], ["action"], axis=1),
            *(helper.make_node("Identity", [f"the_{name}"], [name]) for name in constants),
        ],
        {"vector_observation": ["batch", 4], "action_masks": ["batch", 3]},
        {**{name: [1] for name in names}, "action": ["batch", 3]},
        {
            "w": draw(4, 3),
            "one": np.ones(1, np.float32),
            "far": np.array([1e6], np.float32),
            **{f"the_{name}": value for name, value in constants.items()},
        },
    )


CONVENTIONS = {
    "IsaacLab, rsl_rl": Convention(isaac_lab, {"actions": "action"}, "raw", lambda outputs: outputs["actions"]),
    "IsaacLab, rsl_rl, recurrent": Convention(
        lambda path: models.lstm(path, batch=1),
        {"actions": "action", "h_out": "state", "c_out": "state"},
        "raw",
        lambda outputs: outputs["actions"],
        {"h_in": "h_out", "c_in": "c_out"},
    ),
    "Sample Factory": Convention(
        sample_factory,
        {"output_actions": "action", "output_action_logits": "logits", "output_rnn_states": "state"},
        "categorical",
        lambda outputs: outputs["output_actions"],
        {"rnn_states": "output_rnn_states"},
        choices=4,
    ),
    "rl_games, continuous": Convention(
        rl_games_continuous,
        {"mu": "mean", "log_std": "log_std", "value": "value"},
        "gaussian",
        lambda outputs: outputs["mu"],
    ),
    "rl_games, discrete": Convention(
        rl_games_discrete,
        {"logits": "logits", "value": "value"},
        "categorical",
        lambda outputs: outputs["logits"].argmax(1),
        choices=3,
    ),
    "action values": Convention(
        action_values, {"q_values": "action_values"}, "argmax", lambda outputs: outputs["q_values"].argmax(1), choices=3
    ),
    "ML-Agents, old": Convention(
        old_ml_agents,
        {
            "version_number": "constant",
            "memory_size": "constant",
            "is_continuous_control": "constant",
            "action_output_shape": "constant",
            "action": "logits",
        },
        "categorical",
        lambda outputs: outputs["action"].argmax(1)[:, None],
        choices=3,
    ),
}


class Alone:
    """One actor, run by ONNX Runtime itself, with a batch of 1."""

    def __init__(self, path: Path, convention: Convention) -> None:
        self._session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        self._convention = convention
        shapes = {given.name: given.shape for given in self._session.get_inputs()}
        self._given = {
            name: np.zeros([size if isinstance(size, int) else 1 for size in shapes[name]], np.float32)
            for name in convention.states
        }
        if "action_masks" in shapes:
            self._given["action_masks"] = np.ones((1, 3), np.float32)

    def act(self, obs: Arrays) -> tuple[npt.NDArray[Any], Arrays]:
        names = [output.name for output in self._session.get_outputs()]
        outputs = dict(zip(names, self._session.run(None, {**obs, **self._given}), strict=True))
        self._given.update({state: outputs[then] for state, then in self._convention.states.items()})
        return self._convention.action(outputs), outputs


@pytest.fixture(params=CONVENTIONS)
def convention(request: pytest.FixtureRequest) -> Convention:
    return CONVENTIONS[request.param]


def observations(model: relevo.ModelModule, step: int) -> Arrays:
    random = np.random.default_rng(step)
    inputs = [tensor for tensor in model.contract.inputs if tensor.role == "observation"]
    return {tensor.name: random.normal(size=(ACTORS, *tensor.row_shape)).astype(np.float32) for tensor in inputs}


def test_the_contract_says_what_the_exporter_meant(tmp_path: Path, convention: Convention) -> None:
    contract = relevo.ModelModule.load_from_path(convention.write(tmp_path / "policy.onnx")).contract
    assert {tensor.name: tensor.role for tensor in contract.outputs} == convention.outputs
    assert {state.input: state.output for state in contract.states} == convention.states
    assert (contract.recurrent, contract.default_head) == (bool(convention.states), convention.head)
    assert contract.batch == "dynamic", contract.batch_reason


def test_a_batch_of_actors_gets_what_each_gets_alone(tmp_path: Path, convention: Convention) -> None:
    path = convention.write(tmp_path / "policy.onnx")
    model = relevo.ModelModule.load_from_path(path)
    alone = [Alone(path, convention) for _ in range(ACTORS)]
    agent = relevo.AgentBuilder().default_model(model).actor_count(ACTORS).build()
    with agent:
        actors = agent.actors()
        for step in range(STEPS):
            obs = observations(model, step)
            batch = actors.act(obs, deterministic=True)
            rows = [one.act({name: rows[[row]] for name, rows in obs.items()}) for row, one in enumerate(alone)]
            expected = np.concatenate([action for action, _ in rows])
            np.testing.assert_allclose(batch.action, expected, rtol=1e-5, atol=1e-5, err_msg=f"step {step}")
            if "value" in convention.outputs:
                values = np.concatenate([outputs["value"] for _, outputs in rows])[:, 0]
                np.testing.assert_allclose(batch.value, values, rtol=1e-5, atol=1e-5)


def test_a_forbidden_action_is_never_taken(tmp_path: Path, convention: Convention) -> None:
    model = relevo.ModelModule.load_from_path(convention.write(tmp_path / "policy.onnx"))
    agent = relevo.AgentBuilder().default_model(model).actor_count(ACTORS).seed(1).build()
    with agent:
        actors = agent.actors()
        if convention.choices is None:
            with pytest.raises(relevo.ContractError, match="mask"):
                actors.act(observations(model, 0), np.ones((ACTORS, 2)))
            return
        mask = np.ones((ACTORS, convention.choices), bool)
        mask[:, 1] = False
        mask[0] = [choice == 1 for choice in range(convention.choices)]
        for step in range(50):
            action = actors.act(observations(model, step), mask).action.reshape(ACTORS)
            assert action[0] == 1
            assert (action[1:] != 1).all()
