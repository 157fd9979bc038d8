from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscale.errors import InvalidInput
from normscale.metrics import expected_calibration_error, reliability

quick = settings(deadline=None, max_examples=60)

# slow and obvious definitions, in exact fractions


def slow_ece(confidence: Sequence[float], correct: Sequence[bool], bins: int) -> float:
    total = Fraction(0)
    for m in range(1, bins + 1):
        lower, upper = float(Fraction(m - 1, bins)), float(Fraction(m, bins))
        members = [
            (Fraction(p), c)
            for p, c in zip(confidence, correct, strict=True)
            if lower < p <= upper or (m == 1 and p == 0)
        ]
        total += abs(sum((p for p, _ in members), Fraction(0)) - sum(c for _, c in members))
    return float(total / len(confidence))


on_edges = st.tuples(st.integers(0, 15), st.integers(1, 15)).map(lambda r: min(r) / max(r))
rows = st.lists(st.tuples(st.one_of(on_edges, st.floats(0, 1)), st.booleans()), min_size=1, max_size=40)


@quick
@given(rows, st.sampled_from([1, 2, 3, 5, 10, 15, 49]))
def test_matches_the_definition(data: list[tuple[float, bool]], bins: int) -> None:
    confidence, correct = [p for p, _ in data], [c for _, c in data]
    expected = slow_ece(confidence, correct, bins)
    assert expected_calibration_error(confidence, correct, bins) == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("bins", [1, 3, 7, 10, 15, 49, 100])
def test_an_edge_belongs_to_the_bin_below_it(dtype: Any, bins: int) -> None:
    edges = np.array([float(Fraction(m, bins)) for m in range(1, bins + 1)]).astype(dtype)
    assert reliability(edges, np.ones(bins), bins).count.tolist() == [1] * bins
    above = np.nextafter(edges[:-1], dtype(2))
    if bins > 1:
        assert reliability(above, np.ones(bins - 1), bins).count.tolist() == [0] + [1] * (bins - 1)


def test_both_ends_are_counted() -> None:
    found = reliability([0.0, 1.0, 5e-324], [0, 1, 0])
    assert (found.count[0], found.count[-1], found.n) == (2, 1, 3)


def test_the_last_bin_is_not_dropped() -> None:
    assert expected_calibration_error([0.95, 1.0], [1, 0]) == pytest.approx(0.475, abs=1e-15)
    assert expected_calibration_error([1.0] * 4, [True, False, False, False]) == 0.75


def test_reliability_reports_every_bin() -> None:
    found = reliability([0.2, 0.4, 0.9, 1.0], [0, 1, 1, 0], bins=5)
    assert found.edges.tolist() == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert found.count.tolist() == [1, 1, 0, 0, 2]
    np.testing.assert_allclose(found.accuracy, [0, 1, math.nan, math.nan, 0.5])
    np.testing.assert_allclose(found.confidence, [0.2, 0.4, math.nan, math.nan, 0.95])
    assert found.ece == pytest.approx((0.2 + 0.6 + 2 * 0.45) / 4)
    assert found.mce == pytest.approx(0.6)
    assert found == reliability([0.2, 0.4, 0.9, 1.0], [False, True, True, False], bins=5)
    with pytest.raises(TypeError):
        hash(found)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_every_dtype_gives_the_same_answer(dtype: Any) -> None:
    confidence = np.array([0.25, 0.5, 0.75, 1.0], dtype)
    assert expected_calibration_error(confidence, [0, 1, 1, 1], 4) == pytest.approx((0.25 + 0.5 + 0.25 + 0) / 4)
    assert expected_calibration_error([0, 1], [0, 1]) == 0.0


@pytest.mark.parametrize(
    ("confidence", "correct", "bins", "message"),
    [
        ([0.5, 1.5], [1, 1], 15, r"confidence\[1\] is 1.5"),
        ([-1e-9], [1], 15, r"confidence\[0\]"),
        ([math.nan], [1], 15, "NaN"),
        ([], [], 15, "confidence is empty"),
        ([0.5], [1, 0], 15, r"correct must have shape \(1,\)"),
        ([0.5], [2], 15, r"correct\[0\] is 2"),
        ([0.5], [math.nan], 15, r"correct\[0\] is nan"),
        ([0.5], [1], 0, "bins"),
    ],
)
def test_bad_arguments_are_refused(confidence: Any, correct: Any, bins: int, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        expected_calibration_error(confidence, correct, bins)
