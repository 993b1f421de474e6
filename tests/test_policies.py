"""Policies that other projects exported, alone and through actors, against reference outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import models
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import relevo

BROKEN = "mlagents_broken_output"


def manifest(shared: Path) -> dict[str, Any]:
    return json.loads((shared / "manifest.json").read_text())  # type: ignore[no-any-return]


def onnx_policies(shared: Path) -> list[dict[str, Any]]:
    found = [policy for policy in manifest(shared)["policies"] if policy["format"] == "onnx" and policy["loads"]]
    assert len(found) >= 6
    return found


def tensor(written: dict[str, Any], dtype: str) -> npt.NDArray[Any]:
    """A tensor as the manifest's head says it is written."""
    shape = tuple(written["shape"])
    index = np.arange(np.prod(shape, dtype=np.int64))
    if "data" in written:
        values = np.array([float(value) for value in written["data"]])
    elif "fill" in written:
        values = np.full(len(index), float(written["fill"]))
    elif written["formula"] == "u8":
        values = ((index * 7919 + written["k"] * 104729) % 256) / 255
    else:
        values = ((index * 7919 + written["k"] * 104729) % 2001 - 1000) / 1000
    return values.reshape(shape).astype(dtype)


def inputs_of(policy: dict[str, Any], case: dict[str, Any]) -> dict[str, npt.NDArray[Any]]:
    return {entry["name"]: tensor(case["inputs"][entry["name"]], entry["dtype"]) for entry in policy["inputs"]}


def test_forward_gives_the_reference_outputs(shared: Path) -> None:
    tolerance = manifest(shared)["tolerance"]
    for policy in onnx_policies(shared):
        model = relevo.ModelModule.load_from_path(shared / policy["file"])
        assert model.contract.recurrent == policy["recurrent"], policy["id"]
        assert model.sha256 == policy["sha256"]
        assert policy["cases"]
        for case in policy["cases"]:
            outputs = model.forward(inputs_of(policy, case))
            for name, written in case["outputs"].items():
                np.testing.assert_allclose(
                    outputs[name],
                    tensor(written, str(outputs[name].dtype)),
                    rtol=tolerance["rtol"],
                    atol=tolerance["atol"],
                    err_msg=f"{policy['id']} {case['name']} {name}",
                )


def test_actors_get_the_reference_outputs(shared: Path) -> None:
    tolerance = manifest(shared)["tolerance"]
    served = [policy for policy in onnx_policies(shared) if not policy["recurrent"]]
    for policy in served:
        for count in (1, 8):
            agent = (
                relevo.AgentBuilder().default_model(shared / policy["file"]).actor_count(count).keep_outputs().build()
            )
            with agent:
                actors = agent.actors()
                for case in policy["cases"]:
                    inputs = inputs_of(policy, case)
                    rows = next(iter(inputs.values())).shape[0]
                    # Every row of a larger case in turn, so that the batch may be of any size.
                    for row in range(rows):
                        named = {key: np.repeat(value[row : row + 1], count, axis=0) for key, value in inputs.items()}
                        observations = {
                            entry["name"]: named[entry["name"]] for entry in policy["inputs"] if entry["role"] == "obs"
                        }
                        masks = [named[entry["name"]] for entry in policy["inputs"] if entry["role"] == "mask"]
                        batch = actors.act(observations, mask=masks[0] if masks else None)
                        assert batch.outputs is not None
                        for name, written in case["outputs"].items():
                            got = batch.outputs[name]
                            expected = tensor(written, str(got.dtype))
                            roles = {entry["name"]: entry["role"] for entry in policy["outputs"]}
                            if roles[name] == "state":
                                continue  # fed with zeros by actors, and not an answer
                            np.testing.assert_allclose(
                                got,
                                np.repeat(expected[row : row + 1], count, axis=0),
                                rtol=tolerance["rtol"],
                                atol=tolerance["atol"],
                                err_msg=f"{policy['id']} {case['name']} {name} with {count} actors",
                            )


