"""Whether a recurrent module makes zeros of the None that an episode begins with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from relevo.errors import ContractError
from relevo.export.arguments import Arguments
from relevo.export.modules import Flat

if TYPE_CHECKING:
    from torch import nn

    from relevo.export.torch_model import TorchModel

ROWS = 2
TOLERANCE = 1e-5
"""Absolute and relative."""


def check_start(model: TorchModel, core: nn.Module, device: str) -> None:
    """Refuses a `core`, on `device`, that gives something else where its states are left out than where they are zeros.

    Raises:
        ContractError: it does.
    """
    if begins_otherwise(model, core, device):
        raise ContractError(
            f"the new {type(model.core).__name__} begins an episode otherwise than with zeros where its state is None, "
            "which is lost where it is handed over as a module; save it by torch.jit.script(module).save(…) and give "
            "that path. The policy keeps its model"
        )


def begins_otherwise(model: TorchModel, core: nn.Module, device: str = "cpu") -> bool:
    """Whether `core`, on `device`, gives something else where its states are left out than where they are zeros."""
    whole = model.wrap(core)
    others = tuple(given for given in model.inputs if not given.is_state)
    if not isinstance(whole, Flat) or len(others) == len(model.inputs):
        return False
    random = np.random.default_rng(2)
    tensors = {given.name: torch.from_numpy(given.rows(ROWS, random)).to(device) for given in model.inputs}
    zeros = [torch.zeros_like(tensors[own.name]) if own.is_state else tensors[own.name] for own in model.inputs]
    try:
        begun = Flat(core, Arguments.of(core, others), whole.outputs, whole.given)
        results, of_zeros = begun(*(tensors[given.name] for given in others)), whole(*zeros)
    except Exception:  # noqa: BLE001 : states may have to be given, and what fails on them fails again
        return False
    pairs = list(zip(results, of_zeros, strict=False))
    return any(
        one.shape == other.shape and not torch.allclose(one, other, atol=TOLERANCE, rtol=TOLERANCE, equal_nan=True)
        for one, other in pairs
    )
