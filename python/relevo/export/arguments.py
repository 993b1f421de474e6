"""`Arguments`: how a module takes its inputs."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import nn

    from relevo.export.inputs import Input

Argument: TypeAlias = "int | tuple[int, ...]"
"""The position of an input, or those of a tuple's parts."""


@dataclass(frozen=True)
class Arguments:
    """How a module takes its inputs: by position, unless something else is known."""

    keys: tuple[str, ...] | None = None
    """Those of a dict, where it takes one."""
    parts: tuple[Argument, ...] | None = None
    """Where some arguments are tuples of inputs, what each argument is."""

    @classmethod
    def of(cls, module: nn.Module, inputs: Sequence[Input]) -> Self:
        """By what the signature asks for, and what the inputs are."""
        parts = _parts(inputs)
        with_tuples = any(isinstance(part, tuple) for part in parts)
        try:
            parameters = inspect.signature(module.forward).parameters.values()
        except (TypeError, ValueError):  # scripted, and so are the names of the inputs
            return cls(parts=parts) if any(_is_part(given) for given in inputs) else cls()
        positional = [each for each in parameters if each.kind in {each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD}]
        needed = sum(each.default is each.empty for each in positional)
        # What has a number for a default is no tensor.
        most = needed + sum(each.default is None for each in positional)
        if any(each.kind == each.VAR_POSITIONAL for each in parameters):
            return cls()
        # A state may have a default: what an episode begins with.
        if with_tuples and (len(parts) == needed or needed <= len(parts) <= most < len(inputs)):
            return cls(parts=parts)
        takes_states = any(given.is_state for given in inputs) and needed <= len(inputs) <= most
        if needed != 1 or len(inputs) == 1 or takes_states:
            return cls()
        return cls(keys=tuple(given.name.rpartition(".")[2] for given in inputs))

    def call(self, module: nn.Module, tensors: Sequence[torch.Tensor]) -> Any:  # noqa: ANN401 : what a module gives
        """Calls a module with its inputs, which come by position."""
        if self.keys is not None:
            return module(dict(zip(self.keys, tensors, strict=True)))
        if self.parts is None:
            return module(*tensors)
        return module(
            *(tensors[part] if isinstance(part, int) else tuple(tensors[at] for at in part) for part in self.parts)
        )


def _parts(inputs: Sequence[Input]) -> tuple[Argument, ...]:
    """States by the tuples that their names tell of (`hc.0`, `hc.1`), or else in one tuple behind the other inputs."""
    tuples: dict[str, list[int]] = {}
    for at, given in enumerate(inputs):
        if _is_part(given):
            tuples.setdefault(given.name.rpartition(".")[0], []).append(at)
    if tuples:
        whole = {own[0]: tuple(own) for own in tuples.values()}
        inside = {at for own in tuples.values() for at in own}
        return tuple(whole.get(at, at) for at in range(len(inputs)) if at in whole or at not in inside)
    states = tuple(at for at, given in enumerate(inputs) if given.is_state)
    others = tuple(at for at, given in enumerate(inputs) if not given.is_state)
    return (*others, states) if len(states) > 1 else tuple(range(len(inputs)))


def _is_part(given: Input) -> bool:
    """Whether an input is a state in a tuple, by its name."""
    tuple_name, _, part = given.name.rpartition(".")
    return given.is_state and bool(tuple_name) and part.isdigit()
