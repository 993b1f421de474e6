"""TorchScript of a `TorchModel`: traced, or scripted where a trace does not do what the original does."""

from __future__ import annotations

import functools
import inspect
import re
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch
from torch import nn

from relevo.errors import ExportError
from relevo.export.comparison import Comparison, DisagreementError, OwnWordsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from relevo.export.inputs import Input
    from relevo.export.torch_model import TorchModel

Results: TypeAlias = Literal["dict", "tuple"]
"""How results come: a dict keeps their names, a tuple is what ONNX takes."""

EXAMPLE_ROWS = 3

STATE_WORDS = ("hidden", "recurrent", "memory", "lstm")
"""By these, among others, relevo-torch knows the name of a state."""


def scripted(
    model: TorchModel, core: nn.Module, comparison: Comparison, tolerance: float, results: Results
) -> tuple[torch.jit.ScriptModule, float]:
    """A TorchScript module that was compared with the original, and the largest difference.

    Raises:
        ExportError: neither a trace nor a script agrees with the original.
    """
    reasons = []
    decided = comparison.decisions()
    if decided:
        reasons.append(f"a trace would keep one answer to what its code asks of its inputs, in {', '.join(decided)}")
    for how in ("scripted",) if decided else ("traced", "scripted"):
        try:
            # What is scripted keeps its branches in a trace around it.
            inner = core if how == "traced" else torch.jit.script(core)
            script = trace(named(model, inner, results), model, comparison.device)
            return script, comparison.largest_difference(runner(model, script, comparison.device), tolerance)
        except OwnWordsError as error:
            # What is exported is right, but it is not the policy.
            raise ExportError(
                f"{type(model.core).__name__} is exported otherwise than it acts: {error}{model.supported}"
            ) from None
        except DisagreementError as error:
            reasons.append(f"{how}, {error}")
        except Exception as error:  # noqa: BLE001 : the module's own code and torch's raise what they like
            reasons.append(f"{how}, it fails: {_first_line(error)}")
    raise ExportError(
        f"{type(model.core).__name__} becomes no TorchScript that gives what it gives: {'; '.join(reasons)}. Results "
        "must depend on the inputs alone, and branches on values need torch.where, or code that torch.jit.script takes"
    )


def trace(module: nn.Module, model: TorchModel, device: str) -> torch.jit.ScriptModule:
    """Runs the module once on random rows, and gives what it did as TorchScript."""
    random = np.random.default_rng(1)
    examples = tuple(torch.from_numpy(given.rows(EXAMPLE_ROWS, random)).to(device) for given in model.inputs)
    return torch.jit.trace(module, examples, check_trace=False, strict=False)


def runner(
    model: TorchModel, script: torch.jit.ScriptModule, device: str
) -> Callable[[list[npt.NDArray[Any]]], Mapping[str, torch.Tensor]]:
    """A function from arrays to tensors by name."""

    def run(arrays: list[npt.NDArray[Any]]) -> Mapping[str, torch.Tensor]:
        # Unoptimised: optimising takes longer than the few passes.
        with torch.jit.optimized_execution(False):
            results = script(*(torch.from_numpy(array).to(device) for array in arrays))
        return results if isinstance(results, dict) else dict(zip(model.names, _as_tuple(results), strict=True))

    return run


def argument_names(inputs: Sequence[Input]) -> list[str]:
    """Names of inputs, as arguments may be called. Those of states say so, by which their axis of rows is found."""
    names = [re.sub(r"^(?=\d)|\W", "_", given.name) for given in inputs]
    return [
        f"hidden_{name}" if given.is_state and not any(word in name for word in STATE_WORDS) else name
        for given, name in zip(inputs, names, strict=True)
    ]


def named(model: TorchModel, core: nn.Module, results: Results) -> nn.Module:
    """The module to trace, whose arguments, and results in a dict, have the model's names."""

    def forward(self: Any, *tensors: torch.Tensor) -> Any:  # noqa: ANN401
        if results == "dict":
            tensors = tuple(_typed(*pair) for pair in zip(model.inputs, tensors, strict=True))
        found = self.module(*tensors)
        if results == "dict":
            return dict(zip(model.names, found, strict=True))
        return found if len(found) > 1 else found[0]

    names = ["self", *argument_names(model.inputs)]
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    # Tracing takes the names of arguments from here.
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return type("Policy", (_Named,), {"forward": forward})(model.exported(core))


def _typed(given: Input, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, where the file is to refuse other types: whoever loads it tries float32 first, and casts masks."""
    if given.is_mask or tensor.dtype == torch.float32:
        return tensor
    checked: torch.Tensor = _check()(tensor, tensor.dtype)
    return checked


@functools.cache
def _check() -> Any:  # noqa: ANN401 : a scripted function
    # Compiled when it is needed, as torch warns of it.
    return torch.jit.script(_refuse_others)


def _refuse_others(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Refuses other types of numbers: the file itself does not say it, and so a first pass shows the type."""
    if tensor.dtype != dtype:
        raise ValueError("another type of numbers was expected")
    return tensor


class _Named(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def _as_tuple(results: Any) -> tuple[torch.Tensor, ...]:  # noqa: ANN401
    return (results,) if isinstance(results, torch.Tensor) else tuple(results)


def _first_line(error: Exception) -> str:
    lines = (line.strip() for line in str(error).splitlines())
    told = [line for line in lines if line] or [type(error).__name__]
    # Before the reason come the lines of the code.
    return told[-1 if any(line.startswith("Traceback of TorchScript") for line in told) else 0]
