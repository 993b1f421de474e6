"""`Comparison`: random rows with what the original gives for them, against which an export is held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from relevo.errors import ConfigError, ExportError, RelevoError
from relevo.export.evaluation import seed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt
    from torch import nn

    from relevo.export.torch_model import TorchModel

CASES = ((1, 1.0), (2, 10.0), (7, 1.0), (5, 0.1))
"""Numbers of rows, and how wide their values are spread."""


class DisagreementError(Exception):
    """An export does not give what the original gives."""


class UnsuitableInputError(ExportError):
    """The original itself does not take rows of such inputs."""


@dataclass(frozen=True)
class _Case:
    arrays: list[npt.NDArray[Any]]
    observed: tuple[torch.Tensor, ...]
    expected: dict[str, torch.Tensor]


class Comparison:
    """Random rows with what the original gives for them."""

    def __init__(self, model: TorchModel, core: nn.Module, device: str = "cpu") -> None:
        """`core` is the original, in eval mode on `device`."""
        self._model, self._core, self.device = model, core, device
        random = np.random.default_rng(0)
        own = model.wrap(core)
        self._cases = []
        for count, spread in CASES:
            arrays = [given.rows(count, random, spread) for given in model.inputs]
            observed = tuple(tensor.to(device) for tensor in model.observed(arrays))
            seed()
            self._cases.append(_Case(arrays, observed, _expected(model, own, observed)))

    def row_axis(self, output: str) -> int | None:
        """The axis on which an output has a row for each row of the inputs, if it has."""
        shapes = [case.expected[output].shape for case in self._cases if output in case.expected]
        if not shapes:
            return None
        follows = (
            all(shape[axis] == rows for shape, (rows, _) in zip(shapes, CASES, strict=True))
            for axis in range(len(shapes[0]))
        )
        return next((axis for axis, does in enumerate(follows) if does), None)

    def largest_difference(
        self, run: Callable[[list[npt.NDArray[Any]]], Mapping[str, torch.Tensor]], tolerance: float
    ) -> float:
        """Runs an export on all rows; gives the largest difference, relative plus absolute.

        Raises:
            DisagreementError: it is above `tolerance`.
        """
        largest = 0.0
        for case in self._cases:
            seed()
            found = run(case.arrays)
            pairs = [(f"`{name}`", expected, found[name]) for name, expected in case.expected.items()]
            if self._model.witness is not None:
                pairs += self._model.witness(self._core, case.observed, found)
            for what, expected, own in pairs:
                difference = _difference(what, expected, own)
                if not difference <= tolerance:
                    raise DisagreementError(
                        f"{what} differs by {difference:.2g} for {len(case.observed[0])} rows; {tolerance:.2g} may be"
                    )
                largest = max(largest, difference)
        return largest


def _expected(model: TorchModel, own: nn.Module, observed: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    try:
        results = own(*observed)
    except RelevoError:
        raise
    except Exception as error:
        shapes = ", ".join(
            f"{given.name} {tuple(tensor.shape)}" for given, tensor in zip(model.inputs, observed, strict=True)
        )
        raise UnsuitableInputError(f"{type(model.core).__name__} fails on {shapes}: {error}") from error
    if len(results) != len(model.outputs):
        raise ConfigError(
            f"{type(model.core).__name__} gives {len(results)} tensors, where {len(model.outputs)} are named: "
            f"{', '.join(model.outputs)}"
        )
    return dict(zip(model.outputs, results, strict=True))


def _difference(what: str, expected: torch.Tensor, found: torch.Tensor) -> float:
    """The largest |found - expected| / (1 + |expected|). NaN is alike, and so is infinity."""
    if expected.shape != found.shape:
        raise DisagreementError(f"{what} has the shape {tuple(found.shape)} instead of {tuple(expected.shape)}")
    expected, found = expected.double().cpu(), found.double().cpu()
    same = (expected == found) | (expected.isnan() & found.isnan())
    apart = ((found - expected).abs() / (1 + expected.abs()))[~same]
    return float(apart.nan_to_num(nan=torch.inf).amax()) if apart.numel() else 0.0
