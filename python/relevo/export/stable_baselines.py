"""Stable-Baselines3's policies as modules of tensors."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from relevo.errors import ExportError
from relevo.export.inputs import of_observation
from relevo.export.torch_model import Pair, TorchModel
from relevo.settings import Bounds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from relevo.settings import How


def find(source: Any) -> tuple[Any, Any] | None:  # noqa: ANN401 : whatever a user gives
    """The policy and the `VecNormalize` (or None) of a model of Stable-Baselines3; None where it is none of its."""
    # What is one of its classes was made with it loaded.
    base = sys.modules.get("stable_baselines3.common.base_class")
    policies = sys.modules.get("stable_baselines3.common.policies")
    if base is not None and isinstance(source, base.BaseAlgorithm):
        return source.policy, source.get_vec_normalize_env()
    if policies is not None and isinstance(source, policies.BasePolicy):
        return source, None
    return None


def torch_model(policy: Any) -> TorchModel:  # noqa: ANN401 : of one of its many classes
    """The policy as a module that gives what an actor needs."""
    space, kind = policy.action_space, type(policy.action_space).__name__
    inputs = of_observation(policy.observation_space)
    keys = tuple(given.name for given in inputs) if hasattr(policy.observation_space, "spaces") else None
    if hasattr(policy, "lstm_actor"):
        raise ExportError("recurrent policies of sb3-contrib are not exported; export a module of their parts")
    branches: tuple[int, ...] = ()
    outputs: tuple[str, ...]
    how: How | None
    if hasattr(policy, "action_net") and kind in {"Discrete", "MultiDiscrete"}:
        own, outputs, how = _DiscreteActorCritic, ("logits", "value"), None
        branches = tuple(map(int, space.nvec)) if kind == "MultiDiscrete" else ()
    elif hasattr(policy, "action_net") and kind == "Box":
        own, outputs, how = (
            _GaussianActorCritic,
            ("mean", "log_std", "value"),
            "tanh" if policy.squash_output else "clip",
        )
    elif hasattr(policy, "q_net") and kind == "Discrete":
        own, outputs, how = _Greedy, ("deterministic_action", "q_values"), None
    elif hasattr(policy, "actor") and hasattr(policy.actor, "get_action_dist_params"):
        own, outputs, how = _SoftActor, ("mean", "log_std"), "tanh"
    elif hasattr(policy, "actor") and hasattr(policy.actor, "mu"):
        own, outputs, how = _DeterministicActor, ("action",), "rescale"
    else:
        raise ExportError(
            f"{type(policy).__name__} with actions of {space} is not among the policies that are exported (PPO, A2C, "
            "DQN, SAC, TD3 and their like, with Discrete, MultiDiscrete or Box actions); export a module of your own "
            "with outputs=[…]"
        )
    return TorchModel(
        core=policy,
        wrap=lambda policy: own(policy, keys),
        inputs=inputs,
        outputs=outputs,
        bounds=None if how is None else Bounds.of(space, how),
        branches=branches,
        witness=partial(_pairs, keys, branches),
    )


class _Policy(nn.Module):
    def __init__(self, policy: Any, keys: tuple[str, ...] | None) -> None:  # noqa: ANN401
        super().__init__()
        self.policy = policy
        self.keys = keys

    def observation(self, tensors: tuple[torch.Tensor, ...]) -> Any:  # noqa: ANN401 : a tensor, or a dict of them
        return tensors[0] if self.keys is None else dict(zip(self.keys, tensors, strict=True))


class _ActorCritic(_Policy):
    def latents(self, tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.policy.extract_features(self.observation(tensors))
        extractor = self.policy.mlp_extractor
        if self.policy.share_features_extractor:
            actor, critic = extractor(features)
            return actor, self.policy.value_net(critic)
        own, critics = features
        return extractor.forward_actor(own), self.policy.value_net(extractor.forward_critic(critics))


class _DiscreteActorCritic(_ActorCritic):
    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        latent, value = self.latents(tensors)
        return self.policy.action_net(latent), value


class _GaussianActorCritic(_ActorCritic):
    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        latent, value = self.latents(tensors)
        mean = self.policy.action_net(latent)
        if self.policy.use_sde:
            return mean, _log_std_of_noise(self.policy.action_dist, mean, self.policy.log_std, latent), value
        return mean, self.policy.log_std.expand_as(mean), value


class _SoftActor(_Policy):
    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        actor = self.policy.actor
        mean, log_std, more = actor.get_action_dist_params(self.observation(tensors))
        if more:
            log_std = _log_std_of_noise(actor.action_dist, mean, log_std, more["latent_sde"])
        return mean, log_std


class _DeterministicActor(_Policy):
    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (self.policy.actor(self.observation(tensors)),)


class _Greedy(_Policy):
    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = self.policy.q_net(self.observation(tensors))
        return values.argmax(dim=1), values


def _log_std_of_noise(
    distribution: Any,  # noqa: ANN401 : StateDependentNoiseDistribution
    mean: torch.Tensor,
    log_std: torch.Tensor,
    latent: torch.Tensor,
) -> torch.Tensor:
    """The spread of each single action under state-dependent noise. Between two draws of it, actions are correlated."""
    made = distribution.proba_distribution(mean, log_std, latent)
    return made.distribution.stddev.log()


def _pairs(
    keys: tuple[str, ...] | None,
    branches: tuple[int, ...],
    policy: Any,  # noqa: ANN401
    tensors: tuple[torch.Tensor, ...],
    found: Mapping[str, torch.Tensor],
) -> list[Pair]:
    """The action that the policy itself predicts, beside that of the outputs."""
    space = policy.action_space
    arrays = [tensor.cpu().numpy() for tensor in tensors]
    predicted, _ = policy.predict(
        arrays[0] if keys is None else dict(zip(keys, arrays, strict=True)), deterministic=True
    )
    expected = torch.from_numpy(np.asarray(predicted)).reshape(len(arrays[0]), -1)
    scores = found.get("logits", found.get("q_values"))
    if scores is None:
        action = found["mean"] if "mean" in found else found["action"]
        low, high = (torch.from_numpy(bound).reshape(-1) for bound in (space.low, space.high))
        if policy.squash_output:
            squashed = action.tanh() if "mean" in found else action
            return [("action", expected, low + 0.5 * (squashed + 1) * (high - low))]
        return [("action", expected, action.clamp(low, high))]
    # Of choices that are as good, either may be taken: their scores are compared.
    return [
        ("score of the best action", block.amax(dim=1), block.gather(1, choice[:, None].long())[:, 0])
        for block, choice in zip(scores.split(branches or [scores.shape[1]], dim=1), expected.unbind(1), strict=True)
    ]
