"""How an agent records: what `AgentBuilder.record` was told."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from relevo.checks import seconds, whole_number
from relevo.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

Compression: TypeAlias = Literal["none", "lz4", "zstd"]
Format: TypeAlias = Literal["arrow", "csv"]
Fsync: TypeAlias = Literal["never", "segment", "batch"]
OnFailure: TypeAlias = Literal["continue", "stop"]


@dataclass(frozen=True)
class RecordSettings:
    """The run folder, and how it is written; see `AgentBuilder.record`."""

    folder: Path
    format: Format
    compression: Compression
    fsync: Fsync
    segment_bytes: int
    segment_seconds: float
    resume: bool
    on_failure: OnFailure

    def __post_init__(self) -> None:
        """Checks what was given."""
        words_of = {"format": Format, "compression": Compression, "fsync": Fsync, "on_failure": OnFailure}
        for name, known in words_of.items():
            given = getattr(self, name)
            if given not in get_args(known):
                words = ", ".join(f'"{word}"' for word in get_args(known))
                msg = f"{name} must be one of {words}, but is {given!r}"
                raise ConfigError(msg)
        if self.format == "csv" and self.compression != "none":
            msg = f"CSV files are not compressed, but compression is {self.compression!r}; leave it out, or use arrow"
            raise ConfigError(msg)
        whole_number("segment_bytes", self.segment_bytes, 1)
        seconds("segment_seconds", self.segment_seconds, may_be_zero=False)

    def as_dict(self) -> dict[str, Any]:
        """What `run.json` tells of it."""
        return {name: value for name, value in asdict(self).items() if name not in {"folder", "resume"}}
