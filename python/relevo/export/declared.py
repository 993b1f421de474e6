"""What an export writes into its file about the policy, which the engine reads when it loads it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relevo.export.torch_model import TorchModel

FILE = "relevo.json"
"""The name of the extra file of TorchScript, and the key in the metadata of ONNX."""


def declared(model: TorchModel, names: Sequence[str], *, with_types: bool) -> str:
    """Bounds of the actions and statistics of the observations, as JSON. `names` are those of the inputs in the file.

    TorchScript does not tell types and shapes of its inputs; `with_types` has them, too.
    """
    statistics = zip(names, model.statistics or (None,) * len(names), strict=True)
    told: dict[str, Any] = {
        "bounds": model.bounds and model.bounds.as_dict(),
        "normalization": {name: own.as_dict() for name, own in statistics if own is not None},
    }
    if with_types:
        told["inputs"] = {
            name: {"dtype": given.dtype.name, "row_shape": list(given.row_shape)}
            for name, given in zip(names, model.inputs, strict=True)
        }
    return json.dumps(told)
