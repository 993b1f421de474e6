"""`Arguments`: how a module takes its inputs."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from relevo.export.matching import canonical, places

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
    names: tuple[str, ...] | None = None
    """Where the module has its arguments in another order, the name of each."""
    order: tuple[int, ...] = ()
    """Positions of the inputs in the order in which the module takes them, where it takes no dict."""

    @classmethod
    def of(cls, module: nn.Module, inputs: Sequence[Input]) -> Self:
        """By what the signature asks for, and what the inputs are.

        Raises:
            ConfigError: its names contradict those of the inputs.
        """
        parts = _parts(inputs)
        parameters = _parameters(module)
        if parameters is None:
            return cls(parts=parts if any(_is_part(given) for given in inputs) else None)
        needed = sum(each.is_needed for each in parameters)
        # A state may have a default: what an episode begins with.
        if any(isinstance(part, tuple) for part in parts) and (
            len(parts) == needed or needed <= len(parts) <= len(parameters) < len(inputs)
        ):
            return cls._by_name(parameters, parts, inputs)
        takes_states = any(given.is_state for given in inputs) and needed <= len(inputs) <= len(parameters)
        if needed == 1 and len(inputs) > 1 and not takes_states and not _has_all(parameters, inputs):
            return cls(keys=tuple(given.name.rpartition(".")[2] for given in inputs))
        return cls._by_name(parameters, tuple(range(len(inputs))), inputs)

    @classmethod
    def _by_name(cls, parameters: Sequence[_Parameter], parts: tuple[Argument, ...], inputs: Sequence[Input]) -> Self:
        wanted = [
            inputs[part].name.rpartition(".")[2] if isinstance(part, int) else inputs[part[0]].name.rpartition(".")[0]
            for part in parts
        ]
        own = [each.name for each in parameters]
        found = places(own, wanted, sum(each.is_needed for each in parameters), "inputs")
        tuples = parts if any(isinstance(part, tuple) for part in parts) else None
        ordered = (
            parts if found is None else [part for _, part in sorted(zip(found, parts, strict=True), key=itemgetter(0))]
        )
        order = [at for part in ordered for at in ([part] if isinstance(part, int) else part)]
        return cls(
            parts=tuples, names=None if found is None else tuple(own[place] for place in found), order=tuple(order)
        )

    def call(self, module: nn.Module, tensors: Sequence[torch.Tensor]) -> Any:  # noqa: ANN401 : what a module gives
        """Calls a module with its inputs, which come by position."""
        if self.keys is not None:
            return module(dict(zip(self.keys, tensors, strict=True)))
        given: list[Any] = list(tensors)
        if self.parts is not None:
            given = [
                tensors[part] if isinstance(part, int) else tuple(tensors[at] for at in part) for part in self.parts
            ]
        return module(*given) if self.names is None else module(**dict(zip(self.names, given, strict=True)))


@dataclass(frozen=True)
class _Parameter:
    """An argument that may be a tensor."""

    name: str
    is_needed: bool


def _parameters(module: nn.Module) -> list[_Parameter] | None:
    """What the module takes, those that may be left out last; None where it takes any number."""
    if (schema := getattr(module.forward, "schema", None)) is not None:  # scripted
        known = [(each.name, not each.has_default_value(), each.default_value is None) for each in schema.arguments[1:]]
    else:
        given = list(inspect.signature(module.forward).parameters.values())
        if any(each.kind == each.VAR_POSITIONAL for each in given):
            return None
        positional = [each for each in given if each.kind == each.POSITIONAL_OR_KEYWORD]
        known = [(each.name, each.default is each.empty, each.default is None) for each in positional]
    # What has a number for a default is no tensor.
    return [_Parameter(name, is_needed) for name, is_needed, is_none in known if is_needed or is_none]


def _has_all(parameters: Sequence[_Parameter], inputs: Sequence[Input]) -> bool:
    """Whether there is an argument for each input, by name."""
    own = {canonical(each.name) for each in parameters}
    return all(canonical(given.name) in own for given in inputs)


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
    # An LSTM has its hidden state before its cells.
    states = tuple(
        sorted(
            (at for at, given in enumerate(inputs) if given.is_state), key=lambda at: canonical(inputs[at].name) == "c"
        )
    )
    others = tuple(at for at, given in enumerate(inputs) if not given.is_state)
    return (*others, states) if len(states) > 1 else tuple(range(len(inputs)))


def _is_part(given: Input) -> bool:
    """Whether an input is a state in a tuple, by its name."""
    tuple_name, _, part = given.name.rpartition(".")
    return given.is_state and bool(tuple_name) and part.isdigit()
