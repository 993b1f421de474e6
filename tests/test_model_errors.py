"""Files that cannot be loaded: the error names the file, the cause and the next step, within seconds."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import fixed_batch_graphs
import models
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import relevo

SECONDS = 5
"""More than loading may take, even on a busy machine."""


def refusal(path: Path) -> str:
    begun = time.perf_counter()
    with pytest.raises(relevo.ModelLoadError) as caught:
        relevo.ModelModule.load_from_path(path)
    assert time.perf_counter() - begun < SECONDS
    message = str(caught.value)
    assert message.startswith(f"cannot load {path}: ")
    assert "\n" not in message
    assert "; " in message, "the next step is missing"
    return message


def edited(path: Path, edit: str, value: object) -> Path:
    """A small model, with one thing in it changed."""
    model = onnx.load(str(models.linear(path, np.eye(2))))
    if edit == "opset":
        model.opset_import[0].version = value  # type: ignore[assignment]
    elif edit == "ir":
        model.ir_version = value  # type: ignore[assignment]
    elif edit == "operator":
        model.graph.node[0].op_type = value  # type: ignore[assignment]
    elif edit == "domain":
        model.graph.node[0].domain = value  # type: ignore[assignment]
        model.opset_import.append(helper.make_opsetid(value, 1))
    else:
        model.graph.output[0].name = value  # type: ignore[assignment]
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "the file is empty"),
        (b"This is a text, and no model.\n", "it is not an ONNX file, or is cut short"),
        (b'{"model": "policy"}', "it is not an ONNX file"),
        (bytes(1000), "it is not an ONNX file"),
    ],
)
def test_what_is_no_onnx_file(content: bytes, cause: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.onnx"
    path.write_bytes(content)
    message = refusal(path)
    assert cause in message
    assert "export the model again" in message


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"PK\x03\x04" + bytes(60), "a zip archive, not an ONNX file"),
        (b"PK\x03\x04p/data.pkl" + bytes(60) + b"p/code/__torch__.py", "TorchScript archive, .*; name it .pt"),
        (b"PK\x03\x04p/data.pkl" + bytes(60) + b"p/data/0", "written by torch.save, .* relevo.export.to_onnx"),
        (b"\x80\x04\x95" + bytes(60), "a pickle, .* relevo.export.to_onnx"),
        (b"\x89HDF\r\n\x1a\n" + bytes(60), "an HDF5 file, .* tf2onnx"),
    ],
)
def test_files_of_other_kinds_under_the_name_of_an_onnx_file(content: bytes, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.onnx"
    path.write_bytes(content)
    assert re.search(kind, refusal(path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("name", ["policy.onnx", "policy.pt", "policy", "metadata.json", "model/metadata.json"])
def test_a_pipe_is_no_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    os.mkfifo(tmp_path / name)
    with pytest.raises(relevo.ModelLoadError, match="a pipe, a socket or a device, and no file; name a file"):
        relevo.ModelModule.load_from_path(tmp_path / name)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_weights_in_a_pipe_are_refused(tmp_path: Path) -> None:
    path = fixed_batch_graphs.weights_beside_it(tmp_path / "policy.onnx")
    (tmp_path / "policy.data").unlink()
    os.mkfifo(tmp_path / "policy.data")
    assert "which is no file" in refusal(path)


def test_a_file_that_is_cut_short(tmp_path: Path) -> None:
    path = models.linear(tmp_path / "policy.onnx", np.eye(32))
    whole = path.read_bytes()
    for length in (1, 2, 20, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert "export the model again" in refusal(path), length


@pytest.mark.parametrize(
    ("edit", "value", "cause", "step"),
    [
        ("operator", "NoSuchOperator", "NoSuchOperator", "lacks the operator"),
        ("domain", "com.example", "com.example", "lacks the operator"),
        ("opset", 999, "999", "pip install -U onnxruntime"),
        ("ir", 99, "99", "pip install -U onnxruntime"),
        ("output", "lost", "the graph output `lost` is not produced by any node", "re-export"),
    ],
)
def test_what_onnx_runtime_cannot_run(edit: str, value: object, cause: str, step: str, tmp_path: Path) -> None:
    message = refusal(edited(tmp_path / "policy.onnx", edit, value))
    assert cause in message
    assert step in message


def external(path: Path, size: int) -> Path:
    """A model whose weights of that many rows lie in another file, which is not written."""
    weight = TensorProto(name="weights", data_type=TensorProto.FLOAT, dims=[size, 1024], data_location=1)
    for key, value in {"location": "weights.bin", "offset": "0", "length": str(size * 4096)}.items():
        weight.external_data.add(key=key, value=value)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["obs", "weights"], ["logits"])],
        "g",
        [helper.make_tensor_value_info("obs", TensorProto.FLOAT, ["batch", size])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1024])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


def test_gigabytes_of_weights_that_are_missing(tmp_path: Path) -> None:
    path = external(tmp_path / "policy.onnx", 1_000_000)
    message = refusal(path)
    assert f"its weights lie in `{tmp_path / 'weights.bin'}`, which cannot be read" in message
    assert "copy that file beside the model" in message
    (tmp_path / "weights.bin").write_bytes(bytes(100))
    message = refusal(path)
    assert "has 100 bytes where 4096000000 are needed" in message


def test_weights_outside_the_folder(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(bytes(4096 * 2))
    inside = tmp_path / "inside"
    inside.mkdir()
    path = external(inside / "policy.onnx", 2)
    path.write_bytes(path.read_bytes().replace(b"weights.bin", b"../wghts.bn"))
    (tmp_path / "wghts.bn").write_bytes(bytes(4096 * 2))
    message = refusal(path)
    assert "its weights lie in `../wghts.bn`, which names no file in the model's folder" in message


def test_a_pointer_of_git_lfs_is_told(tmp_path: Path) -> None:
    path = tmp_path / "policy.onnx"
    path.write_bytes(b"version https://git-lfs.example/spec/v1\noid sha256:abc\nsize 123\n")
    assert "it is a pointer of Git LFS in the model's place; fetch the model by `git lfs pull`" in refusal(path)
    with pytest.raises(relevo.ModelLoadError, match="pointer of Git LFS"):
        relevo.ModelModule.load_from_bytes(path.read_bytes())


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="this system has no /dev/zero")
def test_a_device_is_no_file() -> None:
    assert "a pipe, a socket or a device, and no file; name a file" in refusal(Path("/dev/zero"))


def identity(path: Path, shape: list[int | str] | None) -> Path:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("obs", "logits")]
    graph = helper.make_graph([helper.make_node("Identity", ["obs"], ["logits"])], "g", value[:1], value[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


def test_an_input_without_a_shape(tmp_path: Path) -> None:
    path = identity(tmp_path / "policy.onnx", None)
    assert (
        'or without a shape; where it takes rows all the same, give the shape of one by shapes={"obs": (…,)}'
        in refusal(path)
    )
    assert relevo.ModelModule.load_from_path(path, shapes={"obs": (3,)}).contract.inputs[0].row_shape == (3,)


@pytest.mark.parametrize("rows", ["batch", 1])
def test_a_loop_without_an_end(rows: int | str, tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["on"], ["still"]), helper.make_node("Identity", ["value"], ["same"])],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("value", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("same", TensorProto.FLOAT, None),
        ],
    )
    path = models.save(
        tmp_path / "policy.onnx",
        [helper.make_node("Loop", ["", "on_at_first", "obs"], ["logits"], body=body)],
        {"obs": [rows, 3]},
        {"logits": [rows, 3]},
        {"on_at_first": np.array(True)},
    )
    with pytest.raises(
        relevo.ModelLoadError, match="a loop in it has not ended after 10 s for one made-up row; export"
    ):
        relevo.ModelModule.load_from_path(path)


def test_rows_that_lie_across(tmp_path: Path) -> None:
    path = identity(tmp_path / "policy.onnx", [4, "b"])
    assert "export the model with that first: [b, 4]" in refusal(path)
    with pytest.raises(relevo.ModelLoadError, match=r"with that first: \[b, 4\]"):
        relevo.ModelModule.load_from_path(path, shapes={"obs": (4,)})


@pytest.mark.parametrize("row", [(1 << 40,), (1 << 62,), (1 << 33, 1 << 33)])
def test_a_row_that_no_memory_holds(row: tuple[int, ...], tmp_path: Path) -> None:
    path = models.save(
        tmp_path / "huge.onnx",
        [helper.make_node("Identity", ["obs"], ["logits"])],
        {"obs": ["batch", *row]},
        {"logits": ["batch", *row]},
        {},
    )
    assert re.search(r"its input `obs` is float32 .* a row, and a row of all inputs may have 256 MiB", refusal(path))
    small = models.linear(tmp_path / "policy.onnx", np.eye(2))
    with pytest.raises(
        relevo.ConfigError, match=r"shapes gives \(.*\) for a row of `obs`, .* and a row may have 256 MiB"
    ):
        relevo.ModelModule.load_from_path(small, shapes={"obs": row})
    with relevo.AgentBuilder().default_model(small, head="argmax").actor_count(2).build() as agent:
        with pytest.raises(relevo.ModelLoadError, match="its input `obs`"):
            agent.update_model(path.read_bytes())
        np.testing.assert_array_equal(agent.actors().act(np.eye(2, dtype=np.float32)), [0, 1])


def test_a_model_in_memory(tmp_path: Path) -> None:
    load = relevo.ModelModule.load_from_bytes
    data = models.linear(tmp_path / "policy.onnx", np.eye(2)).read_bytes()
    model = load(data, name="from the trainer")
    assert str(model.path) == "from the trainer"
    assert model.sha256 == relevo.ModelModule.load_from_path(tmp_path / "policy.onnx").sha256
    with relevo.AgentBuilder().default_model(model, head="argmax").actor_count(2).build() as agent:
        np.testing.assert_array_equal(agent.actors().act(np.eye(2, dtype=np.float32)), [0, 1])
    fixed = load(fixed_batch_graphs.perceptron(tmp_path / "fixed.onnx").read_bytes())
    assert fixed.contract.batch == "dynamic"
    for broken in (b"", b"text", data[: len(data) // 2], bytes(100)):
        with pytest.raises(relevo.ModelLoadError, match="cannot load bytes: "):
            load(broken)
    with pytest.raises(relevo.ModelLoadError, match="a model in memory has no files beside it; load it from a path"):
        load(external(tmp_path / "policy.onnx", 2).read_bytes())


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:63", "coreml", "mps"])
def test_a_device_that_is_not_there(device: str, tmp_path: Path) -> None:
    path = models.linear(tmp_path / "policy.onnx", np.eye(2))
    kind = "coreml" if device in {"coreml", "mps"} else device
    there = {name for name, fault in relevo._core.devices()["onnx"] if fault is None}
    if kind in there or (kind == "cuda" and "cuda:0" in there):
        pytest.skip(f"{device} is there")
    with pytest.raises(relevo.DeviceUnavailableError) as caught:
        relevo.ModelModule.load_from_path(path, device=device)
    message = str(caught.value)
    assert f"was to run on the device `{device}`" in message
    assert "can run on `cpu`" in message or "cannot use" in message
    assert re.search(r'device="cpu"', message)


@pytest.mark.parametrize("device", ["", "gpu", "cuda:x", "cuda:-1", "CPU", "tpu:0"])
def test_a_device_that_nobody_knows(device: str, tmp_path: Path) -> None:
    path = models.linear(tmp_path / "policy.onnx", np.eye(2))
    with pytest.raises(relevo.DeviceUnavailableError, match="there is no device of that name; the names are cpu, cuda"):
        relevo.ModelModule.load_from_path(path, device=device)


def test_the_gpu_gives_what_the_cpu_gives(tmp_path: Path) -> None:
    devices = [name for name, fault in relevo._core.devices()["onnx"] if fault is None and name != "cpu"]
    if not devices:
        faults = [fault for name, fault in relevo._core.devices()["onnx"] if name != "cpu"]
        pytest.skip(f"no other device than the CPU is here: {faults}")
    path = models.linear(tmp_path / "policy.onnx", np.random.default_rng(0).standard_normal((64, 8)))
    obs = np.random.default_rng(1).standard_normal((100, 64)).astype(np.float32)
    expected = relevo.ModelModule.load_from_path(path).forward({"obs": obs})["logits"]
    for device in devices:
        got = relevo.ModelModule.load_from_path(path, device=device).forward({"obs": obs})["logits"]
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_the_cpu_is_always_there() -> None:
    devices = relevo._core.devices()
    assert ("cpu", None) in devices["onnx"]
    names = [name for name, _ in devices["onnx"]]
    assert ("coreml" if sys.platform == "darwin" else "cuda:0") in names


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("ppo.zip", r"Stable-Baselines3.*PPO\.load.*relevo\.export\.to_onnx"),
        ("policy.pkl", "pickles are never loaded"),
        ("policy.h5", r"to_onnx \(\.onnx\).*to_torchscript \(\.pt\), which relevo\[torch\] loads"),
        ("policy", r"relevo\[torch\]"),
    ],
)
def test_a_name_of_no_format(name: str, advice: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"something")
    with pytest.raises(relevo.ModelLoadError, match=advice):
        relevo.ModelModule.load_from_path(tmp_path / name)


@pytest.mark.parametrize(
    ("export", "name", "advice"),
    [
        (relevo.export.to_onnx, "a.pt", r"but is a\.pt; name it a\.onnx, or export it by to_torchscript"),
        (relevo.export.to_torchscript, "a.ONNX", r"but is a\.ONNX; name it a\.pt, or export it by to_onnx"),
    ],
)
def test_an_export_under_a_name_of_the_other_format(
    export: Callable[..., object], name: str, advice: str, tmp_path: Path
) -> None:
    with pytest.raises(relevo.ConfigError, match=advice):
        export(None, tmp_path / name)
