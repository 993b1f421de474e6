"""Stable-Baselines3's policies as modules of tensors."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from relevo.errors import ExportError
from relevo.export.inputs import Input, of_observation
from relevo.export.torch_model import Pair, TorchModel
from relevo.settings import Bounds

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

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
    branches: tuple[int, ...] = ()
    outputs: tuple[str, ...]
    how: How | None
    is_evolved = hasattr(policy, "action_net") and not hasattr(policy, "value_net")
    if is_evolved and kind == "Discrete":
        own, outputs, how = _GreedyOfScores, ("deterministic_action", "q_values"), None
    elif is_evolved and kind == "Box":
        own, outputs, how = _Evolved, ("action",), "rescale" if policy.squash_output else "clip"
    elif hasattr(policy, "action_net") and kind in {"Discrete", "MultiDiscrete"}:
        own, outputs, how = _DiscreteActorCritic, ("logits", "value"), None
        branches = tuple(map(int, space.nvec)) if kind == "MultiDiscrete" else ()
    elif hasattr(policy, "action_net") and kind == "Box":
        own, outputs, how = (
            _GaussianActorCritic,
            ("mean", "log_std", "value"),
            "tanh" if policy.squash_output else "clip",
        )
    elif hasattr(policy, "quantile_net") and kind == "Discrete":
        own, outputs, how = _GreedyOfQuantiles, ("deterministic_action", "q_values"), None
    elif hasattr(policy, "q_net") and kind == "Discrete":
        own, outputs, how = _Greedy, ("deterministic_action", "q_values"), None
    elif hasattr(policy, "actor") and hasattr(policy.actor, "get_action_dist_params"):
        own, outputs, how = _SoftActor, ("mean", "log_std"), "tanh"
    elif hasattr(policy, "actor") and hasattr(policy.actor, "mu"):
        own, outputs, how = _DeterministicActor, ("action",), "rescale"
    else:
        raise ExportError(
            f"{type(policy).__name__} with actions of {space} is not among the policies that are exported (PPO, A2C, "
            "DQN, QR-DQN, SAC, TD3, ARS and their like, with Discrete, MultiDiscrete or Box actions); export a module "
            "of your own with outputs=[…]"
        )
    states = _states(policy)
    # As flat as the networks give them, actions are no elements of a space of several axes.
    shape = tuple(space.shape) if kind == "Box" and len(space.shape) != 1 else None
    return TorchModel(
        core=policy,
        wrap=lambda policy: own(policy, keys) if shape is None else _Shaped(own(policy, keys), shape, outputs),
        inputs=(*inputs, *states),
        outputs=(*outputs, *(state.name.replace("_in", "_out") for state in states)),
        bounds=None if how is None else Bounds.of(space, how),
        branches=branches,
        witness=partial(_pairs, keys, branches),
    )


def _states(policy: Any) -> tuple[Input, ...]:  # noqa: ANN401
    """What a recurrent policy of sb3-contrib remembers: of its actor, and of its critic where that has a memory."""
    if not hasattr(policy, "lstm_actor"):
        return ()
    layers, _, width = policy.lstm_hidden_state_shape
    names = ["lstm_h_in", "lstm_c_in"]
    if policy.lstm_critic is not None:
        names += ["vf_lstm_h_in", "vf_lstm_c_in"]
    state = Input("", np.dtype(np.float32), (layers, width), batch_axis=1, is_state=True)
    return tuple(replace(state, name=name) for name in names)


class _Policy(nn.Module):
    def __init__(self, policy: Any, keys: tuple[str, ...] | None) -> None:  # noqa: ANN401
        super().__init__()
        self.policy = policy
        self.keys = keys
        self.count = 1 if keys is None else len(keys)

    def observation(self, tensors: tuple[torch.Tensor, ...]) -> Any:  # noqa: ANN401 : a tensor, or a dict of them
        return tensors[0] if self.keys is None else dict(zip(self.keys, tensors[: self.count], strict=True))


class _Shaped(nn.Module):
    """A policy whose actions, and what they are drawn from, have the shape of their space."""

    def __init__(self, policy: nn.Module, shape: tuple[int, ...], outputs: tuple[str, ...]) -> None:
        super().__init__()
        self.policy = policy
        self.shape = shape
        self.shaped = tuple(name in {"action", "mean", "log_std"} for name in outputs)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = self.policy(*tensors)
        own = [
            tensor.reshape(-1, *self.shape) if is_shaped else tensor
            for tensor, is_shaped in zip(found, self.shaped, strict=False)
        ]
        return (*own, *found[len(own) :])


class _ActorCritic(_Policy):
    def latents(self, tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...]]:
        """What the action is made of, the value, and the states after it."""
        features = self.policy.extract_features(self.observation(tensors))
        own, critics = (features, features) if self.policy.share_features_extractor else features
        after: tuple[torch.Tensor, ...] = ()
        if hasattr(self.policy, "lstm_actor"):
            own, critics, after = self.remembered(own, critics, tensors[self.count :])
        extractor = self.policy.mlp_extractor
        return extractor.forward_actor(own), self.policy.value_net(extractor.forward_critic(critics)), after

    def remembered(
        self, own: torch.Tensor, critics: torch.Tensor, states: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...]]:
        """The features of actor and critic behind their memories, by one step."""
        own, after = self.policy.lstm_actor(own.unsqueeze(0), states[:2])
        own = own.squeeze(0)
        if self.policy.lstm_critic is not None:
            critics, critic_after = self.policy.lstm_critic(critics.unsqueeze(0), states[2:])
            return own, critics.squeeze(0), (*after, *critic_after)
        return own, own if self.policy.shared_lstm else self.policy.critic(critics), after


class _DiscreteActorCritic(_ActorCritic):
    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        latent, value, after = self.latents(tensors)
        return (self.policy.action_net(latent), value, *after)


class _GaussianActorCritic(_ActorCritic):
    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        latent, value, after = self.latents(tensors)
        mean = self.policy.action_net(latent)
        if self.policy.use_sde:
            log_std = _log_std_of_noise(self.policy.action_dist, mean, self.policy.log_std, latent)
            return (mean, log_std, value, *after)
        return (mean, self.policy.log_std.expand_as(mean), value, *after)


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


class _Evolved(_Policy):
    """ARS: a network without a value, and without a distribution."""

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (self.result(tensors),)

    def result(self, tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
        features = self.policy.extract_features(self.observation(tensors), self.policy.features_extractor)
        result: torch.Tensor = self.policy.action_net(features)
        return result


class _GreedyOfScores(_Evolved):
    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scores = self.result(tensors)
        return scores.argmax(dim=1), scores


class _GreedyOfQuantiles(_Policy):
    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = self.policy.quantile_net(self.observation(tensors)).mean(dim=1)
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
    """What the policy itself predicts, beside what the outputs say: the action, and what is remembered."""
    count = 1 if keys is None else len(keys)
    arrays, states = [tensor.cpu().numpy() for tensor in tensors[:count]], tensors[count:]
    # A critic's memory is not among what an action is predicted from.
    before = tuple(state.cpu().numpy() for state in states[:2]) or None
    predicted, after = policy.predict(
        arrays[0] if keys is None else dict(zip(keys, arrays, strict=True)), state=before, deterministic=True
    )
    remembered = [
        (f"`{name}`", torch.from_numpy(state), found[name])
        for name, state in zip(("lstm_h_out", "lstm_c_out"), after or (), strict=False)
    ]
    return remembered + _actions(policy, branches, predicted, len(arrays[0]), found)


def _actions(
    policy: Any,  # noqa: ANN401
    branches: tuple[int, ...],
    predicted: npt.NDArray[Any],
    rows: int,
    found: Mapping[str, torch.Tensor],
) -> list[Pair]:
    space = policy.action_space
    expected = torch.from_numpy(np.asarray(predicted)).reshape(rows, -1)
    scores = found.get("logits", found.get("q_values"))
    if scores is None:
        action = (found["mean"] if "mean" in found else found["action"]).reshape(rows, -1)
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
