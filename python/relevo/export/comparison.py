"""`Comparison`: random rows with what the original gives for them, against which an export is held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from relevo.errors import ConfigError, ExportError, RelevoError
from relevo.export.decisions import decisions
from relevo.export.evaluation import seed
from relevo.export.inputs import next_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt
    from torch import nn

    from relevo.export.torch_model import Pair, TorchModel

CASES = ((1, 1.0), (2, 10.0), (7, 1.0), (5, 0.1))
"""Numbers of rows, and how wide their values are spread."""


ROWS, STEPS = 3, 5
"""Of a sequence on which recurrent policies are compared."""

DECIDING = 2
"""So many of them are run to see what the original's code decides by."""


class DisagreementError(Exception):
    """An export does not give what the original gives."""


class OwnWordsError(DisagreementError):
    """What is exported is not what the original says of its actions by its own methods."""


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
        self._own = own = model.wrap(core)
        self._cases = []
        for count, spread in CASES:
            arrays = [given.rows(count, random, spread) for given in model.inputs]
            observed = tuple(tensor.to(device) for tensor in model.observed(arrays))
            seed()
            self._cases.append(_Case(arrays, observed, _expected(model, own, observed)))

    def decisions(self) -> list[str]:
        """Lines of the original's code that decide by what is in the inputs; see `relevo.export.decisions`."""
        if isinstance(self._core, torch.jit.ScriptModule):
            return []  # it stays as it is in a trace around it
        own = self._model.wrap(self._core)
        found: dict[str, None] = {}
        for case in self._cases[:DECIDING]:
            seed()
            found |= dict.fromkeys(decisions(own, case.observed))
        return list(found)

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
            largest = max(largest, _largest(pairs, tolerance, DisagreementError))
            if self._model.witness is not None:
                pairs = self._model.witness(self._core, case.observed, found)
                largest = max(largest, _largest(pairs, tolerance, OwnWordsError))
        return max(largest, self._over_steps(run, tolerance))

    def _over_steps(
        self, run: Callable[[list[npt.NDArray[Any]]], Mapping[str, torch.Tensor]], tolerance: float
    ) -> float:
        """As `largest_difference`, where each goes on from the states that it gave itself."""
        states = [given for given in self._model.inputs if given.is_state]
        if not states or any(next_name(state.name) not in self._model.outputs for state in states):
            return 0.0
        random, largest = np.random.default_rng(0), 0.0
        start = {state.name: np.zeros_like(state.rows(ROWS, random)) for state in states}
        ours, theirs = start, start
        for step in range(1, STEPS + 1):
            rows = {given.name: given.rows(ROWS, random) for given in self._model.inputs}
            seed()
            observed = self._model.observed(list((rows | ours).values()))
            expected = _expected(self._model, self._own, tuple(tensor.to(self.device) for tensor in observed))
            seed()
            found = run(list((rows | theirs).values()))
            pairs = [(f"`{name}` of step {step}", own, found[name]) for name, own in expected.items()]
            # Of step by step, differences add up.
            largest = max(largest, _largest(pairs, tolerance * step, DisagreementError) / step)
            ours = {state.name: expected[next_name(state.name)].cpu().numpy() for state in states}
            theirs = {state.name: found[next_name(state.name)].cpu().numpy() for state in states}
        return largest


def _largest(pairs: list[Pair], tolerance: float, error: type[DisagreementError]) -> float:
    largest = 0.0
    for what, expected, own in pairs:
        difference = _difference(what, expected, own)
        if not difference <= tolerance:
            raise error(f"{what} differs by {difference:.2g} for {len(expected)} rows; {tolerance:.2g} may be")
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
        raise UnsuitableInputError(
            f"{type(model.core).__name__} fails on {shapes}: {error}{_about_weights(own)}{_about_arguments(error)}"
        ) from error
    if len(results) != len(model.outputs):
        raise ConfigError(
            f"{type(model.core).__name__} gives {len(results)} tensors, where {len(model.outputs)} are named: "
            f"{', '.join(model.outputs)}"
        )
    return dict(zip(model.outputs, results, strict=True))


def _about_arguments(error: Exception) -> str:
    """What to do about arguments that are not observed."""
    if "missing" not in str(error) or "positional argument" not in str(error):
        return ""
    return '. Where that is a state, say so: to_onnx(…, states={"h": (1, 64)}), the shape of one actor'


def _about_weights(own: nn.Module) -> str:
    """What to do about weights of another type than float32."""
    types = {str(weight.dtype).removeprefix("torch.") for weight in own.parameters() if weight.is_floating_point()}
    others = sorted(types - {"float32"})
    if not others:
        return ""
    return (
        f". Observations come as float32, but its weights are {' and '.join(others)}: give a float32 copy, "
        "copy.deepcopy(module).float()"
    )


def _difference(what: str, expected: torch.Tensor, found: torch.Tensor) -> float:
    """The largest |found - expected| / (1 + |expected|). NaN is alike, and so is infinity."""
    if expected.shape != found.shape:
        raise DisagreementError(f"{what} has the shape {tuple(found.shape)} instead of {tuple(expected.shape)}")
    expected, found = expected.double().cpu(), found.double().cpu()
    same = (expected == found) | (expected.isnan() & found.isnan())
    apart = ((found - expected).abs() / (1 + expected.abs()))[~same]
    return float(apart.nan_to_num(nan=torch.inf).amax()) if apart.numel() else 0.0
