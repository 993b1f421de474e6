"""`ExportResult`: what an export wrote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class ExportResult:
    """What an export wrote."""

    paths: tuple[Path, ...]
    """The files, or the folder."""
    episodes: int
    """Episodes that were written."""
    steps: int
    """Steps in them."""
    left_out: int = 0
    """Episodes that the format cannot hold, and that are not there."""
