"""Where the code of a module asks for a number that comes of its inputs: a trace keeps the answer of its one run."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from torch import nn

HERE = str(Path(__file__).parent)
TORCH = str(Path(torch.__file__).parent)

QUESTIONS = frozenset(
    {
        torch.Tensor.__bool__,
        torch.Tensor.__float__,
        torch.Tensor.__index__,
        torch.Tensor.__int__,
        torch.Tensor.allclose,
        torch.Tensor.equal,
        torch.Tensor.is_nonzero,
        torch.Tensor.item,
        torch.Tensor.numpy,
        torch.Tensor.tolist,
        torch.allclose,
        torch.equal,
        torch.is_nonzero,
    }
)
"""What makes Python's numbers of a tensor's."""


def decisions(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> list[str]:
    """Lines of Python, with where they are, at which `module` asks for a number that was calculated from `inputs`.

    Sizes are no such numbers, assertions decide nothing, and torch's own code asks for the sake of checks.
    """
    watch = _Watch(inputs)
    try:
        with watch:
            module(*inputs)
    except Exception:  # noqa: BLE001 : what cannot be watched is compared at least
        return []
    return list(watch.lines)


class _Watch(TorchFunctionMode):
    def __init__(self, inputs: tuple[torch.Tensor, ...]) -> None:
        super().__init__()
        # By identity, and held, so that no other tensor gets it.
        self.derived = {id(tensor): tensor for tensor in inputs}
        self.lines: dict[str, None] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if any(id(tensor) in self.derived for tensor in _tensors((args, kwargs))):
            self.derived.update((id(tensor), tensor) for tensor in _tensors(result))
            if func in QUESTIONS:
                self._ask()
        return result

    def _ask(self) -> None:
        frame = sys._getframe(2)  # noqa: SLF001 : whoever called what was watched
        file = frame.f_code.co_filename
        line = linecache.getline(file, frame.f_lineno).strip()
        if not file.startswith((HERE, TORCH)) and not line.startswith("assert"):
            self.lines[f"`{line}` ({Path(file).name}, line {frame.f_lineno})"] = None


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