def test_contracts_of_real_files(shared: Path) -> None:
    def contract(name: str) -> relevo.Contract:
        return relevo.ModelModule.load_from_path(shared / name).contract

    assert contract("mujoco_go1.onnx").batch == "dynamic"
    ball = contract("mlagents_3dball.onnx")
    assert ball.default_head == "raw"
    assert ball.random_ops == ["RandomNormalLike"]
    assert {output.name: output.role for output in ball.outputs} == {
        "version_number": "constant",
        "memory_size": "constant",
        "continuous_actions": "action",
        "continuous_action_output_shape": "constant",
        "deterministic_continuous_actions": "deterministic_action",
    }
    assert ball.unused_actions == []
    food = contract("mlagents_gridfood.onnx")
    assert (food.default_head, food.unused_actions) == ("raw (continuous_actions), categorical (discrete_actions)", [])
    lander = contract("godot_3dlander.onnx")
    assert {entry.name: entry.role for entry in lander.inputs} == {"obs": "observation", "state_ins": "state"}
    assert not lander.recurrent


def test_the_deterministic_twin_is_the_default_action(shared: Path) -> None:
    agent = relevo.AgentBuilder().default_model(shared / "mlagents_3dball.onnx").actor_count(4).keep_outputs().build()
    with agent:
        actors = agent.actors()
        obs = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
        batch = actors.act(obs)
        assert batch.outputs is not None
        np.testing.assert_array_equal(batch.action, batch.outputs["deterministic_continuous_actions"])
        drawn = actors.act(obs, deterministic=False)
        assert drawn.outputs is not None
        np.testing.assert_array_equal(drawn.action, drawn.outputs["continuous_actions"])


def test_a_sampled_action_without_a_twin_says_so(shared: Path) -> None:
    agent = relevo.AgentBuilder().default_model(shared / "mlagents_gridfood.onnx").actor_count(1).build()
    with agent, pytest.raises(relevo.ContractError, match="no deterministic output"):
        agent.actors().act(np.zeros((1, 5, 40, 40), np.float32), deterministic=True)


def test_a_gaussian_in_one_output(shared: Path) -> None:
    path = shared / "godot_multiagent_player.onnx"
    agent = relevo.AgentBuilder().default_model(path, head="gaussian").actor_count(4000).keep_outputs().build()
    with agent:
        obs = np.zeros((4000, 48), np.float32)
        batch = agent.actors().act(obs)
        assert batch.outputs is not None
        mean, log_std = np.split(batch.outputs["output"][0], 2)
        assert batch.action.shape == (4000, 2)
        np.testing.assert_allclose(batch.action.mean(0), mean, atol=0.1 * np.exp(log_std).max())
        np.testing.assert_allclose(batch.action.std(0), np.exp(log_std), rtol=0.06)


def test_the_broken_file_names_the_output_at_fault(shared: Path) -> None:
    with pytest.raises(relevo.ModelLoadError, match="memory_size") as caught:
        relevo.ModelModule.load_from_path(shared / f"{BROKEN}.onnx")
    assert f"{BROKEN}.onnx" in str(caught.value)


