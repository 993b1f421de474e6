"""Histograms of actions: every number counted once, in its bin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.trajectories.histogram import BINS, MOST_KINDS, MOST_PARTS, Histogram, action_histograms

NUMBERS = st.floats(allow_nan=True, allow_infinity=True, width=64)


@given(st.lists(st.lists(st.integers(-40, 40)), max_size=6))
def test_whole_numbers_have_a_bin_each(parts: list[list[int]]) -> None:
    histogram = Histogram("action", whole=True)
    for part in parts:
        histogram.add(np.array(part, np.int64))
    numbers = [number for part in parts for number in part]
    assert histogram.counts.sum() == len(numbers)
    if histogram.whole:
        counted = dict(zip(histogram.edges.tolist(), histogram.counts.tolist(), strict=False))
        assert {number: numbers.count(number) for number in numbers} == {
            number: count for number, count in counted.items() if count
        }
    else:
        assert max(numbers) - min(numbers) >= MOST_KINDS


@given(st.lists(st.lists(NUMBERS), max_size=6))
def test_every_number_is_counted_once_and_in_range(parts: list[list[float]]) -> None:
    histogram = Histogram("action", whole=False)
    for part in parts:
        histogram.add(np.array(part))
    numbers = np.array([number for part in parts for number in part])
    finite = numbers[np.abs(numbers) < 1e300]
    assert histogram.counts.sum() == len(finite)
    assert histogram.not_finite == len(numbers) - len(finite)
    if len(finite):
        edges = histogram.edges
        slack = 1e-9 * max(1e-300, np.abs(finite).max())
        assert edges[0] <= finite.min() + slack
        assert finite.max() <= edges[-1] + slack


def test_the_shape_is_that_of_the_numbers() -> None:
    histogram = Histogram("action", whole=False)
    random = np.random.default_rng(0)
    numbers = [random.normal(scale=scale, size=1_000) for scale in (0.01, 1, 100)]
    for part in numbers:
        histogram.add(part)
    expected = np.histogram(np.concatenate(numbers), histogram.edges)[0]
    # Bins merge by halves, so that a number at an edge may lie in the next one, by rounding.
    assert np.abs(expected - histogram.counts).sum() <= 4
    assert np.count_nonzero(histogram.counts) >= BINS / 4


def test_each_element_of_an_action_has_a_histogram() -> None:
    wide = np.ones((10, MOST_PARTS + 3), np.float32)
    histograms, left_out = action_histograms([wide, wide])
    assert ([histogram.name for histogram in histograms][:2], left_out) == (["action[0]", "action[1]"], 3)
    several = {"move": np.arange(10), "aim": np.zeros((10, 2), np.float32)}
    calls: list[tuple[int, int]] = []
    histograms, left_out = action_histograms([several] * 4_000, lambda *counts: calls.append(counts))
    assert {histogram.name: int(histogram.counts.sum()) for histogram in histograms} == {
        "move": 40_000,
        "aim[0]": 40_000,
        "aim[1]": 40_000,
    }
    assert calls == [(pytest.approx(3_277), pytest.approx(32_770))]
    assert action_histograms([]) == ([], 0)
