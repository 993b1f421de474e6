"""Modules around a policy's own: tensors in by position, a tuple of tensors out, in the order of their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from relevo.errors import ExportError
from relevo.export.matching import places

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from relevo.export.arguments import Arguments
    from relevo.export.inputs import Input
    from relevo.settings import Normalization


class Flat(nn.Module):
    """A module of tensors, tuples or dicts, as one that takes tensors by position and gives a tuple of them."""

    def __init__(
        self, module: nn.Module, arguments: Arguments, outputs: Sequence[str] = (), given: Sequence[str] = ()
    ) -> None:
        """The module takes its inputs as `arguments` says.

        `outputs` are the names of what is to come out, in order; `given` are the same in the order in which the module
        gives them where it has no names for them.
        """
        super().__init__()
        self.module = module
        self.arguments = arguments
        self.outputs = tuple(outputs)
        self.given = tuple(given)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The module's tensors."""
        found = list(_flattened("", self.arguments.call(self.module, tensors)))
        results = tuple(tensor for _, tensor in found)
        if len(results) != len(self.outputs):
            return results
        if any(name for name, _ in found):
            order = places([name for name, _ in found], self.outputs, len(found), "outputs")
        else:
            order = [self.given.index(name) for name in self.outputs]
        return results if order is None else tuple(results[place] for place in order)

    def names(self, *tensors: torch.Tensor) -> list[str]:
        """The names that the module itself gives its tensors: keys of dicts, fields of named tuples, else nothing."""
        return [name for name, _ in _flattened("", self.arguments.call(self.module, tensors))]


class Normalized(nn.Module):
    """A module behind running statistics of its inputs: it gets clip((x - mean) / sqrt(variance + epsilon))."""

    def __init__(self, module: nn.Module, statistics: Sequence[Normalization | None], inputs: Sequence[Input]) -> None:
        """One of `statistics` for each input, or None."""
        super().__init__()
        self.module = module
        pairs = zip(statistics, inputs, strict=True)
        self.normalizers = nn.ModuleList(
            nn.Identity() if own is None else _Normalizer(own, given.row_shape) for own, given in pairs
        )

    def forward(self, *tensors: torch.Tensor) -> Any:  # noqa: ANN401 : what the module gives
        """What the module makes of normalised tensors."""
        return self.module(*(own(tensor) for own, tensor in zip(self.normalizers, tensors, strict=True)))


class _Normalizer(nn.Module):
    def __init__(self, own: Normalization, shape: tuple[int, ...]) -> None:
        super().__init__()
        # In float64, as a large mean would take the digits of a float32.
        mean, variance = (torch.tensor(numbers, dtype=torch.float64) for numbers in (own.mean, own.variance))
        self.register_buffer("mean", mean.reshape(shape))
        self.register_buffer("deviation", (variance + own.epsilon).sqrt().reshape(shape))
        self.clip = own.clip

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        return ((tensor.double() - self.mean) / self.deviation).clamp(-self.clip, self.clip).float()


class WithConstant(nn.Module):
    """A module whose tuple has a constant behind it."""

    def __init__(self, module: nn.Module, numbers: Sequence[float]) -> None:
        super().__init__()
        self.module = module
        self.register_buffer("constant", torch.tensor(numbers, dtype=torch.float32))

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The module's tensors, and the constant."""
        return (*self.module(*tensors), self.constant)


class Selected(nn.Module):
    """Some of a module's tensors."""

    def __init__(self, module: nn.Module, positions: Sequence[int]) -> None:
        super().__init__()
        self.module = module
        self.positions = tuple(positions)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Those at the positions."""
        found = self.module(*tensors)
        return tuple(found[position] for position in self.positions)


def has_forward(module: nn.Module) -> bool:
    """Whether a module says itself what it does when it is called."""
    return isinstance(module, torch.jit.ScriptModule) or type(module).forward is not nn.Module.forward


def _flattened(name: str, given: Any) -> Iterator[tuple[str, torch.Tensor]]:  # noqa: ANN401 : what a module gives
    if isinstance(given, torch.Tensor):
        yield name, given
    elif isinstance(given, Mapping):
        for key, part in given.items():
            yield from _flattened(str(key), part)
    elif isinstance(given, (tuple, list)):
        for field, part in zip(getattr(given, "_fields", [""] * len(given)), given, strict=True):
            yield from _flattened(field, part)
    else:
        raise ExportError(
            f"the module gives a {type(given).__name__} among its results, but a file gives tensors; wrap it in a "
            "module that gives tensors, or tuples or dicts of them"
        )
