"""Tensors on the policy's device: what the backend makes of a table's devices, and what becomes of torch's."""

from __future__ import annotations

import ctypes
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
import relevo_torch
import torch
from backend_sites import LINEAR, SOURCES, run, site
from torch import nn

import relevo

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here")


class Text(ctypes.Structure):
    _fields_ = (("data", ctypes.c_char_p), ("size", ctypes.c_size_t))


class Failure(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("message", Text))


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 4),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


Handle = ctypes.c_void_p
Failed = ctypes.POINTER(Failure)
SizeArray = ctypes.POINTER(ctypes.c_size_t)


class Source(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("path", Text), ("bytes", Text))


class Options(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("device", Text),
        ("threads", ctypes.c_size_t),
        ("shapes", ctypes.c_void_p),
        ("shape_count", ctypes.c_size_t),
    )


class Table(ctypes.Structure):
    """`relevo_backend`, as far as it is used here."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("abi_version", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("format", Text),
        ("version", Text),
        ("accepts", ctypes.c_void_p),
        ("recognises", ctypes.c_void_p),
        (
            "load",
            ctypes.CFUNCTYPE(
                Failed,
                ctypes.c_void_p,
                ctypes.POINTER(Source),
                ctypes.POINTER(Options),
                ctypes.POINTER(Handle),
            ),
        ),
        ("describe", ctypes.c_void_p),
        ("session", ctypes.CFUNCTYPE(Failed, Handle, ctypes.POINTER(Handle))),
        (
            "forward",
            ctypes.CFUNCTYPE(
                Failed,
                Handle,
                ctypes.POINTER(Tensor),
                ctypes.c_size_t,
                SizeArray,
                ctypes.POINTER(Tensor),
                ctypes.c_size_t,
                ctypes.c_void_p,
                ctypes.c_void_p,
            ),
        ),
        ("release_session", ctypes.CFUNCTYPE(None, Handle)),
        ("release_model", ctypes.CFUNCTYPE(None, Handle)),
        ("release_failure", ctypes.CFUNCTYPE(None, Failed)),
    )


class Session:
    """A session behind the backend's table, on the CPU."""

    def __init__(self, path: Path) -> None:
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        self.capsule = relevo_torch.backend()
        self.table = Table.from_address(pointer(self.capsule, b"relevo.model_backend.v1"))
        name = str(path).encode()
        source = Source(ctypes.sizeof(Source), Text(name, len(name)), Text(None, 0))
        options = Options(ctypes.sizeof(Options), Text(b"cpu", 3), 1, None, 0)
        model, self.handle = Handle(), Handle()
        assert not self.table.load(self.table.context, source, options, model)
        assert not self.table.session(model, self.handle)
        self.table.release_model(model)

    def forward(self, given: Tensor, output: Tensor) -> str | None:
        """What the failure says, if it failed."""
        wanted = (ctypes.c_size_t * 1)(0)
        failed = self.table.forward(self.handle, given, 1, wanted, output, 1, None, None)
        if not failed:
            return None
        message = failed.contents.message
        text = ctypes.string_at(message.data, message.size).decode()
        self.table.release_failure(failed)
        return text


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    path = tmp_path / "double.pt"

    class Double(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((3,), 2.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight

    torch.jit.script(Double()).save(str(path))
    made = Session(path)
    yield made
    made.table.release_session(made.handle)


def described(array: np.ndarray[Any, Any], device: tuple[int, int], offset: int = 0) -> Tensor:
    sizes = (ctypes.c_int64 * 2)(*array.shape)
    strides = (ctypes.c_int64 * 2)(*(stride // array.itemsize for stride in array.strides))
    float32 = (ctypes.c_uint8 * 4)(2, 32, 1, 0)
    address = array.ctypes.data - offset
    return Tensor(address, (ctypes.c_int32 * 2)(*device), 2, float32, sizes, strides, offset)


def test_the_backend_reads_inputs_where_they_lie(session: Session) -> None:
    output = np.zeros((2, 3), np.float32)
    given = np.arange(12, dtype=np.float32).reshape(3, 4).T[1:3]
    assert session.forward(described(given, (1, 0), offset=4), described(output, (1, 0))) is None
    np.testing.assert_array_equal(output, given * 2)


@pytest.mark.parametrize(
    ("device", "why"), [((2, 0), "an input lies on cuda:0, but the model runs on cpu"), ((8, 0), "DLPack's kind 8")]
)
def test_the_backend_refuses_memory_of_other_devices(session: Session, device: tuple[int, int], why: str) -> None:
    array = np.zeros((2, 3), np.float32)
    told = session.forward(described(array, device), described(array.copy(), (1, 0)))
    assert told is not None
    assert why in told
    assert session.forward(described(array, (1, 0)), described(array.copy(), (1, 0))) is None


def test_a_tensor_of_torch_stays_on_the_device(tmp_path: Path) -> None:
    folder = site(tmp_path / "site", "-DGPU")
    shutil.copy(SOURCES / "far_tensors.py", folder)
    model = folder / "policy.linear"
    model.write_text(LINEAR)
    code = """
        import contextlib, ctypes, json, os, sys
        import numpy as np
        import torch
        import relevo
        import far_tensors, linear_backend

        class Far(torch.Tensor):
            '''Says that it lies on the GPU; answers go to `meta`, to which any tensor can be copied.'''
            device = torch.device("meta")
            copies = 0
            exports = True
            def __dlpack_device__(self):
                return far_tensors.GPU
            def __dlpack__(self, **options):
                if self.requires_grad:
                    raise BufferError("it has a gradient")
                if not Far.exports:
                    raise BufferError("it is not on the current device")
                return far_tensors.capsule(self.as_subclass(torch.Tensor).numpy())
            def cpu(self):
                Far.copies += 1
                return self.as_subclass(torch.Tensor).clone()

        library = os.path.join(os.path.dirname(linear_backend.__file__), "liblinear.so")
        in_place = ctypes.CDLL(library).linear_in_place
        values = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        spoilt = values.clone()
        spoilt[1, 1] = float("nan")

        def builder():
            made = relevo.AgentBuilder().default_device("cuda:0").default_model(sys.argv[1], head="raw")
            return made.actor_count(2).keep_in_memory(0)

        told = []
        with builder().build() as agent:
            actors = agent.actors()
            for given in (values, values.T.contiguous().T, spoilt, values.clone().requires_grad_()):
                before, Far.copies = in_place(), 0
                try:
                    batch = actors.act(given.as_subclass(Far))
                    answer = [batch.action.device.type, np.asarray(batch).tolist()]
                except relevo.ContractError as error:
                    answer = str(error)
                told.append([in_place() - before, Far.copies, answer])
        with builder().keep_in_memory(2).build() as agent:
            before, Far.copies = in_place(), 0
            agent.actors().act(values.as_subclass(Far))
            told.append([in_place() - before, Far.copies])
        @contextlib.contextmanager
        def current(device):
            assert device == Far.device
            Far.exports = True
            yield
            Far.exports = False

        torch.cuda.device, Far.exports = current, False
        with builder().build() as agent:
            before, Far.copies = in_place(), 0
            agent.actors().act(values.as_subclass(Far))
            told.append([in_place() - before, Far.copies, Far.exports])
        print(json.dumps(told))
    """
    plain, strided, spoilt, graded, recorded, elsewhere = json.loads(run(folder, code, str(model)))
    actions = [[1.5, 2, 2.5], [4.5, 5, 5.5]]
    assert plain == [1, 0, ["meta", actions]]
    assert strided == [1, 0, ["meta", actions]], "torch makes it contiguous where it is"
    assert spoilt[:2] == [0, 1]
    assert "holds NaN at element 1" in spoilt[2]
    assert graded[:2] == [0, 1]
    assert "grad" in graded[2]
    assert recorded == [1, 1]
    assert elsewhere == [1, 0, False], "torch exports from its current device alone, so that is changed for it"


def saved(path: Path, backend: str, dtype: torch.dtype) -> Path:
    """A model that gives twice what it observes."""
    if backend == "onnx":
        return models.linear(path / "policy.onnx", np.eye(3) * 2)

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3, bias=False)
            self.linear.weight = nn.Parameter(torch.eye(3) * 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x)

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding.from_pretrained(torch.arange(12.0)[:, None] * 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.table(x).squeeze(-1)

    module = Twice() if dtype.is_floating_point else Table()
    torch.jit.trace(module.eval(), torch.zeros(2, 3, dtype=dtype)).save(str(path / "policy.pt"))
    return path / "policy.pt"


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=CUDA)])
@pytest.mark.parametrize(
    ("backend", "dtype"), [("onnx", torch.float32), ("torchscript", torch.float32), ("torchscript", torch.int64)]
)
def test_a_tensor_is_read_where_it_lies(
    tmp_path: Path, device: str, backend: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = dict(relevo._core.devices()[backend])[device]
    if fault is not None:
        pytest.skip(f"{backend} cannot use {device}: {fault}")
    shapes = None if dtype.is_floating_point else {"x": (3,)}
    model = relevo.ModelModule.load_from_path(saved(tmp_path, backend, dtype), device=device, shapes=shapes)
    copies = []
    copy = torch.Tensor.cpu

    def counted(tensor: torch.Tensor) -> torch.Tensor:
        copies.append(tensor.shape)
        return copy(tensor)

    monkeypatch.setattr(torch.Tensor, "cpu", counted)
    once = int(device != "cpu")
    observations = torch.arange(12, device=device).reshape(4, 3).to(dtype)
    expected = observations.float() * 2
    builder = relevo.AgentBuilder().default_model(model, head="raw").actor_count(4)
    with builder.keep_in_memory(0).build() as agent:
        actors = agent.actors()
        for stream in [None, torch.cuda.Stream()] if once else [None]:
            with torch.cuda.stream(stream):
                # The pass must wait for what is still being worked out.
                slow = torch.linalg.matrix_power(torch.eye(1024, device=device), 50)[:4, :3] * 0
                action = torch.as_tensor(
                    actors.act((slow + torch.arange(12, device=device).reshape(4, 3)).to(dtype)).action
                )
                assert action.device == observations.device
                torch.testing.assert_close(action, expected)
        assert copies == []
        if dtype.is_floating_point:
            spoilt = observations.clone()
            spoilt[2, 1] = float("nan")
            with pytest.raises(relevo.ContractError, match="holds NaN at element 1"):
                actors.act(spoilt)
            assert len(copies) == once
    copies.clear()
    with builder.keep_in_memory(4).build() as agent:
        torch.testing.assert_close(torch.as_tensor(agent.actors().act(observations).action), expected)
        assert len(copies) == once
        agent.actors().observe(np.ones(4), terminated=True)
        recorded = sorted(episode.observations[0].tolist() for episode in agent.trajectories())
    assert recorded == observations.tolist()
