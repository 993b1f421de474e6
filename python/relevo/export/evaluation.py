"""How a user's module is run without a trace of it in the module."""

from __future__ import annotations

import contextlib
import copy
import warnings
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn


@contextlib.contextmanager
def evaluating(module: nn.Module, device: str = "cpu") -> Iterator[nn.Module]:
    """Gives a copy of the module in eval mode on `device`, without gradients, and keeps torch's random state.

    A module that cannot be copied is run itself where it is, and has its training flags back afterwards.
    """
    with torch.no_grad(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # Tracing warns of itself, and of what is compared afterwards.
        warnings.simplefilter("ignore")
        try:
            own = copy.deepcopy(module).eval().to(device)
        except Exception:  # noqa: BLE001 : attributes of any kind refuse in their own ways
            own = None
        if own is not None:
            yield own
            return
        flags = [(part, part.training) for part in module.modules()]
        try:
            yield module.eval()
        finally:
            for part, training in flags:
                part.training = training


def seed() -> None:
    """Lets the CPU's generator begin anew, so that two runs draw alike."""
    # `torch.manual_seed` would touch those of GPUs as well.
    torch.default_generator.manual_seed(0)
