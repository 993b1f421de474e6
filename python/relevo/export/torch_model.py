"""`TorchModel`: a policy of PyTorch, as it is exported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from relevo.export.modules import Normalized, WithConstant

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt
    from torch import nn

    from relevo.export.inputs import Input
    from relevo.settings import Bounds, Normalization

Pair: TypeAlias = "tuple[str, torch.Tensor, torch.Tensor]"
"""What is compared, as it should be, and as it is."""

BRANCHES = "discrete_action_output_shape"
"""ML-Agents' name of the constant that holds the numbers of choices, from which Relevo knows the branches."""


@dataclass(frozen=True)
class TorchModel:
    """A policy of PyTorch, with the names of what it takes and gives."""

    core: nn.Module
    """The user's own module."""
    wrap: Callable[[nn.Module], nn.Module]
    """Makes of it, or of a copy, a module that takes tensors by position and gives a tuple of them."""
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    bounds: Bounds | None = None
    """What its continuous actions are to be brought into."""
    branches: tuple[int, ...] = ()
    statistics: tuple[Normalization | None, ...] = ()
    """What each of its observations is normalised by."""
    witness: Callable[[nn.Module, tuple[torch.Tensor, ...], Mapping[str, torch.Tensor]], list[Pair]] | None = None
    """Compares outputs with what the user's own module says in its own words: an action, a log-probability."""

    supported: str = ""
    """Which policies are exported as they act, for messages."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the exported tensors."""
        return (*self.outputs, BRANCHES) if self.branches else self.outputs

    def exported(self, core: nn.Module) -> nn.Module:
        """All that goes into the file, around `core`."""
        module = self.wrap(core)
        if any(self.statistics):
            module = Normalized(module, self.statistics, self.inputs)
        return WithConstant(module, self.branches) if self.branches else module

    def observed(self, arrays: Sequence[npt.NDArray[np.generic]]) -> tuple[torch.Tensor, ...]:
        """What the core observes where the file gets `arrays`."""
        statistics = self.statistics or (None,) * len(arrays)
        return tuple(
            torch.from_numpy(array if own is None else _normalized(array, own))
            for array, own in zip(arrays, statistics, strict=True)
        )


def _normalized(array: npt.NDArray[np.generic], own: Normalization) -> npt.NDArray[np.float32]:
    """As `VecNormalize` does it, apart from the module that goes into the file."""
    shape = array.shape[1:]
    mean, deviation = np.reshape(own.mean, shape), np.sqrt(np.reshape(own.variance, shape) + own.epsilon)
    normalized: npt.NDArray[np.float64] = (array - mean) / deviation
    return normalized.clip(-own.clip, own.clip).astype(np.float32)
