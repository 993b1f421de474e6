import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy.typing as npt

from relevo._core.contract import Contract

@final
class ModelModule:
    """A loaded model file: tensors in, tensors out."""

    @staticmethod
    def load_from_path(
        path: str | os.PathLike[str],
        *,
        threads: int = 1,
        device: str | None = None,
        roles: Mapping[str, str] | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> ModelModule:
        """Loads `path` and infers its contract.

        Args:
            path: an `.onnx` file; a TorchScript file (`.pt`, `.pth`, `.ts`) where `relevo[torch]` is installed; or a
                folder with a `metadata.json` as RelayRL 0.5 writes it.
            threads: threads that one forward pass may use; 1 is right when many actors share the machine.
            device: where it runs: `"cpu"`, `"cuda"`, `"cuda:1"`, `"coreml"`. None is what `metadata.json` says, or else
                the CPU.
            roles: overrides what inputs and outputs are taken for, by name; `state:NAME` says of an input that it is a
                state, and which output gives its next value.
            shapes: the shape of one row of inputs, by name, where the file does not declare it.

        Raises:
            ModelLoadError: the file, or the library that runs it, cannot be loaded.
            DeviceUnavailableError: the device is not usable here.
            ConfigError: a role or a name in `roles` is not known.
        """

    @staticmethod
    def load_from_bytes(
        data: bytes,
        *,
        name: str = "bytes",
        threads: int = 1,
        device: str = "cpu",
        roles: Mapping[str, str] | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> ModelModule:
        """Loads a model that is in memory: the bytes of an exported file. Its format is told by how they begin.

        Args:
            data: what the file would hold. Weights kept in files beside an ONNX file are not found.
            name: what errors and `path` call it.
            threads: as for `load_from_path`, like the rest.
            device: where it runs.
            roles: overrides what inputs and outputs are taken for, by name.
            shapes: the shape of one row of inputs, by name.

        Raises:
            ModelLoadError: the bytes, or the library that runs them, cannot be loaded.
            DeviceUnavailableError: the device is not usable here.
            ConfigError: a role or a name in `roles` is not known.
        """

    @property
    def path(self) -> Path:
        """Where it was loaded from."""

    @property
    def format(self) -> str:
        """`"onnx"`, `"torchscript"`, or that of another package's backend."""

    @property
    def sha256(self) -> str:
        """Hash of the file, in hexadecimal."""

    @property
    def contract(self) -> Contract:
        """What the model takes and gives."""

    def forward(self, inputs: Mapping[str, npt.ArrayLike]) -> dict[str, npt.NDArray[Any]]:
        """Raw tensors by name, one call, no actor.

        Raises:
            ContractError: an input is missing, unknown, or of another shape or dtype, or has no rows.
            InferenceError: the model failed.
        """
