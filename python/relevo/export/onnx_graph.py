"""ONNX of a `TorchModel`."""

from __future__ import annotations

import io
import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from relevo.errors import ExportError
from relevo.export.comparison import DisagreementError
from relevo.export.declared import FILE, declared
from relevo.export.scripting import EXAMPLE_ROWS, scripted

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt
    from torch import nn

    from relevo.export.comparison import Comparison
    from relevo.export.torch_model import TorchModel

OPSET = 17
"""Old enough for the runtimes of phones and robots, new enough for layer normalisation."""


def exported(model: TorchModel, core: nn.Module, comparison: Comparison, tolerance: float) -> tuple[bytes, float]:
    """The bytes of an ONNX file, run by ONNX Runtime and compared with the original, and the largest difference.

    Raises:
        ExportError: torch exports no such graph, or it does not give what the original gives.
    """
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise ExportError(f'writing ONNX files takes more packages ({error}); pip install "relevo[export]"') from None
    script, _ = scripted(model, core, comparison, tolerance, "tuple")
    graph = onnx.load_model_from_string(_graph(model, script, comparison))
    about = declared(model, [given.name for given in model.inputs], with_types=False)
    graph.metadata_props.add(key=FILE, value=about)
    data = graph.SerializeToString()
    try:
        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])

        def run(arrays: list[npt.NDArray[Any]]) -> Mapping[str, torch.Tensor]:
            given = dict(zip((own.name for own in model.inputs), arrays, strict=True))
            return dict(zip(model.names, map(torch.from_numpy, session.run(list(model.names), given)), strict=True))

        return data, comparison.largest_difference(run, tolerance)
    except DisagreementError as error:
        raise ExportError(f"the ONNX graph does not give what {type(model.core).__name__} gives: {error}") from None
    except Exception as error:
        raise ExportError(f"ONNX Runtime cannot run the graph of {type(model.core).__name__}: {error}") from error


def _graph(model: TorchModel, script: torch.jit.ScriptModule, comparison: Comparison) -> bytes:
    random = np.random.default_rng(1)
    examples = tuple(torch.from_numpy(given.rows(EXAMPLE_ROWS, random)) for given in model.inputs)
    batch = {given.name: {given.batch_axis: "batch"} for given in model.inputs}
    axes = {name: comparison.row_axis(name) for name in model.names}
    batch |= {name: {axis: "batch"} for name, axis in axes.items() if axis is not None}
    buffer = io.BytesIO()
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        # From the trace, which was compared already: in milliseconds, where torch.export takes seconds and a compiler's
        # packages, and rejects what branches on shapes.
        torch.onnx.export(
            script,
            examples,
            buffer,
            dynamo=False,
            opset_version=OPSET,
            input_names=[given.name for given in model.inputs],
            output_names=list(model.names),
            dynamic_axes=batch,
        )
    except Exception as error:
        raise ExportError(f"torch exports no ONNX graph of {type(model.core).__name__}: {error}") from error
    finally:
        log.setLevel(before)
    return buffer.getvalue()
