from typing import Any, final

import numpy as np
import numpy.typing as npt

@final
class ActionBatch:
    """What a call of `act` gives, one row for each actor, in the order of the call.

    `numpy.asarray(batch)` is the action array, and `torch.from_dlpack(batch)` a tensor on its memory. All arrays are
    views of memory that the runtime reuses only once they are gone.

    Where an observation was a PyTorch tensor on another device than the CPU, `action`, `log_prob` and `value` are
    tensors on that device, copied there when they are first asked for.
    """

    @property
    def action(self) -> Any:
        """Actions `[N, …]`, or a dict of such arrays for a policy with actions of several kinds.

        int64 of shape `[N]` from discrete heads, `[N, branches]` where there are several branches; float32 `[N, width]`
        from `gaussian`.

        Within bounds, if the builder was given any; what is recorded is the policy's own action, before it is brought
        into them.
        """

    @property
    def log_prob(self) -> Any:
        """Log-probability of each action under the policy, float32 `[N]`; None where the head tells none."""

    @property
    def value(self) -> Any:
        """The policy's estimate of each observation's value, float32 `[N]`; None where the model has no such output."""

    @property
    def policy_version(self) -> npt.NDArray[np.uint64]:
        """The version of the policy that acted, `[N]`."""

    @property
    def outputs(self) -> dict[str, npt.NDArray[Any]] | None:
        """The model's raw outputs by name.

        None unless the builder was asked to `.keep_outputs()`, and where the actors follow several policies.
        """

    def __len__(self) -> int: ...
    def __getitem__(self, key: Any, /) -> Any: ...
    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]: ...
    def __dlpack__(self, **options: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
