"""`ExportReport`: what an export wrote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from relevo._core import Contract
    from relevo.settings import Bounds


@dataclass(frozen=True)
class ExportReport:
    """What an export wrote, and how it compares with the original."""

    path: Path
    largest_difference: float
    """The largest |exported - original| / (1 + |original|) over random rows, in batches of several sizes."""
    contract: Contract | None
    """What Relevo takes the file for; None for TorchScript where `relevo[torch]` is not installed."""
    bounds: Bounds | None
    """For `default_model(path, bounds=…)`: what brings actions into the environment's space; None where they are."""

    @property
    def roles(self) -> dict[str, str]:
        """Roles of the inputs and outputs, by name."""
        tensors = (*self.contract.inputs, *self.contract.outputs) if self.contract else ()
        return {tensor.name: tensor.role for tensor in tensors}

    @property
    def default_head(self) -> str | None:
        """How actions come from the outputs where no head is given."""
        return self.contract.default_head if self.contract else None
