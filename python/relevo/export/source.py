"""From what a user has to a `TorchModel`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import nn

from relevo.errors import ConfigError
from relevo.export import actor_critic, recurrent, stable_baselines
from relevo.export.arguments import Arguments
from relevo.export.evaluation import evaluating
from relevo.export.inputs import Input, of_observation
from relevo.export.modules import Flat, has_forward
from relevo.export.torch_model import TorchModel
from relevo.settings import Normalization

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relevo.export.inputs import Observation

Statistics: TypeAlias = "Normalization | Mapping[str, Normalization]"


def torch_model(  # noqa: PLR0917 : what an export is told
    source: Any,  # noqa: ANN401 : a module, or a model of Stable-Baselines3
    observation: Observation | None,
    outputs: Sequence[str] | None,
    branches: Sequence[int] | None,
    normalization: Any,  # noqa: ANN401 : ours, or a VecNormalize
    states: Mapping[str, Sequence[int]] | None = None,
) -> TorchModel:
    """The policy of `source`; see `relevo.export.to_onnx`."""
    found = stable_baselines.find(source)
    if found is not None:
        policy, own = found
        given = {"observation": observation, "outputs": outputs, "branches": branches, "states": states}
        if any(value is not None for value in given.values()):
            known = ", ".join(name for name, value in given.items() if value is not None)
            raise ConfigError(f"a Stable-Baselines3 model knows its own {known}; leave it out")
        model = stable_baselines.torch_model(policy)
        return _with_statistics(model, own if normalization is None else normalization)
    module = unwrapped(source)
    if observation is None:
        raise ConfigError(
            "what a module observes must be given: a Gymnasium space, as env.observation_space, or observations [N, …]"
        )
    inputs = of_observation(observation)
    if states:
        return _with_statistics(recurrent.torch_model(module, inputs, outputs, states, branches), normalization)
    return _with_statistics(of_module(module, inputs, outputs, branches), normalization)


def of_module(
    module: nn.Module,
    inputs: tuple[Input, ...],
    outputs: Sequence[str] | None,
    branches: Sequence[int] | None = None,
    states: Mapping[str, str] | None = None,
) -> TorchModel:
    """A module's model. Names of outputs are taken from its results where none are given.

    `states` has the output that gives the next value of each input that is a state.
    """
    sizes = tuple(int(size) for size in branches or ())
    if outputs is None and actor_critic.is_one(module):
        return actor_critic.torch_model(module, inputs, sizes)
    if not has_forward(module):
        raise ConfigError(
            f"{type(module).__name__} has no forward, nor the parts of an actor-critic (`actor` or `actor_mean`, and "
            "`critic`); give a module with a forward of tensors"
        )
    arguments = Arguments.of(module, inputs)
    if outputs is None:
        outputs = _own_names(module, inputs, arguments)
    names = [*(given.name for given in inputs), *outputs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice and not any(given.is_state for given in inputs):
        raise ConfigError(f"inputs and outputs must have different names, but {', '.join(twice)} comes twice")
    given = _as_given(tuple(outputs), inputs, arguments, states or {})
    return TorchModel(
        module, lambda core: Flat(core, arguments, outputs, given), inputs, tuple(outputs), branches=sizes
    )


def _as_given(
    outputs: tuple[str, ...], inputs: tuple[Input, ...], arguments: Arguments, states: Mapping[str, str]
) -> list[str]:
    """The outputs in the order in which a module gives them, whose states come out as they go in."""
    taken = [inputs[at].name for at in arguments.order]
    after = iter([states[name] for name in taken if states.get(name) in outputs])
    before = [states[given.name] for given in inputs if states.get(given.name) in outputs]
    # Where the file itself has them in another order than it takes them, positions are all that is known.
    if len(taken) != len(inputs) or before != [name for name in outputs if name in before]:
        return list(outputs)
    return [next(after) if name in before else name for name in outputs]


def unwrapped(source: Any) -> nn.Module:  # noqa: ANN401
    """The module that a user wrote, without what `torch.compile` or data parallelism put around it."""
    while True:
        if hasattr(source, "_orig_mod"):
            source = source._orig_mod  # noqa: SLF001 : where torch.compile keeps it
        elif isinstance(source, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            source = source.module
        else:
            break
    if isinstance(source, str | os.PathLike):
        raise ConfigError(
            f"a torch.nn.Module or a Stable-Baselines3 model was expected, but the path {source} came; load it first "
            "by the class that saved it: PPO.load(path)"
        )
    if not isinstance(source, nn.Module):
        raise ConfigError(
            f"a torch.nn.Module or a Stable-Baselines3 model was expected, but {type(source).__name__} came"
        )
    return source


def _own_names(module: nn.Module, inputs: tuple[Input, ...], arguments: Arguments) -> list[str]:
    random = np.random.default_rng(0)
    with evaluating(module) as core:
        names = Flat(core, arguments).names(*(torch.from_numpy(given.rows(2, random)) for given in inputs))
    if not names or not all(names):
        raise ConfigError(
            f"the module gives {len(names)} tensors without names; name them by outputs=[…], such as "
            '["logits", "value"], ["mean", "log_std", "value"], ["q_values"] or ["action"]'
        )
    return names


def _with_statistics(model: TorchModel, given: Any) -> TorchModel:  # noqa: ANN401
    if given is None:
        return model
    by_name = _by_name(model, given)
    names = [own.name for own in model.inputs]
    for name, own in by_name.items():
        width = next((int(np.prod(each.row_shape)) for each in model.inputs if each.name == name), None)
        if width != len(own.mean) or width != len(own.variance):
            raise ConfigError(
                f"a normalisation of {len(own.mean)} means and {len(own.variance)} variances was given for `{name}`, "
                f"but the observations are {', '.join(f'{each.name} {each.row_shape}' for each in model.inputs)}"
            )
    return replace(model, statistics=tuple(by_name.get(name) for name in names))


def _by_name(model: TorchModel, given: Any) -> dict[str, Normalization]:  # noqa: ANN401
    if isinstance(given, Mapping):
        return dict(given)
    if not isinstance(given, Normalization):
        # One that normalises rewards alone has no statistics of observations.
        if getattr(given, "norm_obs", None) is False:
            return {}
        if not all(hasattr(given, name) for name in ("obs_rms", "epsilon", "clip_obs")):
            raise ConfigError(f"normalization must be a relevo.Normalization or a VecNormalize, but is {given!r}")
        statistics = given.obs_rms if isinstance(given.obs_rms, Mapping) else {model.inputs[0].name: given.obs_rms}
        return {
            name: Normalization(own.mean, own.var, given.epsilon, given.clip_obs)
            for name, own in statistics.items()
            if given.norm_obs_keys is None or name in given.norm_obs_keys
        }
    names = [own.name for own in model.inputs if not own.is_state]
    if len(names) != 1:
        raise ConfigError(
            f"the model has several observations ({', '.join(names)}); give normalisations by name: {{…: …}}"
        )
    return {names[0]: given}
