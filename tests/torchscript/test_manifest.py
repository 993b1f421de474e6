"""TorchScript policies that other projects exported, against reference outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import relevo

Arrays = dict[str, npt.NDArray[Any]]
FILES = ["unitree_g1_lstm", "rlsar_b2", "anydrive_lstm"]
TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}
"""That of the manifest, whose numbers are rounded to 6 digits."""
BATCH_TOLERANCE = {"rtol": 5e-5, "atol": 5e-5}
"""Batches against single rows: torch takes other kernels for them."""
BUFFERS = ("hidden_state", "cell_state")


def entry(shared: Path, name: str) -> dict[str, Any]:
    policies = json.loads((shared / "manifest.json").read_text())["policies"]
    return next(policy for policy in policies if policy["id"] == name)


def tensor(written: dict[str, Any]) -> npt.NDArray[np.float32]:
    shape = written["shape"]
    if "data" in written:
        return np.array([float(value) for value in written["data"]]).reshape(shape).astype(np.float32)
    if "fill" in written:
        return np.full(shape, written["fill"], np.float32)
    index = np.arange(int(np.prod(shape)))
    assert written["formula"] == "s"
    return (((index * 7919 + written["k"] * 104729) % 2001 - 1000) / 1000).reshape(shape).astype(np.float32)


def tensors(written: dict[str, dict[str, Any]]) -> Arrays:
    return {name: tensor(value) for name, value in written.items()}


def load(shared: Path, name: str) -> relevo.ModelModule:
    return relevo.ModelModule.load_from_path(shared / f"{name}.pt")


def initial(model: relevo.ModelModule, rows: int) -> Arrays:
    """Zeros for every state; the files of the manifest begin with them."""
    return {
        tensor.name: np.zeros(np.insert(tensor.row_shape, tensor.batch_axis or 0, rows), np.float32)
        for tensor in model.contract.inputs
        if tensor.role == "state"
    }


def next_state(model: relevo.ModelModule, outputs: Arrays) -> Arrays:
    return {state.input: np.array(outputs[state.output]) for state in model.contract.states}


@pytest.mark.parametrize("name", FILES)
def test_what_the_contract_says(shared: Path, name: str) -> None:
    policy, model = entry(shared, name), load(shared, name)
    contract = model.contract
    assert (model.format, model.sha256) == ("torchscript", policy["sha256"])
    assert contract.recurrent == policy["recurrent"]
    assert contract.batch == {"dynamic": "dynamic", "fixed_1": "one"}[policy["batch"]]
    declared = {declared["name"]: declared["shape"] for declared in policy["inputs"]}
    found = {tensor.name: list(tensor.shape) for tensor in contract.inputs if tensor.name not in BUFFERS}
    assert found == {key: ["?" if size == "batch" else size for size in shape] for key, shape in declared.items()}
    assert [output.name for output in contract.outputs if output.name not in BUFFERS] == [
        output["name"] for output in policy["outputs"]
    ]
    assert any("the file does not say so" in note for note in contract.notes)


@pytest.mark.parametrize("name", FILES)
def test_cases(shared: Path, name: str) -> None:
    policy, model = entry(shared, name), load(shared, name)
    assert policy["cases"]
    for case in policy["cases"]:
        inputs = tensors(case["inputs"])
        rows = [inputs[next(iter(inputs))]]
        if len(rows[0]) > 1 and model.contract.batch == "one":
            rows = np.split(rows[0], len(rows[0]))
        outputs = [model.forward({**initial(model, len(row)), **inputs, next(iter(inputs)): row}) for row in rows]
        for output, expected in tensors(case["outputs"]).items():
            got = np.concatenate([one[output] for one in outputs]) if len(outputs) > 1 else outputs[0][output]
            np.testing.assert_allclose(got, expected, **TOLERANCE, err_msg=f"{name} {case['name']} {output}")


@pytest.mark.parametrize("name", ["unitree_g1_lstm", "anydrive_lstm"])
def test_sequences(shared: Path, name: str) -> None:
    policy, model = entry(shared, name), load(shared, name)
    steps = 0
    for sequence in policy["sequences"]:
        if sequence["batch"] > 1 and model.contract.batch == "one":
            continue  # rows are run one by one, which the sequences of one actor cover
        start = initial(model, sequence["batch"])
        state = start
        for step in sequence["steps"]:
            if step.get("reset"):
                state = start
            if "inputs" not in step:
                continue
            given = {key: value for key, value in tensors(step["inputs"]).items() if key not in state}
            outputs = model.forward({**state, **given})
            state = next_state(model, outputs)
            for output, expected in tensors(step["outputs"]).items():
                np.testing.assert_allclose(
                    outputs[output], expected, **TOLERANCE, err_msg=f"{sequence['name']} {output}"
                )
            steps += 1
        for buffer, expected in tensors(sequence.get("final_buffers", {})).items():
            np.testing.assert_allclose(state[buffer], expected, **TOLERANCE)
    assert steps >= 10


def test_actors_that_take_turns_do_not_share_their_memory(shared: Path) -> None:
    policy, model = entry(shared, "unitree_g1_lstm"), load(shared, "unitree_g1_lstm")
    sequences = {sequence["name"]: sequence["steps"] for sequence in policy["sequences"]}
    wrong = [tensor(written) for written in policy["wrong_if_state_is_shared"]["outputs"]]
    a = b = initial(model, 1)
    differing = 0
    for step_a, step_b, shared_memory in zip(sequences["actor_a"], sequences["actor_b"], wrong, strict=False):
        outputs = model.forward({**a, **tensors(step_a["inputs"])})
        a = next_state(model, outputs)
        np.testing.assert_allclose(outputs["output_0"], tensor(step_a["outputs"]["output_0"]), **TOLERANCE)
        differing += not np.allclose(outputs["output_0"], shared_memory, atol=1e-2)
        outputs = model.forward({**b, **tensors(step_b["inputs"])})
        b = next_state(model, outputs)
        np.testing.assert_allclose(outputs["output_0"], tensor(step_b["outputs"]["output_0"]), **TOLERANCE)
    assert differing >= len(wrong) - 1


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("rows", [8, 64])
def test_batches_are_what_each_row_is_alone(shared: Path, name: str, rows: int) -> None:
    model = load(shared, name)
    random = np.random.default_rng(0)
    if model.contract.batch == "one":
        # A batch goes through actors, who are run row by row.
        observation = random.standard_normal((rows, 47)).astype(np.float32)
        with relevo.AgentBuilder().default_model(model).actor_count(rows).build() as agent:
            actions = agent.actors().act(observation).action
        alone = [model.forward({**initial(model, 1), "x": row[None]})["output_0"] for row in observation]
        np.testing.assert_allclose(actions, np.concatenate(alone), **BATCH_TOLERANCE)
        return
    inputs = model.contract.inputs
    batch = {
        tensor.name: random.standard_normal(np.insert(tensor.row_shape, tensor.batch_axis or 0, rows)).astype(
            np.float32
        )
        for tensor in inputs
    }
    together = model.forward(batch)
    for row in range(rows):
        one = {tensor.name: np.take(batch[tensor.name], [row], tensor.batch_axis) for tensor in inputs}
        alone = model.forward(one)
        for output in model.contract.outputs:
            expected = np.take(together[output.name], [row], output.batch_axis)
            np.testing.assert_allclose(alone[output.name], expected, **BATCH_TOLERANCE, err_msg=output.name)


def test_actors_get_what_the_module_gives(shared: Path) -> None:
    import torch

    module = torch.jit.load(str(shared / "rlsar_b2.pt")).eval()
    observations = np.random.default_rng(1).standard_normal((64, 45)).astype(np.float32)
    with torch.no_grad():
        expected = module(torch.from_numpy(observations)).numpy()
    with relevo.AgentBuilder().default_model(shared / "rlsar_b2.pt").actor_count(64).build() as agent:
        batch = agent.actors().act(observations)
    np.testing.assert_allclose(batch.action, expected, **BATCH_TOLERANCE)
