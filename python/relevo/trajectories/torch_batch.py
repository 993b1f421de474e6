"""NumPy batches of steps as torch's tensors."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from relevo.trajectories.packages import needed

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt
    import torch


def tensors(batch: Mapping[str, npt.NDArray[Any]]) -> dict[str, torch.Tensor]:
    """See `relevo.trajectories.to_torch`."""
    torch = needed("torch", "torch", "making tensors of steps")
    with warnings.catch_warnings():
        # Known, and said in the docstring: what is shared must not be written to.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return {name: torch.from_numpy(_as_numbers(array)) for name, array in batch.items() if array.dtype.kind != "O"}


def _as_numbers(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Times as nanoseconds since 1970."""
    return array.view("int64") if array.dtype.kind == "M" else array
