"""Arrays of other libraries, by DLPack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import models
import numpy as np
import numpy.typing as npt
import pytest

import relevo

CPU, CUDA = (1, 0), (2, 0)


class Tensor:
    """Has nothing but DLPack."""

    def __init__(self, array: npt.NDArray[Any], device: tuple[int, int] = CPU) -> None:
        self.array, self.device = array, device
        self.asked: list[dict[str, Any]] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        self.asked.append(options)
        if self.device != CPU and not (options.get("dl_device") == CPU and options.get("copy")):
            raise BufferError("the memory is on another device")
        return self.array.__dlpack__(**options)


class DeviceTensor(Tensor):
    """Has `__array__` as well, which refuses as torch's does for CUDA."""

    def __array__(self, *_options: Any, **_more: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")


@pytest.fixture
def agent(tmp_path: Path) -> relevo.Agent:
    policy = models.linear(tmp_path / "policy.onnx", np.eye(3))
    return relevo.AgentBuilder().default_model(policy, head="argmax").actor_count(3).build()


def test_observations_and_masks_of_tensors(agent: relevo.Agent) -> None:
    with agent:
        batch = agent.actors().act(Tensor(np.eye(3, dtype=np.float32)))
        assert np.asarray(batch).tolist() == [0, 1, 2]
        mask = Tensor(np.array([[False, True, True]] * 3))
        assert np.asarray(agent.actors().act(Tensor(np.eye(3, dtype=np.float32)), mask)).tolist() == [1, 1, 2]


def test_the_shape_and_the_dtype_are_checked(agent: relevo.Agent) -> None:
    with agent:
        with pytest.raises(relevo.ContractError, match="float64 of shape"):
            agent.actors().act(Tensor(np.eye(3)))
        with pytest.raises(relevo.ContractError, match=r"\(3, 3\)"):
            agent.actors().act(Tensor(np.zeros((2, 3), np.float32)))


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="NumPy asks for another device from 2.1 on")
@pytest.mark.parametrize("kind", [Tensor, DeviceTensor])
def test_a_tensor_of_another_device_is_copied_by_its_owner(agent: relevo.Agent, kind: type[Tensor]) -> None:
    tensor = kind(np.eye(3, dtype=np.float32), CUDA)
    with agent:
        assert np.asarray(agent.actors().act(tensor)).tolist() == [0, 1, 2]
    assert tensor.asked[-1]["dl_device"] == CPU
    assert tensor.asked[-1]["copy"] is True


def test_what_no_library_exports_is_refused(agent: relevo.Agent) -> None:
    class Broken(Tensor):
        def __dlpack__(self, **_options: Any) -> Any:
            raise BufferError("it requires grad")

    with agent, pytest.raises(relevo.ContractError, match="it requires grad"):
        agent.actors().act(Broken(np.eye(3, dtype=np.float32)))


def test_actions_are_handed_on_by_dlpack(agent: relevo.Agent) -> None:
    with agent:
        batch = agent.actors().act(np.eye(3, dtype=np.float32))
        assert batch.__dlpack_device__() == CPU
        actions = np.from_dlpack(batch)
        assert np.shares_memory(actions, np.asarray(batch))
        del batch
        agent.actors().act(np.zeros((3, 3), np.float32))
        assert actions.tolist() == [0, 1, 2]
