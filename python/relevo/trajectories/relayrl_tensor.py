"""Tensors as RelayRL writes them: five cells of a CSV row, or JSON in `aux_data`."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

FIELDS = ("dtype", "shape", "f32", "f64", "binary")
"""A tensor's cells: floats of 32 and 64 bits as numbers, everything else as bytes in little-endian order."""
NAMES: dict[np.dtype[Any], str] = {
    np.dtype(np.float16): "F16",
    np.dtype(np.float32): "F32",
    np.dtype(np.float64): "F64",
    np.dtype(np.int8): "I8",
    np.dtype(np.int16): "I16",
    np.dtype(np.int32): "I32",
    np.dtype(np.int64): "I64",
    np.dtype(np.bool_): "Bool",
}
UINT8 = np.dtype(np.uint8)
"""RelayRL has a name for it in its other backend alone."""
DTYPES: dict[str, np.dtype[Any]] = {**{name: dtype for dtype, name in NAMES.items()}, "U8": UINT8}


def from_cells(given: Sequence[str]) -> npt.NDArray[Any] | None:
    """One row's tensor; None where all cells are empty."""
    if not any(given):
        return None
    name, shape, *payloads = given
    dtype = _dtype(name)
    sizes = json.loads(shape)
    for payload, element in zip(payloads, (np.dtype(np.float32), np.dtype(np.float64), None), strict=True):
        if payload:
            values = json.loads(payload)
            if element is None:
                return np.frombuffer(bytes(values), dtype.newbyteorder("<")).astype(dtype).reshape(sizes)
            return np.array(values, element).astype(dtype).reshape(sizes)
    raise ValueError(f"a tensor of {name} has no numbers")


def from_json(value: dict[str, Any]) -> npt.NDArray[Any]:
    """The array of such a `Tensor`."""
    tensor = value["Tensor"]
    ((backend, name),) = tensor["dtype"].items()
    dtype = _dtype(f"{backend}({name})")
    flat = np.frombuffer(bytes(tensor["data"]), dtype.newbyteorder("<")).astype(dtype)
    return flat.reshape(tensor["shape"])


def _dtype(name: str) -> np.dtype[Any]:
    match = re.fullmatch(r"(?:NdArray|Tch)\((\w+)\)", name)
    if match is None or match[1] not in DTYPES:
        raise ValueError(f"the tensor type {name!r} is not known")
    return DTYPES[match[1]]
