"""Writing an export: prepared, compared, and put in place."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from relevo._core import ModelModule
from relevo.builder import AgentBuilder
from relevo.errors import ConfigError, ExportError, ModelLoadError
from relevo.export.report import ExportReport
from relevo.settings import checked_bounds

if TYPE_CHECKING:
    from pathlib import Path

    from relevo.settings import Bounds

TORCHSCRIPT = (".pt", ".pth", ".ts", ".jit", ".torchscript")
"""Endings of TorchScript files."""


def write(
    form: Literal["onnx", "torchscript"],
    source: Any,  # noqa: ANN401 : a module, or a model of Stable-Baselines3
    path: Path,
    *,
    given: dict[str, Any],
    bounds: Bounds | None,
    tolerance: float,
) -> ExportReport:
    """Writes `source` as a file of this form; see `relevo.export.to_onnx`."""
    _check_ending(form, path)
    try:
        # A folder of that name, which Python would import as well, has no `nn`.
        from torch import nn  # noqa: F401 : what is imported next needs it
    except ImportError as error:
        raise ExportError(
            f'exporting takes PyTorch ({error}); pip install "relevo[export]" (in a checkout: make demo-torch)'
        ) from None
    from relevo.export import onnx_graph, scripting
    from relevo.export.comparison import Comparison
    from relevo.export.declared import FILE, declared
    from relevo.export.evaluation import evaluating
    from relevo.export.scripting import argument_names
    from relevo.export.source import torch_model
    from relevo.export.weights import fault

    if not path.parent.is_dir():
        raise ConfigError(f"the folder {path.parent} is not there; make it first")
    model = torch_model(source, **given)
    if bounds is not None:
        model = replace(model, bounds=checked_bounds(bounds))
    if (wrong := fault(model.core)) is not None:
        raise ExportError(f"{type(model.core).__name__} {wrong}; nothing was written")
    with evaluating(model.core) as core:
        comparison = Comparison(model, core)
        if form == "onnx":
            data, difference = onnx_graph.exported(model, core, comparison, tolerance)
        else:
            script, difference = scripting.scripted(model, core, comparison, tolerance, "dict")
            about = declared(model, argument_names(model.inputs), with_types=True)
            data = script.save_to_buffer(_extra_files={FILE: about})
    loaded = _loaded(form, data, path.name)
    if bounds is not None and loaded is not None:
        # Bounds that do not fit the actions are refused here, and not by whoever loads the file.
        AgentBuilder().default_model(loaded, bounds=bounds).build()
    _put(data, path)
    normalization = {
        own.name: statistics for own, statistics in zip(model.inputs, model.statistics, strict=False) if statistics
    }
    return ExportReport(path, difference, loaded and loaded.contract, model.bounds, normalization)


def _put(data: bytes, path: Path) -> None:
    """Writes a file under its name at once as a whole: another process may wait for it."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        part.write_bytes(data)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _check_ending(form: Literal["onnx", "torchscript"], path: Path) -> None:
    """Refuses a name by which the file would be taken for one of the other form."""
    for function, other, endings in (("to_onnx", "onnx", (".onnx",)), ("to_torchscript", "torchscript", TORCHSCRIPT)):
        if other != form and path.suffix.lower() in endings:
            own = ".onnx" if form == "onnx" else TORCHSCRIPT[0]
            raise ConfigError(
                f"the file must not end like one of the other format, but is {path.name}; name it {path.stem}{own}, or "
                f"export it by {function}"
            )


def _loaded(form: Literal["onnx", "torchscript"], data: bytes, name: str) -> ModelModule | None:
    try:
        return ModelModule.load_from_bytes(data, name=name)
    except ModelLoadError as error:
        if form == "torchscript" and "pip install" in str(error):
            return None
        raise ExportError(f"Relevo does not load what was exported: {error}") from error
