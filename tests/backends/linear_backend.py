"""Hands the table of `linear.c` to Relevo: the whole of a backend's Python part."""

import ctypes
from pathlib import Path

CAPSULE = b"relevo.model_backend.v1"
"""Capsules keep no copy of their name, so it lives as long as this module."""

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def backend() -> object:
    library = ctypes.CDLL(str(Path(__file__).with_name("liblinear.so")))
    library.linear_backend.restype = ctypes.c_void_p
    return _new_capsule(library.linear_backend(), CAPSULE, None)
