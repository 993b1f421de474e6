"""`ExportReport`: what an export wrote."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from relevo._core import Contract
    from relevo.settings import Bounds, Normalization


@dataclass(frozen=True)
class ExportReport:
    """What an export wrote, and how it compares with the original."""

    path: Path
    largest_difference: float
    """The largest |exported - original| / (1 + |original|) over random rows, in batches of several sizes."""
    contract: Contract | None
    """What Relevo takes the file for; None for TorchScript where `relevo[torch]` is not installed."""
    bounds: Bounds | None
    """What brings actions into the environment's space, as the file says from now on; None where nothing is known."""
    normalization: Mapping[str, Normalization] = field(default_factory=dict)
    """Statistics that went into the file, by observation; empty where it takes observations as the model itself."""

    def __str__(self) -> str:
        """What was written, in lines."""
        statistics = ", ".join(f"{name}: {own}" for name, own in self.normalization.items())
        return "\n".join(
            (
                f"{self.path}: differs from the original by {self.largest_difference:.2g} at most",
                f"  normalisation: {statistics or 'none went in'}",
                f"  bounds: {self.bounds or 'none'}",
                f"  default head: {self.default_head or 'not known'}",
            )
        )

    @property
    def roles(self) -> dict[str, str]:
        """Roles of the inputs and outputs, by name."""
        tensors = (*self.contract.inputs, *self.contract.outputs) if self.contract else ()
        return {tensor.name: tensor.role for tensor in tensors}

    @property
    def default_head(self) -> str | None:
        """How actions come from the outputs where no head is given."""
        return self.contract.default_head if self.contract else None