@pytest.mark.parametrize("name", ["product", "normalised", "convolution"])
def test_sizes_that_weights_tell_need_not_be_given(name: str, tmp_path: Path) -> None:
    draws = np.random.default_rng(4)
    matrix = draws.normal(size=(6, 3)).astype(np.float32)
    product = helper.make_node("MatMul", ["obs", "w"], ["logits"])
    open_row: list[int | str] = ["batch", "features"]
    nodes, shape, row, weights = {
        "product": ([product], open_row, (6,), {"w": matrix}),
        "normalised": (
            [
                helper.make_node("Sub", ["obs", "mean"], ["centred"]),
                helper.make_node("Cast", ["centred"], ["cast"], to=1),
                helper.make_node("MatMul", ["cast", "w"], ["logits"]),
            ],
            open_row,
            (6,),
            {"w": matrix, "mean": np.arange(6, dtype=np.float32)},
        ),
        "convolution": (
            [
                helper.make_node("Conv", ["obs", "kernel"], ["maps"]),
                helper.make_node("Flatten", ["maps"], ["flat"]),
                helper.make_node("MatMul", ["flat", "w"], ["logits"]),
            ],
            ["batch", "channels", 2, 3],
            (4, 2, 3),
            {"w": matrix, "kernel": draws.normal(size=(1, 4, 1, 1)).astype(np.float32)},
        ),
    }[name]
    path = models.save(tmp_path / "open.onnx", nodes, {"obs": shape}, {"logits": ["batch", 3]}, weights)
    model = relevo.ModelModule.load_from_path(path)
    assert model.contract.inputs[0].row_shape == row
    assert model.contract.batch == "dynamic"
    assert any("the file leaves sizes of `obs` open, which its weight `" in note for note in model.contract.notes)
    obs = draws.normal(size=(8, *row)).astype(np.float32)
    expected = onnxruntime.InferenceSession(str(path)).run(["logits"], {"obs": obs})[0]
    np.testing.assert_allclose(model.forward({"obs": obs})["logits"], expected, rtol=1e-5, atol=1e-5)
    with relevo.AgentBuilder().default_model(model, head="argmax").actor_count(8).build() as agent:
        np.testing.assert_array_equal(agent.actors().act(obs).action, expected.argmax(1))


def test_what_weights_seem_to_tell_is_tried_out(tmp_path: Path) -> None:
    """The observation is multiplied by a matrix of 6 rows, and what is left of it without the first two by one of 5."""
    path = models.save(
        tmp_path / "open.onnx",
        [
            helper.make_node("MatMul", ["obs", "w"], ["first"]),
            helper.make_node("Slice", ["obs", "from", "to", "axis"], ["part"]),
            helper.make_node("MatMul", ["part", "v"], ["second"]),
            helper.make_node("Add", ["first", "second"], ["logits"]),
        ],
        {"obs": ["batch", "features"]},
        {"logits": ["batch", 3]},
        {
            "w": np.ones((6, 3), np.float32),
            "v": np.ones((5, 3), np.float32),
            "from": np.array([2], np.int64),
            "to": np.array([99], np.int64),
            "axis": np.array([1], np.int64),
        },
    )
    with pytest.raises(relevo.ModelLoadError, match="has no size; give the shape of one row by shapes="):
        relevo.ModelModule.load_from_path(path)


def test_sizes_that_a_file_leaves_open_may_be_given(tmp_path: Path) -> None:
    path = models.save(
        tmp_path / "open.onnx",
        [helper.make_node("Neg", ["obs"], ["logits"])],
        {"obs": ["batch", "features"]},
        {"logits": ["batch", "features"]},
    )
    with pytest.raises(relevo.ModelLoadError, match=r'has no size; give the shape of one row by shapes=\{"obs"'):
        relevo.ModelModule.load_from_path(path)
    model = relevo.ModelModule.load_from_path(path, shapes={"obs": (6,)})
    assert model.contract.inputs[0].row_shape == (6,)
    assert any("a row of shape (6,) was given" in note for note in model.contract.notes)
    with pytest.raises(relevo.ConfigError, match="no such input; it has obs"):
        relevo.ModelModule.load_from_path(path, shapes={"x": (6,)})


