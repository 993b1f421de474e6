"""What is wrong with the numbers of a module."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


def fault(module: nn.Module) -> str | None:
    """What is wrong with a module's weights and buffers, and what to do; None where nothing is."""
    from torch.nn.parameter import is_lazy

    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    lazy = [name for name, tensor in tensors.items() if is_lazy(tensor)]
    if lazy:
        return (
            f"has {len(lazy)} weights without a shape yet, the first of which is {lazy[0]}: it is lazy. Call it once "
            "on observations, which gives them their shapes and values"
        )
    empty = [name for name, tensor in tensors.items() if tensor.device.type == "meta"]
    if empty:
        return (
            f"has no values in {len(empty)} of its weights, the first of which is {empty[0]}: they lie on the device "
            "`meta`. Give them values by module.to_empty(device=…) and module.load_state_dict(…)"
        )
    bad = [name for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.isnan().any()]
    if bad:
        return (
            f"has NaN in {len(bad)} of its weights, the first of which is {bad[0]}. Look at the learning rate, or for "
            "a division by zero in the loss"
        )
    return None
