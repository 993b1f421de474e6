"""Tensors as RelayRL writes them: five cells of a CSV row, or JSON in `aux_data`."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from relevo.errors import TrajectoryError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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


def backend_of(arrays: Iterable[npt.NDArray[Any]]) -> str:
    """RelayRL's backend whose types these arrays have: all rows of a file must name the same.

    Raises:
        TrajectoryError: none of them has the type of one.
    """
    arrays = list(arrays)
    for array in arrays:
        if array.dtype not in NAMES and array.dtype != UINT8:
            raise TrajectoryError(f"RelayRL has no tensors of {array.dtype}; export to parquet, which has")
    return "Tch" if any(array.dtype == UINT8 for array in arrays) else "NdArray"


def cells(array: npt.NDArray[Any], backend: str) -> list[list[str]]:
    """The cells of each row of `array`, `[T, …]`."""
    count, shape = len(array), array.shape[1:]
    head = [f"{backend}({_name(array.dtype)})", json.dumps(list(shape), separators=(",", ":"))]
    if array.dtype in (np.float32, np.float64) and np.isfinite(array).all():
        # The shortest decimals that are read as the same numbers.
        flat = array.reshape(count, -1).astype(str).tolist()
        lists = [f"[{','.join(row)}]" for row in flat]
        return [[*head, row, "", ""] if array.dtype == np.float32 else [*head, "", row, ""] for row in lists]
    # RelayRL's reader takes floats from bytes as well, and JSON has no NaN.
    return [[*head, "", "", json.dumps(list(row), separators=(",", ":"))] for row in _bytes(array)]


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


def to_json(array: npt.NDArray[Any], backend: str) -> list[dict[str, Any]]:
    """A `Tensor` for each row of `array`, as `aux_data` has it."""
    kind = {backend: _name(array.dtype)}
    shape = list(array.shape[1:])
    return [
        {"Tensor": {"shape": shape, "dtype": kind, "data": list(row), "supported_backend": backend}}
        for row in _bytes(array)
    ]


def from_json(value: dict[str, Any]) -> npt.NDArray[Any]:
    """The array of such a `Tensor`."""
    tensor = value["Tensor"]
    ((backend, name),) = tensor["dtype"].items()
    dtype = _dtype(f"{backend}({name})")
    flat = np.frombuffer(bytes(tensor["data"]), dtype.newbyteorder("<")).astype(dtype)
    return flat.reshape(tensor["shape"])


def _bytes(array: npt.NDArray[Any]) -> list[bytes]:
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return [row.tobytes() for row in little]


def _name(dtype: np.dtype[Any]) -> str:
    return "U8" if dtype == UINT8 else NAMES[dtype]


def _dtype(name: str) -> np.dtype[Any]:
    match = re.fullmatch(r"(?:NdArray|Tch)\((\w+)\)", name)
    if match is None or match[1] not in DTYPES:
        raise ValueError(f"the tensor type {name!r} is not known")
    return DTYPES[match[1]]
