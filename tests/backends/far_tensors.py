"""Tensors that say they lie on `cuda:0`: their memory is the processor's, and what becomes of it is counted."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

CPU, GPU = (1, 0), (2, 0)
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}


class _Managed(ctypes.Structure):
    """`DLManagedTensor`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_kind", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_NAME = b"dltensor"

alive: dict[int, Any] = {}
"""What capsules that are not dropped yet need."""


@_Destructor
def _drop(capsule: int) -> None:
    del alive[_pointer(capsule, _NAME)]


def capsule(array: np.ndarray[Any, Any], device: tuple[int, int] = GPU) -> Any:
    """A capsule of the array's memory that says it lies on the device."""
    sizes = (ctypes.c_int64 * array.ndim)(*array.shape)
    strides = (ctypes.c_int64 * array.ndim)(*(stride // array.itemsize for stride in array.strides))
    managed = _Managed(
        array.ctypes.data, *device, array.ndim, _CODES[array.dtype.kind], array.itemsize * 8, 1, sizes, strides, 0
    )
    alive[ctypes.addressof(managed)] = (array, sizes, strides, managed)
    return _new_capsule(ctypes.addressof(managed), _NAME, _drop)


class FarTensor:
    """A tensor of a library that has DLPack, and cannot look at what is in it."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        self.copies = 0
        self.streams: list[int | None] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return GPU

    def __dlpack__(self, *, stream: int | None = None, dl_device: Any = None, copy: Any = None, **_more: Any) -> Any:
        if dl_device == CPU:
            assert copy
            self.copies += 1
            return self.array.copy().__dlpack__()
        self.streams.append(stream)
        return capsule(self.array)


class FarArray(FarTensor):
    """One of a library that keeps to the array standard."""

    def __array_namespace__(self) -> Any:
        return _Namespace


class _Namespace:
    @staticmethod
    def isnan(given: FarArray) -> np.ndarray[Any, Any]:
        return np.isnan(given.array)

    @staticmethod
    def any(given: np.ndarray[Any, Any]) -> np.bool[bool]:
        return np.any(given)
