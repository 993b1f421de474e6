"""Graphs that draw random numbers: from the right distribution, and not the same ones twice."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import models
import numpy as np
import numpy.typing as npt
import pytest
from onnx import TensorProto, helper
from test_policies import inputs_of, onnx_policies

import relevo

ROWS = 8_000


def stochastic_cases(shared: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    found = [(policy, case) for policy in onnx_policies(shared) for case in policy["cases"] if case.get("distribution")]
    assert len(found) >= 16
    return found


def drawn(model: relevo.ModelModule, policy: dict[str, Any], case: dict[str, Any], rows: int) -> dict[str, Any]:
    """The outputs for one case's row, many times over."""
    inputs = {name: np.repeat(value, rows, axis=0) for name, value in inputs_of(policy, case).items()}
    return model.forward(inputs)


def clipped_normal_mean(mean: float, std: float) -> float:
    """The mean of clip(x, -3, 3) / 3 for x of this normal distribution, by its textbook formula."""

    def density(x: float) -> float:
        return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    def below(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    low, high = (-3 - mean) / std, (3 - mean) / std
    inside = mean * (below(high) - below(low)) + std * (density(low) - density(high))
    return (inside - 3 * below(low) + 3 * (1 - below(high))) / 3


def test_what_is_drawn_has_the_distribution_of_the_manifest(shared: Path) -> None:
    compared = 0
    loaded: dict[str, relevo.ModelModule] = {}
    for policy, case in stochastic_cases(shared):
        if policy["id"] not in loaded:
            loaded[policy["id"]] = relevo.ModelModule.load_from_path(shared / policy["file"])
        rows = 1_000 if policy["id"] == "mlagents_gridfood" else ROWS
        outputs = drawn(loaded[policy["id"]], policy, case, rows)
        for name, distribution in case["distribution"].items():
            what = f"{policy['id']} {case['name']} {name}"
            values = outputs[name]
            if distribution["kind"] == "clipped_normal":
                parameters = zip(distribution["mean"]["data"], distribution["std"]["data"], strict=True)
                for column, (mean, std) in enumerate(parameters):
                    expected = clipped_normal_mean(mean, std)
                    # Five standard errors of the mean.
                    assert abs(values[:, column].mean() - expected) < 5 * std / 3 / math.sqrt(rows) + 1e-5, what
                    compared += 1
            else:
                assert distribution["kind"] == "categorical"
                for branch, written in enumerate(distribution["probs"]):
                    shares = np.bincount(values[:, branch], minlength=len(written["data"])) / rows
                    expected_shares = np.array(written["data"])
                    error = np.sqrt(expected_shares * (1 - expected_shares) / rows)
                    assert np.all(np.abs(shares - expected_shares) <= 5 * error + 2 / rows), what
                    compared += 1
    assert compared >= 36


@pytest.mark.parametrize("name", ["mlagents_3dball", "mlagents_hallway", "mlagents_sorter"])
def test_two_loads_draw_different_numbers(name: str, shared: Path) -> None:
    policy = next(policy for policy in onnx_policies(shared) if policy["id"] == name)
    case = next(case for case in policy["cases"] if case["name"] == "zeros")
    path = shared / policy["file"]
    one, other = (drawn(relevo.ModelModule.load_from_path(path), policy, case, 64) for _ in range(2))
    for output in case["distribution"]:
        assert not np.array_equal(one[output], other[output])
    for output in case["outputs"]:
        np.testing.assert_array_equal(one[output], other[output])


def noise(path: Path, **attributes: float) -> Path:
    """`actions = obs + noise`, with two operators that draw."""
    return models.save(
        path,
        [
            helper.make_node("RandomNormalLike", ["obs"], ["first"], dtype=TensorProto.FLOAT, **attributes),
            helper.make_node("RandomUniformLike", ["obs"], ["second"], dtype=TensorProto.FLOAT, **attributes),
            helper.make_node("Add", ["obs", "first"], ["normal"]),
            helper.make_node("Add", ["obs", "second"], ["uniform"]),
        ],
        {"obs": ["batch", 2]},
        {"normal": ["batch", 2], "uniform": ["batch", 2]},
    )


def stream(path: Path) -> npt.NDArray[np.float32]:
    outputs = relevo.ModelModule.load_from_path(path).forward({"obs": np.zeros((100, 2), np.float32)})
    return np.concatenate([outputs["normal"].ravel(), outputs["uniform"].ravel()])


def test_a_file_with_seeds_is_repeated_and_one_without_is_not(tmp_path: Path) -> None:
    seeded = noise(tmp_path / "seeded.onnx", seed=5.0)
    np.testing.assert_array_equal(stream(seeded), stream(seeded))
    other = noise(tmp_path / "other.onnx", seed=6.0)
    assert not np.array_equal(stream(seeded), stream(other))
    unseeded = noise(tmp_path / "unseeded.onnx")
    assert not np.array_equal(stream(unseeded), stream(unseeded))


def test_operators_in_branches_are_seeded_too(tmp_path: Path) -> None:
    def branch(name: str) -> object:
        return helper.make_graph(
            [helper.make_node("RandomNormalLike", ["obs"], [name], dtype=TensorProto.FLOAT)],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2])],
        )

    path = models.save(
        tmp_path / "branches.onnx",
        [
            helper.make_node("ReduceMax", ["obs"], ["largest"], keepdims=0),
            helper.make_node("Greater", ["largest", "zero"], ["above"]),
            helper.make_node("If", ["above"], ["actions"], then_branch=branch("yes"), else_branch=branch("no")),
        ],
        {"obs": ["batch", 2]},
        {"actions": ["batch", 2]},
        {"zero": np.array(0, np.float32)},
    )
    obs = np.zeros((50, 2), np.float32)
    one, other = (relevo.ModelModule.load_from_path(path).forward({"obs": obs})["actions"] for _ in range(2))
    assert not np.array_equal(one, other)