def weighted(path: Path, mask: npt.NDArray[np.float32], **weights: npt.NDArray[np.float32]) -> Path:
    """Two layers, and a mask that is added to the logits."""
    return models.save(
        path,
        [
            helper.make_node("Gemm", ["obs", "w1", "b1"], ["hidden"]),
            helper.make_node("Relu", ["hidden"], ["active"]),
            helper.make_node("MatMul", ["active", "w2"], ["scores"]),
            helper.make_node("Constant", [], ["mask"], value=numpy_helper.from_array(mask)),
            helper.make_node("Add", ["scores", "mask"], ["logits"]),
        ],
        {"obs": ["batch", 3]},
        {"logits": ["batch", 4]},
        {
            "w1": np.full((3, 5), 0.5, np.float32),
            "b1": np.ones(5, np.float32),
            "w2": np.full((5, 4), 0.1, np.float32),
            **weights,
        },
    )


def with_one(shape: tuple[int, ...], value: float) -> npt.NDArray[np.float32]:
    tensor = np.full(shape, 0.5, np.float32)
    tensor.flat[0] = value
    return tensor


@pytest.mark.parametrize("name", ["w1", "b1", "w2", "mask"])
def test_nan_in_weights_is_refused_by_name(name: str, tmp_path: Path) -> None:
    shapes = {"w1": (3, 5), "b1": (5,), "w2": (5, 4), "mask": (4,)}
    broken = {"mask": np.zeros(4, np.float32), name: with_one(shapes[name], np.nan)}
    path = weighted(tmp_path / "policy.onnx", **broken)
    with pytest.raises(relevo.ModelLoadError, match=rf"its weight `{name}` holds NaN \(1 of \d+ numbers\)"):
        relevo.ModelModule.load_from_path(path)
    onnx.save(onnx.load(str(path)), str(path), save_as_external_data=True, location="w.data", size_threshold=0)
    with pytest.raises(relevo.ModelLoadError, match=rf"`{name}` holds NaN"):
        relevo.ModelModule.load_from_path(path)


@pytest.mark.parametrize("name", ["w1", "b1", "w2"])
def test_infinite_weights_are_refused_where_they_spoil_what_comes_out(name: str, tmp_path: Path) -> None:
    shapes = {"w1": (3, 5), "b1": (5,), "w2": (5, 4)}
    broken = {name: with_one(shapes[name], np.inf)}
    path = weighted(tmp_path / "policy.onnx", np.zeros(4, np.float32), **broken)
    with pytest.raises(relevo.ModelLoadError, match=rf"its weight `{name}` holds infinite numbers, and \d of 7 "):
        relevo.ModelModule.load_from_path(path)


def test_a_mask_may_hold_minus_infinity(tmp_path: Path) -> None:
    path = weighted(tmp_path / "policy.onnx", np.array([0, -np.inf, 0, 0], np.float32))
    with relevo.AgentBuilder().default_model(path, head="categorical").actor_count(64).build() as agent:
        assert 1 not in agent.actors().act(np.ones((64, 3), np.float32)).action


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (np.nan, r"its weight `w` holds NaN, and 7 of 7 made-up rows come out as NaN or infinity"),
        (np.inf, r"its weight `w` holds infinite numbers, and 7 of 7 made-up rows"),
        (3e38, r"gives infinite numbers where the one that serves does not"),
    ],
)
def test_an_update_with_wild_weights_is_refused(tmp_path: Path, value: float, told: str) -> None:
    """The weight matters for observations below zero alone."""

    def write(name: str, weight: float) -> Path:
        return models.save(
            tmp_path / name,
            [
                helper.make_node("Neg", ["obs"], ["turned"]),
                helper.make_node("Relu", ["turned"], ["below"]),
                helper.make_node("MatMul", ["below", "w"], ["actions"]),
            ],
            {"obs": ["batch", 1]},
            {"actions": ["batch", 1]},
            {"w": np.array([[weight]], np.float32)},
        )

    agent = relevo.AgentBuilder().default_model(write("good.onnx", 2.0)).actor_count(1).build()
    with agent:
        with pytest.raises((relevo.ContractError, relevo.ModelLoadError), match=told):
            agent.update_model(write("bad.onnx", value))
        assert agent.get_model_version() == [1]
        assert agent.actors().act(np.array([[-1.5]], np.float32)).action == 3.0
