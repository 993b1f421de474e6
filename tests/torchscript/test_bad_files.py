"""Files that are no TorchScript, and devices that are not there."""

from __future__ import annotations

import pickle
import time
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

import relevo


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return (Path.touch, (self.path,))


def refusal(path: Path) -> str:
    begun = time.monotonic()
    with pytest.raises(relevo.ModelLoadError) as caught:
        relevo.ModelModule.load_from_path(path)
    assert time.monotonic() - begun < 5
    told = str(caught.value)
    assert str(path) in told
    return told


@pytest.fixture
def whole(tmp_path: Path) -> bytes:
    path = tmp_path / "whole.pt"
    torch.jit.script(nn.Linear(4, 2).eval()).save(str(path))
    return path.read_bytes()


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    mark, path = tmp_path / "unpickled", tmp_path / "policy.pt"
    path.write_bytes(pickle.dumps(Bomb(mark)))
    assert "it is a pickle" in refusal(path)
    torch.save({"weights": Bomb(mark)}, path)
    assert "written by torch.save" in refusal(path)
    torch.save(nn.Linear(4, 2).state_dict(), path)
    assert "torch.jit.trace" in refusal(path)
    torch.save(nn.Linear(4, 2).state_dict(), path, _use_new_zipfile_serialization=False)
    assert "it is a pickle" in refusal(path)
    assert not mark.exists()


def test_code_in_a_torchscript_pickle_does_not_run(tmp_path: Path, whole: bytes) -> None:
    mark, path = tmp_path / "unpickled", tmp_path / "policy.pt"
    source = tmp_path / "source.pt"
    source.write_bytes(whole)
    with zipfile.ZipFile(source) as archive, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as changed:
        for name in archive.namelist():
            harmful = name.endswith("/data.pkl")
            changed.writestr(name, pickle.dumps(Bomb(mark), 2) if harmful else archive.read(name))
    assert "torch cannot read it" in refusal(path)
    assert not mark.exists()


def test_other_files(tmp_path: Path) -> None:
    path = tmp_path / "policy.pt"
    path.write_bytes(b"")
    assert "the file is empty" in refusal(path)
    path.write_text("hello")
    assert "not a TorchScript archive" in refusal(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("word/document.xml", "hello")
    assert "not one of TorchScript" in refusal(path)
    assert "there is no such file" in refusal(tmp_path / "absent.pt")


def test_truncated_files(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "policy.pt"
    for length in (10, len(whole) // 3, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert "again" in refusal(path)


def test_damaged_files(tmp_path: Path, whole: bytes) -> None:
    path, told = tmp_path / "policy.pt", []
    for at in range(64, len(whole) - 64, len(whole) // 40):
        damaged = bytearray(whole)
        damaged[at : at + 8] = b"\xff" * 8
        path.write_bytes(damaged)
        try:
            relevo.ModelModule.load_from_path(path)
        except relevo.RelevoError as error:
            told.append(str(error))
    assert told
    assert all(str(path) in text for text in told)


def test_from_memory(whole: bytes) -> None:
    assert relevo.ModelModule.load_from_bytes(whole).format == "torchscript"
    with pytest.raises(relevo.ModelLoadError, match=r"cannot load bytes: .*again"):
        relevo.ModelModule.load_from_bytes(whole[:-30])


@pytest.mark.parametrize(
    ("device", "there"),
    [
        ("cuda", torch.cuda.is_available()),
        ("cuda:99", False),
        ("mps", torch.backends.mps.is_available()),
        ("tpu", False),
    ],
)
def test_devices_that_are_not_there(tmp_path: Path, whole: bytes, device: str, there: bool) -> None:
    if there:
        pytest.skip(f"this machine has {device}")
    path = tmp_path / "policy.pt"
    path.write_bytes(whole)
    with pytest.raises(relevo.DeviceUnavailableError, match=rf"on the device `{device}`, but .*cpu"):
        relevo.ModelModule.load_from_path(path, device=device)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
def test_a_cuda_device_gives_what_the_cpu_gives(tmp_path: Path, whole: bytes) -> None:
    import numpy as np

    path = tmp_path / "policy.pt"
    path.write_bytes(whole)
    x = np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32)
    there, here = (relevo.ModelModule.load_from_path(path, device=device) for device in ("cuda:0", "cpu"))
    np.testing.assert_allclose(
        there.forward({"input": x})["output_0"], here.forward({"input": x})["output_0"], atol=1e-4
    )


@pytest.mark.parametrize("frozen", [False, True])
def test_weights_with_nan(tmp_path: Path, frozen: bool) -> None:
    module, path = nn.Linear(4, 2).eval(), tmp_path / "policy.pt"
    module.weight.data[0, 0] = torch.nan
    script = torch.jit.script(module)
    (torch.jit.freeze(script) if frozen else script).save(str(path))
    assert "holds NaN (1 of 8 numbers)" in refusal(path)
    assert "export an earlier checkpoint" in refusal(path)


def test_memory_may_begin_with_nan(tmp_path: Path) -> None:
    class Previous(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)
            self.register_buffer("previous", torch.full((1, 4), torch.nan))
            self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x + self.previous.nan_to_num()) + self.mask
            self.previous = x.clone()
            return y

    path = tmp_path / "policy.pt"
    torch.jit.script(Previous().eval()).save(str(path))
    assert relevo.ModelModule.load_from_path(path).contract.recurrent


def test_a_declaration_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "policy.pt"
    for text in ("{", "[]", '{"inputs": {"input": {"dtype": "text", "row_shape": [4]}}}'):
        torch.jit.script(nn.Linear(4, 2).eval()).save(str(path), _extra_files={"relevo.json": text})
        told = refusal(path)
        assert "relevo.json" in told
        assert "export it again" in told
