"""Agents as CleanRL writes them: `get_action_and_value`, or the parts `actor` and `critic`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from relevo.errors import ExportError
from relevo.export.inputs import next_name
from relevo.export.modules import has_forward
from relevo.export.torch_model import Pair, TorchModel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from relevo.export.inputs import Input

SUPPORTED = (
    ". Of an agent with get_action_and_value, what `actor` gives is exported as the logits of Categorical, or "
    "`actor_mean` and `actor_logstd` as Normal(mean, exp(logstd)), with whatever the method does before them. What it "
    "does behind them (a clamped deviation, a squashed mean, a temperature, a mask) is not: put it into `actor`, or "
    "export a module of your own whose forward gives the final logits, or mean and log_std, with outputs=[…]"
)
"""What is exported of an agent."""

ACTORS = ("actor_mean", "actor")
DEVIATIONS = ("actor_logstd", "actor_log_std", "log_std", "logstd")


def is_one(module: nn.Module) -> bool:
    """Whether a module is such an agent, and has no `forward` of its own, which would say more."""
    return not has_forward(module) and _first(module, ACTORS) is not None and hasattr(module, "critic")


def torch_model(agent: nn.Module, inputs: tuple[Input, ...], branches: tuple[int, ...]) -> TorchModel:
    """The agent as a module that gives what its action is drawn from, and its value."""
    deviation = _first(agent, DEVIATIONS)
    outputs = ("logits", "value") if deviation is None else ("mean", "log_std", "value")
    states = [given.name for given in inputs if given.is_state]
    if not branches and hasattr(agent, "nvec"):
        branches = tuple(int(size) for size in agent.nvec)
    return TorchModel(
        core=agent,
        wrap=lambda agent: _ActorCritic(agent, str(_first(agent, ACTORS)), deviation, len(states)),
        inputs=inputs,
        outputs=(*outputs, *map(next_name, states)),
        branches=branches,
        witness=partial(_pairs, branches, len(states)) if hasattr(agent, "get_action_and_value") else None,
        supported=SUPPORTED,
    )


class _ActorCritic(nn.Module):
    def __init__(self, agent: Any, actor: str, deviation: str | None, states: int) -> None:  # noqa: ANN401
        super().__init__()
        self.agent = agent
        self.actor = actor
        self.deviation = deviation
        self.states = states

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        actor = getattr(self.agent, self.actor)
        after: tuple[torch.Tensor, ...] = ()
        if hasattr(self.agent, "get_action_and_value"):
            # What lies before the actor, the method alone knows; of the action that it draws, nothing is used.
            seen: list[torch.Tensor] = []
            hook = actor.register_forward_hook(lambda _module, _given, result: seen.append(result))
            try:
                results = _called(self.agent, tensors, self.states)
            finally:
                hook.remove()
            if len(seen) != 1 or not isinstance(seen[0], torch.Tensor):
                raise ExportError(
                    f"get_action_and_value called `{self.actor}` {len(seen)} times, where once was expected; export a "
                    "module of your own with outputs=[…]"
                )
            answer, value = seen[0], results[-2 if self.states else -1]
            if self.states:
                after = results[-1] if isinstance(results[-1], tuple) else (results[-1],)
        else:
            answer, value = actor(*tensors), self.agent.critic(*tensors)
        if self.deviation is None:
            return answer, value, *after
        return answer, getattr(self.agent, self.deviation).expand_as(answer), value, *after


def _called(agent: Any, tensors: tuple[torch.Tensor, ...], states: int) -> tuple[Any, ...]:  # noqa: ANN401
    """What the method gives. A recurrent agent takes its states, as a tuple if there are several, and who begins."""
    if states == 0:
        return tuple(agent.get_action_and_value(*tensors))
    observed, held = tensors[:-states], tensors[-states:]
    # Whoever serves the file puts the states back itself. Of the rows, not of their number, which a trace would keep.
    first = observed[0].reshape(observed[0].shape[0], -1)[:, 0]
    nobody = torch.zeros_like(first, dtype=torch.float32)
    return tuple(agent.get_action_and_value(*observed, held if states > 1 else held[0], nobody))


def _pairs(
    branches: tuple[int, ...],
    states: int,
    agent: Any,  # noqa: ANN401
    tensors: tuple[torch.Tensor, ...],
    found: Mapping[str, torch.Tensor],
) -> list[Pair]:
    """The log-probability that the agent tells of an action that it draws, beside that of the outputs."""
    action, log_prob, *_ = _called(agent, tensors, states)
    if "mean" in found:
        own = torch.distributions.Normal(found["mean"], found["log_std"].exp()).log_prob(action).sum(1)
        return [("log-probability", log_prob.reshape(-1), own)]
    blocks = found["logits"].split(branches or [found["logits"].shape[1]], dim=1)
    # One column for each branch; some agents have a row for each.
    choices = (action.T if branches and len(action) == len(branches) != len(tensors[0]) else action).reshape(
        len(tensors[0]), -1
    )
    own = torch.zeros(len(choices))
    for block, choice in zip(blocks, choices.unbind(1), strict=True):
        own += block.log_softmax(1).gather(1, choice[:, None].long())[:, 0]
    return [("log-probability", log_prob.reshape(-1), own)]


def _first(module: nn.Module, names: tuple[str, ...]) -> str | None:
    return next((name for name in names if hasattr(module, name)), None)
