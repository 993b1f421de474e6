"""Weights in a file beside the model: what serves is what was there when it was loaded."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import relevo

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

WIDTH = 64


def write(path: Path, value: float, *, rows: int | str = "batch") -> Path:
    """`obs · 0 + value`, with the weights in `w.data` beside the model."""
    weights = {
        "zeros": np.zeros((4, WIDTH), np.float32),
        "added": np.full((1, WIDTH), value, np.float32),
        "mean": np.full((WIDTH, WIDTH), 1 / WIDTH, np.float32),
    }
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["obs", "zeros"], ["nothing"]),
            helper.make_node("Add", ["nothing", "added"], ["hidden"]),
            helper.make_node("MatMul", ["hidden", "mean"], ["action"]),
        ],
        "g",
        [helper.make_tensor_value_info("obs", TensorProto.FLOAT, [rows, 4])],
        [helper.make_tensor_value_info("action", TensorProto.FLOAT, [rows, WIDTH])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (path.parent / "w.data").unlink(missing_ok=True)
    onnx.save(model, str(path), save_as_external_data=True, location="w.data", size_threshold=0)
    return path


def actions(agent: relevo.Agent) -> set[float]:
    """What actors get alone, one by one, and what all get in one call."""
    obs = np.ones((4, 4), np.float32)
    alone = [agent.actors([identity]).act(obs[:1]).action for identity in agent.get_actor_ids()]
    return {float(number) for batch in [*alone, agent.actors().act(obs).action] for number in np.ravel(batch)}


@pytest.mark.parametrize("rows", ["batch", 1])
@pytest.mark.parametrize("change", ["overwritten", "cut short", "deleted"])
def test_what_happens_to_the_file_changes_nothing(tmp_path: Path, change: str, rows: int | str) -> None:
    path = write(tmp_path / "policy.onnx", 1.0, rows=rows)
    with relevo.AgentBuilder().default_model(path).actor_count(4).build() as agent:
        before = actions(agent)
        assert before == pytest.approx([1.0])
        data = tmp_path / "w.data"
        if change == "overwritten":
            tripled = np.frombuffer(data.read_bytes(), np.float32) * 3
            with data.open("r+b") as file:
                file.write(tripled.tobytes())
        elif change == "cut short":
            data.write_bytes(b"")
        else:
            data.unlink()
        assert actions(agent) == before
        # Routers that are added make sessions of their own.
        agent.scale_throughput(3)
        assert actions(agent) == before
        if change == "overwritten":
            agent.update_model(path)
            assert actions(agent) == pytest.approx([9.0])


def test_the_hash_is_of_the_weights_too(tmp_path: Path) -> None:
    path = write(tmp_path / "policy.onnx", 1.0)
    expected = hashlib.sha256(path.read_bytes() + (tmp_path / "w.data").read_bytes()).hexdigest()
    assert relevo.ModelModule.load_from_path(path).sha256 == expected


def test_links_as_in_a_cache_of_downloads(tmp_path: Path) -> None:
    """Model and weights are links to files of other names, in another folder."""
    made, blobs, snapshot = (tmp_path / name for name in ("made", "blobs", "snapshot"))
    for folder in (made, blobs, snapshot):
        folder.mkdir()
    write(made / "policy.onnx", 2.0)
    for name, blob in {"policy.onnx": "aaa", "w.data": "bbb"}.items():
        (made / name).rename(blobs / blob)
        (snapshot / name).symlink_to(f"../blobs/{blob}")
    model = relevo.ModelModule.load_from_path(snapshot / "policy.onnx")
    assert model.forward({"obs": np.ones((1, 4), np.float32)})["action"] == pytest.approx(2.0)


def branching(weight: onnx.TensorProto) -> onnx.ModelProto:
    """An addition of a weight, once from a node, once from inside a branch."""

    def value(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3])

    inner = onnx.TensorProto()
    inner.CopyFrom(weight)
    inner.name = "inner"
    # Some exporters write it so.
    inner.external_data[0].value = "./w.data"
    branches = {
        f"{way}_branch": helper.make_graph(
            [helper.make_node("Add", ["sum", "inner"], [way])], way, [], [value(way)], [inner]
        )
        for way in ("then", "else")
    }
    graph = helper.make_graph(
        [
            helper.make_node("Constant", [], ["made"], value=weight),
            helper.make_node("Add", ["obs", "made"], ["sum"]),
            helper.make_node("If", ["yes"], ["action"], **branches),
        ],
        "g",
        [value("obs")],
        [value("action")],
        [helper.make_tensor("yes", TensorProto.BOOL, [], [True])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_weights_of_nodes_and_branches_are_found_too(tmp_path: Path) -> None:
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3], data_location=1)
    for key, text in {"location": "w.data", "offset": "4", "length": "12"}.items():
        weight.external_data.add(key=key, value=text)
    numbers: npt.NDArray[np.float32] = np.array([9, 1, 2, 3], np.float32)
    path, data = tmp_path / "policy.onnx", tmp_path / "w.data"
    path.write_bytes(branching(weight).SerializeToString())
    data.write_bytes(numbers.tobytes())
    model = relevo.ModelModule.load_from_path(path)
    data.write_bytes(b"")
    with relevo.AgentBuilder().default_model(model).actor_count(2).build() as agent:
        assert agent.actors().act(np.zeros((2, 3), np.float32)).action.tolist() == [[2, 4, 6]] * 2
    with pytest.raises(relevo.ModelLoadError, match=r"w\.data`, which has 0 bytes where 16 are needed"):
        relevo.ModelModule.load_from_path(path)
