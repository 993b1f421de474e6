"""Recurrent modules: which axis of their states counts rows is tried out."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import torch

from relevo.errors import ConfigError, ExportError
from relevo.export import actor_critic, source
from relevo.export.evaluation import evaluating
from relevo.export.inputs import next_name, of_states
from relevo.export.starts import begins_otherwise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from relevo.export.inputs import Input
    from relevo.export.torch_model import TorchModel

ROWS = (2, 3)
"""Batches that are tried."""


def torch_model(
    module: nn.Module,
    inputs: tuple[Input, ...],
    outputs: Sequence[str] | None,
    states: Mapping[str, Sequence[int]],
    branches: Sequence[int] | None,
) -> TorchModel:
    """The model of a module that takes states and gives their next values behind its other outputs.

    Raises:
        ConfigError: outputs have no names.
        ExportError: it does not run on such states, or gives none of their shapes.
    """
    given = of_states(states)
    after = {state.name: next_name(state.name) for state in given}
    is_agent = outputs is None and actor_critic.is_one(module)
    if outputs is None and not is_agent:
        raise ConfigError(
            'name the outputs of a recurrent module without its states by outputs=[…], such as ["logits", "value"]'
        )
    named = [*(name for name in outputs or () if name not in after.values()), *after.values()]
    failure = "it gives states of other shapes than it takes"
    with evaluating(module) as core:
        # Behind the layers, as torch's recurrent layers have it, or in front.
        for axes in product(*([1, 0] if len(state.row_shape) > 1 else [0] for state in given)):
            placed = tuple(replace(state, batch_axis=axis) for state, axis in zip(given, axes, strict=True))
            taken = (*inputs, *placed)
            if is_agent:
                model = actor_critic.torch_model(module, taken, tuple(map(int, branches or ())))
            else:
                model = source.of_module(module, taken, named, branches, after)
            try:
                goes_on = _goes_on(model, core, placed)
            except Exception as error:  # noqa: BLE001 : the module's own code raises what it likes
                failure = str(error)
                continue
            if goes_on and begins_otherwise(model, core):
                raise ExportError(
                    f"{type(module).__name__} begins an episode otherwise than with zeros where its states are None, "
                    "and a file that is exported begins with zeros; save it by torch.jit.script(module).save(…), which "
                    "Relevo serves as it is"
                )
            if goes_on:
                return model
    shapes = ", ".join(f"{state.name} {state.row_shape}" for state in given)
    raise ExportError(
        f"{type(module).__name__} does not go on from states of the shapes {shapes}: {failure}. It must take them "
        f"beside its observations, and give {', '.join(named)}, the next states last and in the same order"
    )


def _goes_on(model: TorchModel, core: nn.Module, states: tuple[Input, ...]) -> bool:
    """Whether the states that come out can go in."""
    random, own = np.random.default_rng(0), model.wrap(core)
    for rows in ROWS:
        tensors = {given.name: torch.from_numpy(given.rows(rows, random)) for given in model.inputs}
        results = own(*tensors.values())
        if len(results) != len(model.outputs):
            raise ExportError(f"it gives {len(results)} tensors, but {len(model.outputs)} are named")
        found = dict(zip(model.outputs, results, strict=True))
        if any(found[next_name(state.name)].shape != tensors[state.name].shape for state in states):
            return False
    return True
