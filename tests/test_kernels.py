"""`relevo.kernels`: the golden cases, and what arrays may be like."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relevo
from relevo import kernels

CASES = Path(__file__).resolve().parents[2] / "shared" / "cases"
SPECIAL = {"NaN": math.nan, "inf": math.inf, "-inf": -math.inf}
PRECISIONS = ("float64", "float32")
WITHOUT_ARRAYS = ("attention_bandwidth_cost", "effective_bandwidth_cost", "prefix_match")
FLAGS = {"terminated", "truncated"}
WHOLE = {"indices", "seq_len", "reuse_len", "a", "b"}


def decode(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: decode(each) for key, each in value.items()}
    if isinstance(value, list):
        return [decode(each) for each in value]
    return SPECIAL.get(value, value) if isinstance(value, str) else value


def files() -> list[dict[str, Any]]:
    found = (json.loads(path.read_text(encoding="utf-8")) for path in sorted(CASES.glob("*.json")))
    return [file for file in found if file["function"].startswith("relevo.kernels.")]


def cases(precisions: tuple[str, ...] = PRECISIONS) -> Iterator[Any]:
    for file in files():
        name = file["function"].rpartition(".")[2]
        for case in file["cases"]:
            tolerance = case.get("tolerance", file["tolerance"])
            for precision in precisions:
                if precision in tolerance and case.get("only", precision) == precision:
                    label = f"{name}: {case['name']}, {precision}"
                    yield pytest.param(name, case, precision, tolerance[precision], id=label)


def arguments(inputs: dict[str, Any], precision: str) -> dict[str, Any]:
    """Lists of numbers as arrays of the precision; lists whose rows differ in length as they are."""

    def converted(name: str, value: Any) -> Any:
        if not isinstance(value, list) or name in WHOLE:
            return value
        return np.array(value, np.bool_ if name in FLAGS else precision)

    return {name: converted(name, value) for name, value in decode(inputs).items()}


def call(name: str, inputs: dict[str, Any]) -> dict[str, Any]:
    if name == "EMAPlanTracker":
        return track(**inputs)
    result = getattr(kernels, name)(**inputs)
    return result._asdict() if hasattr(result, "_asdict") else {"result": result}


def track(dim: int, decay: float, updates: Any) -> dict[str, Any]:
    tracker = kernels.EMAPlanTracker(dim, decay)
    means, rejected = [], []
    for index, update in enumerate(updates):
        try:
            tracker.update(update)
        except ValueError:
            rejected.append(index)
        means.append(tracker.mean)
    return {"means": means, "rejected": rejected, "count": tracker.count}


def test_the_cases_are_there() -> None:
    if not CASES.is_dir():
        pytest.skip(f"there is no {CASES}")
    assert len(files()) == 13


@pytest.mark.parametrize(("name", "case", "precision", "tolerance"), list(cases()))
def test_golden_case(name: str, case: dict[str, Any], precision: str, tolerance: dict[str, float]) -> None:
    inputs = arguments(case["inputs"], precision) if name != "EMAPlanTracker" else decode(case["inputs"])
    if "error" in case:
        with pytest.raises(ValueError, match=r"\w") as raised:
            call(name, inputs)
        assert isinstance(raised.value, relevo.RelevoError)
        return
    got = call(name, inputs)
    for output, wanted in decode(case["expected"]).items():
        if np.asarray(got[output]).dtype.kind == "f":
            if name not in (*WITHOUT_ARRAYS, "EMAPlanTracker", "bandwidth_efficiency"):
                assert got[output].dtype == precision
            difference = np.abs(np.asarray(got[output], np.float64) - np.array(wanted, np.float64))
            assert (difference <= tolerance["abs"] + tolerance["rel"] * np.abs(wanted)).all(), (output, got[output])
            assert np.shape(got[output]) == np.shape(wanted)
        else:
            np.testing.assert_array_equal(got[output], wanted)


@pytest.mark.parametrize(("name", "case", "precision", "tolerance"), list(cases(("float64",))))
def test_golden_case_given_as_lists(
    name: str, case: dict[str, Any], precision: str, tolerance: dict[str, float]
) -> None:
    inputs = decode(case["inputs"])
    if "error" in case:
        with pytest.raises(ValueError, match=r"\w"):
            call(name, inputs)
    else:
        got = call(name, inputs)
        for output, wanted in decode(case["expected"]).items():
            assert np.asarray(got[output]).dtype.name in (precision, "int64")
            np.testing.assert_allclose(got[output], wanted, rtol=tolerance["rel"], atol=tolerance["abs"])


def rollout(shape: tuple[int, ...], dtype: str = "float64", seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    floats = {name: random.normal(size=shape).astype(dtype) for name in ("rewards", "values", "next_values")}
    return {**floats, **{name: random.random(shape) < 0.1 for name in sorted(FLAGS)}}


def test_any_strides_and_number_of_axes() -> None:
    inputs = rollout((40, 6))
    wanted = kernels.gae(**inputs, gamma=0.9, lam=0.8)

    def check(change: Callable[[Any], Any], back: Callable[[Any], Any]) -> None:
        got = kernels.gae(**{name: change(array) for name, array in inputs.items()}, gamma=0.9, lam=0.8)
        np.testing.assert_array_equal(back(got.advantages), wanted.advantages)
        np.testing.assert_array_equal(back(got.returns), wanted.returns)

    check(np.asfortranarray, np.asarray)
    check(lambda array: np.repeat(array, 2, axis=1)[:, ::2], np.asarray)
    check(lambda array: array[::-1].copy()[::-1], np.asarray)
    check(lambda array: array.reshape(40, 2, 3), lambda array: array.reshape(40, 6))
    check(lambda array: array.astype(array.dtype.newbyteorder()), np.asarray)
    one = kernels.gae(**{name: array[:, 0] for name, array in inputs.items()}, gamma=0.9, lam=0.8)
    np.testing.assert_allclose(one.advantages, wanted.advantages[:, 0], rtol=1e-12)
    assert one.advantages.shape == (40,)


def test_precisions_and_integers() -> None:
    inputs = rollout((5, 2), "float32")
    assert kernels.gae(**inputs, gamma=0.9, lam=0.8).returns.dtype == np.float32
    inputs["rewards"] = inputs["rewards"].astype(np.float64)
    assert kernels.gae(**inputs, gamma=0.9, lam=0.8).returns.dtype == np.float64
    inputs["rewards"] = np.arange(10).reshape(5, 2)
    got = kernels.gae(**inputs, gamma=0.9, lam=0.8)
    assert got.returns.dtype == np.float64
    inputs["rewards"] = inputs["rewards"].astype(np.float64)
    np.testing.assert_array_equal(kernels.gae(**inputs, gamma=0.9, lam=0.8).returns, got.returns)
    for name, bad in [("rewards", np.zeros((5, 2), complex)), ("values", np.array([["a", "b"]] * 5))]:
        with pytest.raises(relevo.ContractError, match=f"{name} must hold numbers, float32 or float64, but"):
            kernels.gae(**{**inputs, name: bad}, gamma=0.9, lam=0.8)


def test_flags_are_bools_or_zero_and_one() -> None:
    inputs = rollout((5, 2))
    wanted = kernels.gae(**inputs, gamma=0.9, lam=0.8)
    for dtype in ("uint8", "int8", "int32", "int64", "uint64"):
        flags = {name: inputs[name].astype(dtype) for name in FLAGS}
        got = kernels.gae(**{**inputs, **flags}, gamma=0.9, lam=0.8)
        np.testing.assert_array_equal(got.advantages, wanted.advantages)
        flags["truncated"][3, 1] = 2
        with pytest.raises(relevo.ContractError, match=r"truncated must be 0 or 1, but 2 came at (position 7|step 3)"):
            kernels.gae(**{**inputs, **flags}, gamma=0.9, lam=0.8)
    with pytest.raises(relevo.ContractError, match=r"bool, or integers 0 and 1, but float64 came; say .astype\(bool\)"):
        kernels.gae(**{**inputs, "terminated": np.zeros((5, 2))}, gamma=0.9, lam=0.8)


def test_errors_say_where_and_what_class_of_fault() -> None:
    inputs = rollout((5, 2))
    inputs["values"][3, 1] = math.nan
    with pytest.raises(relevo.ContractError, match="values must be a number, but NaN came at step 3 of stream 1"):
        kernels.gae(**inputs, gamma=0.9, lam=0.8)
    with pytest.raises(relevo.ConfigError, match="gamma must be a finite number, but NaN came"):
        kernels.gae(**rollout((5, 2)), gamma=math.nan, lam=0.8)
    short = {**rollout((5, 2)), "values": np.zeros((4, 2))}
    with pytest.raises(
        relevo.ContractError, match=r"values must have the shape of rewards, \(5, 2\), but \(4, 2\) came"
    ):
        kernels.gae(**short, gamma=0.9, lam=0.8)
    with pytest.raises(relevo.ContractError, match="a single number came"):
        kernels.discounted_returns(1.0, 0, 0, gamma=0.9)
    with pytest.raises(relevo.ConfigError, match="n must be 1 or more, but -1 came"):
        kernels.n_step([1.0], [0], [0], gamma=0.9, n=-1)
    infinite = np.full((1, 1), -math.inf)
    with pytest.raises(relevo.ContractError, match="behaviour_log_probs must be finite where target_log_probs is"):
        kernels.vtrace(infinite, infinite, *rollout((1, 1)).values(), gamma=0.9)


def test_out_is_written_to_and_given_back() -> None:
    inputs = rollout((40, 3), "float32")
    wanted = kernels.gae(**inputs, gamma=0.9, lam=0.8)
    out = np.empty((40, 3), np.float32), np.empty((40, 3), np.float32)
    got = kernels.gae(**inputs, gamma=0.9, lam=0.8, out=out)
    assert got.advantages is out[0]
    assert got.returns is out[1]
    np.testing.assert_array_equal(out, wanted)
    flags = {name: inputs[name] for name in ("rewards", *FLAGS)}
    single = np.empty((40, 3), np.float32)
    assert kernels.discounted_returns(**flags, gamma=0.9, out=single) is single
    np.testing.assert_array_equal(single, kernels.discounted_returns(**flags, gamma=0.9))
    steps = kernels.n_step(**flags, gamma=0.9, n=3)
    again = kernels.n_step(**flags, gamma=0.9, n=3, out=tuple(np.empty_like(array) for array in steps))
    for left, right in zip(steps, again, strict=True):
        np.testing.assert_array_equal(left, right)


def test_out_is_left_alone_by_a_call_that_fails() -> None:
    inputs = rollout((40, 3))
    inputs["next_values"][0, 0] = math.nan
    out = np.full((40, 3), 7.0), np.full((40, 3), 7.0)
    with pytest.raises(relevo.ContractError):
        kernels.gae(**inputs, gamma=0.9, lam=0.8, out=out)
    np.testing.assert_array_equal(out, np.full((2, 40, 3), 7.0))


def test_an_out_that_does_not_fit_is_refused() -> None:
    inputs = rollout((4, 3))
    good = np.empty((4, 3))
    frozen = np.empty((4, 3))
    frozen.setflags(write=False)
    for bad, words in [
        (np.empty((4, 3), np.float32), "but one of float32 came"),
        (np.empty((3, 4)), r"shape \(4, 3\), but one of shape \(3, 4\) came"),
        (np.empty((4, 6))[:, ::2], "do not lie side by side"),
        (frozen, "cannot be written to"),
        (inputs["rewards"], "must not share memory with what is read"),
        ([0.0], "but a list came"),
    ]:
        with pytest.raises(relevo.ContractError, match=words):
            kernels.gae(**inputs, gamma=0.9, lam=0.8, out=(good, bad))
    with pytest.raises(relevo.ContractError, match="cannot be written to"):
        kernels.gae(**inputs, gamma=0.9, lam=0.8, out=(good, good))
    with pytest.raises(relevo.ContractError, match="out must be 2 arrays: advantages and returns"):
        kernels.gae(**inputs, gamma=0.9, lam=0.8, out=(good,))


def test_empty_arrays() -> None:
    for shape in [(0,), (0, 3), (4, 0)]:
        got = kernels.gae(**rollout(shape), gamma=0.9, lam=0.8)
        assert got.advantages.shape == got.returns.shape == shape
    assert kernels.gae([], [], [], [], [], gamma=0.9, lam=0.8).returns.shape == (0,)
    assert kernels.n_step([], [], [], gamma=0.9, n=2).steps.dtype == np.int64
    assert kernels.bandwidth_aware_priorities([], [], []).shape == (0,)
    assert kernels.plan_surprise(np.empty((0, 2)), [1.0, 2.0], [], 1.0).shape == (0,)


def test_scalars_give_scalars_and_arrays_give_arrays() -> None:
    cost = kernels.attention_bandwidth_cost(np.int64(4))
    assert (type(cost), cost) == (float, 10.0)
    np.testing.assert_array_equal(kernels.attention_bandwidth_cost([[1, 2], [3, 4]]), [[1.0, 3.0], [6.0, 10.0]])
    np.testing.assert_array_equal(kernels.effective_bandwidth_cost(np.array([4, 5]), [0, 4], scale=2), [20.0, 10.0])
    assert kernels.attention_bandwidth_cost(2**64 - 1) == float((2**64 - 1) * 2**63)
    for bad in (2**64, [3, -1], 1.0, np.array([1.0])):
        with pytest.raises(relevo.ContractError, match="seq_len must"):
            kernels.attention_bandwidth_cost(bad)
    priority = kernels.bandwidth_aware_priorities(1.0, 3.0, 0.5, bandwidth_weight=0.5, eps=0)
    assert (type(priority), priority) == (float, 0.5)
    with pytest.raises(relevo.ContractError, match="is zero at position 1; give an eps above 0"):
        kernels.bandwidth_aware_priorities([1.0, 1.0], [1.0, 0.0], [0.0, 0.0], eps=0)


def test_prefixes_of_many() -> None:
    a, b = [[5, 6, 7], [], [1]], (np.array([5, 6, 9], np.int32), [5], [5, 6, 7, 8], [2])
    wanted = [[kernels.prefix_match(left, right) for right in b] for left in a]
    got = kernels.prefix_match(a, b)
    assert wanted == [[2, 1, 3, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    np.testing.assert_array_equal(got, wanted)
    assert kernels.prefix_match(np.array([[1, 2], [1, 3]]), [[1, 3, 4]]).tolist() == [[1], [2]]
    assert kernels.prefix_match([], [[1]]).shape == (0, 1)
    assert kernels.prefix_match(np.arange(300, dtype=np.uint16), np.arange(200)) == 200
    for left, right in [([1, 2], [[1], [2]]), ([1.5], [1]), (np.array([2**63], np.uint64), [1])]:
        with pytest.raises(relevo.ContractError):
            kernels.prefix_match(left, right)


def test_draws_of_a_seed_and_without() -> None:
    scores = np.log(np.array([1.0, 2.0, 5.0, 2.0]))
    sample = kernels.priority_sample(scores, temperature=1.0, beta=0.5, batch_size=100_000, seed=3)
    counts = np.bincount(sample.indices, minlength=4)
    expected = np.array([0.1, 0.2, 0.5, 0.2]) * 100_000
    # χ² with 3 degrees of freedom is beyond 16.3 once in a thousand seeds.
    assert ((counts - expected) ** 2 / expected).sum() < 16.3
    again = kernels.priority_sample(scores, temperature=1.0, beta=0.5, batch_size=100_000, seed=3)
    np.testing.assert_array_equal(again.indices, sample.indices)
    told = kernels.priority_sample(scores, temperature=1.0, beta=0.5, indices=sample.indices)
    np.testing.assert_array_equal(told.weights, sample.weights)
    unseeded = [kernels.priority_sample(scores, temperature=1.0, beta=0.5, batch_size=50).indices for _ in range(2)]
    assert not np.array_equal(*unseeded)
    for both in ({}, {"batch_size": 1, "indices": [0]}):
        with pytest.raises(relevo.ConfigError, match="give either indices"):
            kernels.priority_sample(scores, temperature=1.0, beta=0.5, **both)


def test_weights_hold_where_probabilities_are_too_small_for_a_float() -> None:
    sample = kernels.priority_sample([0.0, 10_000.0], temperature=1.0, beta=0.001, indices=[0, 1])
    assert sample.probabilities.tolist() == [0.0, 1.0]
    np.testing.assert_allclose(sample.weights, [1.0, math.exp(-10)], rtol=1e-12)


def test_large_arrays_are_worked_on_without_the_interpreter_lock() -> None:
    inputs = rollout((20_000, 40))
    wanted = kernels.gae(**inputs, gamma=0.9, lam=0.8).advantages
    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda: results.append(kernels.gae(**inputs, gamma=0.9, lam=0.8))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(result.advantages, wanted) for result in results)
    assert len(results) == 4


@given(st.integers(0, 70), st.integers(1, 12), st.sampled_from(PRECISIONS), st.integers(0, 2**32 - 1))
def test_on_policy_v_trace_is_gae(steps: int, streams: int, precision: str, seed: int) -> None:
    inputs = rollout((steps, streams), precision, seed)
    log_probs = np.random.default_rng(seed).normal(size=(steps, streams)).astype(precision)
    got = kernels.vtrace(log_probs, log_probs, **inputs, gamma=0.95, lam=0.9)
    wanted = kernels.gae(**inputs, gamma=0.95, lam=0.9)
    np.testing.assert_allclose(got.vs, wanted.returns, rtol=1e-4, atol=1e-4)


def test_the_names_of_the_issue_are_there() -> None:
    assert kernels.kernels_available() is True
    assert relevo.kernels is kernels
    assert all(hasattr(kernels, name) for name in kernels.__all__)
