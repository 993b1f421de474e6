"""What a trace holds of a module beside its weights: its Python attributes, whose values are constants to it."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterable

INTERNAL = frozenset(vars(nn.Module()))
"""Attributes of every module; weights and submodules are among them."""

Snapshot = tuple[Any, ...]


def constants(module: nn.Module) -> Snapshot:
    """The numbers, texts and arrays in attributes of a module and its submodules, to be compared with those of later.

    Tuples, lists, dictionaries, data classes and namespaces are looked into; other objects are passed over.
    """
    return tuple(
        (name, type(own), *((key, _value(value)) for key, value in vars(own).items() if key not in INTERNAL))
        for name, own in module.named_modules()
    )


def _value(value: object) -> Snapshot:
    kind = type(value)
    parts: Iterable[Any] = ()
    if value is None or isinstance(
        value, bool | int | float | complex | str | bytes | Enum | torch.dtype | torch.device
    ):
        # As a text NaN is like itself.
        parts = [repr(value)]
    elif isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        parts = [value.dtype, tuple(value.shape), flat.view(torch.uint8).numpy().tobytes()]
    elif isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        parts = [value.dtype, value.shape, value.tobytes()]
    elif isinstance(value, tuple | list):
        parts = map(_value, value)
    elif isinstance(value, dict | SimpleNamespace):
        held = value if isinstance(value, dict) else vars(value)
        parts = [(repr(key), _value(part)) for key, part in held.items()]
    elif is_dataclass(value):
        parts = [(field.name, _value(getattr(value, field.name, None))) for field in fields(value)]
    return kind, *parts
