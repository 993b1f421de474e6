"""Folders with `metadata.json`, as RelayRL 0.5 writes them."""

from __future__ import annotations

import contextlib
import json
import logging
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import relevo


def metadata(**changes: Any) -> dict[str, Any]:
    """What RelayRL writes, for a model with four numbers in and two out."""
    return {
        "model_file": "policy.onnx",
        "model_type": "onnx",
        "input_dtype": {"NdArray": "F32"},
        "output_dtype": {"NdArray": "F32"},
        "input_shape": [1, 4],
        "output_shape": [1, 2],
        "default_device": "cpu",
        **changes,
    }


def folder(path: Path, **changes: Any) -> Path:
    path.mkdir(exist_ok=True)
    models.linear(path / "policy.onnx", np.arange(8).reshape(4, 2))
    (path / "metadata.json").write_text(json.dumps(metadata(**changes)))
    return path


def test_a_folder_and_its_metadata_load(tmp_path: Path) -> None:
    for path in (folder(tmp_path / "model"), tmp_path / "model" / "metadata.json"):
        model = relevo.ModelModule.load_from_path(path)
        assert model.path == tmp_path / "model" / "policy.onnx"
        obs = np.eye(4, dtype=np.float32)
        np.testing.assert_array_equal(model.forward({"obs": obs})["logits"], np.arange(8).reshape(4, 2))
        assert "metadata.json" not in repr(model.contract)
    with relevo.AgentBuilder().default_model(tmp_path / "model").actor_count(3).build() as agent:
        assert len(agent.actors().act(np.zeros((3, 4), np.float32))) == 3


def test_a_model_without_a_known_extension_is_loaded_by_its_type(tmp_path: Path) -> None:
    path = folder(tmp_path / "model", model_file="weights.bin")
    (path / "policy.onnx").rename(path / "weights.bin")
    assert relevo.ModelModule.load_from_path(path).format == "onnx"


def test_a_folder_need_not_describe_its_model(tmp_path: Path) -> None:
    path = folder(tmp_path / "model", input_shape=None, output_dtype=None)
    text = (path / "metadata.json").read_text()
    (path / "metadata.json").write_text("\ufeff" + text, encoding="utf-8")
    contract = relevo.ModelModule.load_from_path(path).contract
    assert contract.inputs[0].row_shape == (4,)
    assert "metadata.json" not in repr(contract)


def test_a_wrong_shape_is_told_and_the_forward_pass_holds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = folder(tmp_path / "model", input_shape=[1, 9], output_dtype={"Tch": "I64"})
    with caplog.at_level(logging.WARNING, logger="relevo"):
        model = relevo.ModelModule.load_from_path(path)
    (obs,), (logits,) = model.contract.inputs, model.contract.outputs
    assert obs.row_shape == (4,)
    assert "metadata.json says float32 (9,) a row, a forward pass shows float32 (4,)" in obs.reason
    assert "metadata.json says int64 (2,) a row, a forward pass shows float32 (2,)" in logits.reason
    assert sum("metadata.json says" in record.getMessage() for record in caplog.records) == 2


def test_the_device_of_the_folder_is_taken_where_none_is_named(tmp_path: Path) -> None:
    path = folder(tmp_path / "model", default_device={"Cuda": 7})
    assert relevo.ModelModule.load_from_path(path, device="cpu").format == "onnx"
    for load in (relevo.ModelModule.load_from_path, lambda path: relevo.AgentBuilder().default_model(path).build()):
        with pytest.raises(relevo.DeviceUnavailableError, match="cuda:7"):
            load(path)
    with relevo.AgentBuilder().default_model(path).default_device("cpu").build():
        pass


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_file": "../policy.onnx"}, "not the name of a file in this folder"),
        ({"model_file": "/etc/passwd"}, "not the name of a file in this folder"),
        ({"model_file": "absent.onnx"}, r"absent\.onnx.*No such file"),
        ({"model_type": "pickle"}, "pickle"),
        ({"input_shape": []}, "input_shape is"),
        ({"output_shape": [1 << 62, 1 << 62]}, "output_shape is"),
        ({"input_dtype": "F33"}, "`F33` is no element type"),
        ({"default_device": 3}, "default_device"),
    ],
)
def test_what_cannot_be_meant_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = folder(tmp_path / "model", **changes)
    with pytest.raises(relevo.ModelLoadError, match=message):
        relevo.ModelModule.load_from_path(path, device="cpu")


def test_a_folder_without_metadata_is_refused(tmp_path: Path) -> None:
    with pytest.raises(relevo.ModelLoadError, match=r"a folder without metadata\.json; name the model file in it"):
        relevo.ModelModule.load_from_path(tmp_path)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["onnx", "../x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.dictionaries(st.sampled_from(sorted(metadata())), values, min_size=1, max_size=3))
def test_any_metadata_loads_or_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    path = folder(tmp_path / "model", **changes)
    # Any other error than this one fails the test.
    with contextlib.suppress(relevo.ModelLoadError):
        model = relevo.ModelModule.load_from_path(path, device="cpu")
        assert model.path.is_relative_to(path)
