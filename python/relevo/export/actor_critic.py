"""Agents as CleanRL writes them: `get_action_and_value`, or the parts `actor` and `critic`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from relevo.errors import ExportError
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
    if not branches and hasattr(agent, "nvec"):
        branches = tuple(int(size) for size in agent.nvec)
    return TorchModel(
        core=agent,
        wrap=lambda agent: _ActorCritic(agent, str(_first(agent, ACTORS)), deviation),
        inputs=inputs,
        outputs=outputs,
        branches=branches,
        witness=partial(_pairs, branches) if hasattr(agent, "get_action_and_value") else None,
        supported=SUPPORTED,
    )


class _ActorCritic(nn.Module):
    def __init__(self, agent: Any, actor: str, deviation: str | None) -> None:  # noqa: ANN401
        super().__init__()
        self.agent = agent
        self.actor = actor
        self.deviation = deviation

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        actor = getattr(self.agent, self.actor)
        if hasattr(self.agent, "get_action_and_value"):
            # What lies before the actor, the method alone knows; of the action that it draws, nothing is used.
            seen: list[torch.Tensor] = []
            hook = actor.register_forward_hook(lambda _module, _given, result: seen.append(result))
            try:
                value = self.agent.get_action_and_value(*tensors)[-1]
            finally:
                hook.remove()
            if len(seen) != 1 or not isinstance(seen[0], torch.Tensor):
                raise ExportError(
                    f"get_action_and_value called `{self.actor}` {len(seen)} times, where once was expected; export a "
                    "module of your own with outputs=[…]"
                )
            answer = seen[0]
        else:
            answer, value = actor(*tensors), self.agent.critic(*tensors)
        if self.deviation is None:
            return answer, value
        return answer, getattr(self.agent, self.deviation).expand_as(answer), value


def _pairs(
    branches: tuple[int, ...],
    agent: Any,  # noqa: ANN401
    tensors: tuple[torch.Tensor, ...],
    found: Mapping[str, torch.Tensor],
) -> list[Pair]:
    """The log-probability that the agent tells of an action that it draws, beside that of the outputs."""
    action, log_prob, *_ = agent.get_action_and_value(*tensors)
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
