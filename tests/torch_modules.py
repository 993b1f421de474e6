"""Modules of PyTorch that tests hand over and export."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class ActorCritic(nn.Module):
    """Logits and a value."""

    def __init__(self, width: int = 4, hidden: int = 16, choices: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Dropout(0.5))
        self.actor = nn.Linear(hidden, choices)
        self.critic = nn.Linear(hidden, 1)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.body(obs)
        return self.actor(hidden), self.critic(hidden)


class Branching(nn.Module):
    """Goes another way for large observations, which a trace does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.small = nn.Linear(4, 3)
        self.large = nn.Linear(4, 3)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        # Of the whole batch, so that a script does what the module does.
        if obs.abs().max() > 5.0:
            return self.large(obs)
        return self.small(obs)


class Unscriptable(Branching):
    """As `Branching`, in words that TorchScript has not."""

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        layer = {True: self.large, False: self.small}[bool(obs.abs().max() > 5.0)]
        return layer(obs)


class DictModule(nn.Module):
    """Takes a dict of observations, and gives a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(4 + 2, 3)

    def forward(self, obs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        seen = self.image(obs["image"].float() / 255.0).mean((2, 3))
        return {"logits": self.head(torch.cat([seen, obs["speed"]], 1))}


class CleanRLDiscrete(nn.Module):
    """As CleanRL's PPO for Atari has it: the network before the actor is known to the methods alone."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 16), nn.ReLU())
        self.actor = nn.Linear(16, 5)
        self.critic = nn.Linear(16, 1)

    def get_value(self, x: torch.Tensor) -> torch.Tensor:
        return self.critic(self.network(x / 255.0))

    def get_action_and_value(self, x: torch.Tensor, action: torch.Tensor | None = None) -> tuple[Any, ...]:
        hidden = self.network(x / 255.0)
        probs = torch.distributions.Categorical(logits=self.actor(hidden))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(hidden)


class CleanRLContinuous(nn.Module):
    """As CleanRL's PPO for continuous actions has it."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
        self.actor_mean = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
        self.actor_logstd = nn.Parameter(torch.tensor([[-0.5, 0.25]]))

    def get_action_and_value(self, x: torch.Tensor, action: torch.Tensor | None = None) -> tuple[Any, ...]:
        mean = self.actor_mean(x)
        probs = torch.distributions.Normal(mean, torch.exp(self.actor_logstd.expand_as(mean)))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action).sum(1), probs.entropy().sum(1), self.critic(x)
