"""Policies of PyTorch and Stable-Baselines3 as files that Relevo runs, verified against the original.

Nothing of PyTorch is imported before a function is called.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from relevo.export import file
from relevo.export.report import ExportReport

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    import stable_baselines3
    import torch

    from relevo.export.inputs import Observation
    from relevo.settings import Bounds, Normalization

    Source: TypeAlias = (
        torch.nn.Module
        | stable_baselines3.common.base_class.BaseAlgorithm
        | stable_baselines3.common.policies.BasePolicy
    )
    Statistics: TypeAlias = Normalization | Mapping[str, Normalization] | stable_baselines3.common.vec_env.VecNormalize

__all__ = ["ExportReport", "to_onnx", "to_torchscript"]


def to_onnx(
    source: Source,
    path: str | os.PathLike[str],
    observation: Observation | None = None,
    *,
    outputs: Sequence[str] | None = None,
    states: Mapping[str, Sequence[int]] | None = None,
    branches: Sequence[int] | None = None,
    normalization: Statistics | None = None,
    bounds: Bounds | None = None,
    tolerance: float = 5e-5,
) -> ExportReport:
    """Writes a policy as an ONNX file, once ONNX Runtime gave what the original gives.

    Args:
        source: a Stable-Baselines3 model or policy; an agent as CleanRL has them, with `get_action_and_value` or with
            `actor` and `critic`; or any module of tensors.
        path: the file. What is there is replaced when the new one is verified.
        observation: a Gymnasium space, or some observations: an array `[N, …]`, or a dict of such by name. A
            Stable-Baselines3 model knows it.
        outputs: names of a module's outputs in their order, from which Relevo takes their roles: `logits`, `mean`,
            `log_std`, `value`, `q_values`, `action`. Not needed where the module gives a dict.
        states: of a recurrent module, the shape of each state of one actor, without the axis of rows, by the name of
            its argument: `{"h": (1, 64)}` for a GRU of one layer, `{"h": (1, 64), "c": (1, 64)}` for an LSTM, whose
            forward may take them as one tuple. It gives their next values behind its outputs, which are in the file as
            `h_out` for `h_in`. Episodes begin with zeros.
        branches: numbers of choices of a multi-discrete action, where the source does not know them.
        normalization: statistics of the observation, or of several by name, that go into the file: a
            `relevo.Normalization` or a `VecNormalize`. A Stable-Baselines3 model brings those of its environment, if it
            has one: `PPO.load(path)` alone has none.
        bounds: what continuous actions are to be brought into, which is written into the file. A Stable-Baselines3
            model knows its own.
        tolerance: how far results may be from the original's, relative plus absolute.

    Raises:
        ExportError: the source has NaN in its weights, cannot be exported, or the file would not give what it gives.
            Nothing is written.
        ConfigError: an argument is missing, or does not fit.
    """
    given = {"observation": observation, "outputs": outputs, "branches": branches, "normalization": normalization}
    given["states"] = states
    return file.write("onnx", source, Path(path), given=given, bounds=bounds, tolerance=tolerance)


def to_torchscript(
    source: Source,
    path: str | os.PathLike[str],
    observation: Observation | None = None,
    *,
    outputs: Sequence[str] | None = None,
    states: Mapping[str, Sequence[int]] | None = None,
    branches: Sequence[int] | None = None,
    normalization: Statistics | None = None,
    bounds: Bounds | None = None,
    tolerance: float = 5e-5,
) -> ExportReport:
    """Writes a policy as a TorchScript file, once that gave what the original gives; see `to_onnx`.

    The policy is traced, and scripted where the trace differs. It gives a dict, which keeps the names of its outputs.
    """
    given = {"observation": observation, "outputs": outputs, "branches": branches, "normalization": normalization}
    given["states"] = states
    return file.write("torchscript", source, Path(path), given=given, bounds=bounds, tolerance=tolerance)
