"""Running moments: merge = concatenation, take apart, prefix, reweighting, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

import oracles
from normscale import InvalidInput, RunningMoments

blocks = st.integers(0, 12).flatmap(
    lambda n: arrays(np.float64, (n, 3), elements=st.floats(-1e3, 1e3, allow_subnormal=False))
)


def assert_close(a: RunningMoments, b: RunningMoments, scale: float = 1e3) -> None:
    assert a.weight == b.weight
    np.testing.assert_allclose(a.mean, b.mean, rtol=1e-12, atol=1e-12 * scale)
    np.testing.assert_allclose(a.m2, b.m2, rtol=1e-12, atol=1e-10 * scale)


@given(st.lists(blocks, min_size=1, max_size=5))
def test_merge_equals_concatenation(parts: list[NDArray[np.float64]]) -> None:
    whole = RunningMoments(3).update(np.concatenate(parts))
    merged = RunningMoments(3)
    for part in parts:
        merged = merged.merge(RunningMoments(3).update(part))
    assert_close(merged, whole)
    stepwise = RunningMoments(3)
    for part in parts:
        stepwise.update(part)
    assert_close(stepwise, whole)


@given(blocks, blocks)
def test_merge_is_symmetric(a: NDArray[np.float64], b: NDArray[np.float64]) -> None:
    x, y = RunningMoments(3).update(a), RunningMoments(3).update(b)
    assert_close(x.merge(y), y.merge(x))


@given(blocks, blocks)
def test_without_undoes_merge(a: NDArray[np.float64], b: NDArray[np.float64]) -> None:
    x, y = RunningMoments(3).update(a), RunningMoments(3).update(b)
    back = x.merge(y).without(y)
    assert back.weight == x.weight
    if x.weight:
        np.testing.assert_allclose(back.mean, x.mean, atol=1e-9)
        np.testing.assert_allclose(back.m2, x.m2, atol=1e-6)


@pytest.mark.parametrize("weight", (0.25, 1.0, 50.0))
@pytest.mark.parametrize("width", (1, 5, 60))
def test_prefix_equals_one_row_at_a_time(weight: float, width: int) -> None:
    rng = np.random.default_rng(3)
    moments = RunningMoments(width).update(rng.normal(size=(9, width))).reweighted(weight)
    rows = rng.normal(2.0, 3.0, (1000, width))
    kept = moments.copy()
    weights, means, variances = moments.prefix(rows)
    assert moments == kept
    for i in (0, 1, 2, 15, 16, 17, 500, 998, 999):
        one = moments.copy().update(rows[: i + 1])
        assert weights[i] == one.weight
        np.testing.assert_allclose(means[i], one.mean, rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(variances[i], one.variance, rtol=1e-11)


def test_variance_is_the_population_variance() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float16)
    moments = RunningMoments(4).update(rows)
    means, squares = oracles.exact_moments(rows.astype(np.float64))
    np.testing.assert_allclose(moments.mean, [float(m) for m in means], rtol=1e-13)
    np.testing.assert_allclose(moments.variance, [float(s) / 50 for s in squares], rtol=1e-13)
    np.testing.assert_allclose(moments.std, np.std(rows.astype(np.float64), axis=0), rtol=1e-12)


def test_reweighting_keeps_mean_and_variance() -> None:
    moments = RunningMoments(2).update([[1.0, 5.0], [3.0, 9.0]])
    light = moments.reweighted(0.5)
    assert light.weight == 0.5
    assert np.array_equal(light.mean, moments.mean)
    np.testing.assert_allclose(light.variance, moments.variance, rtol=1e-15)


def test_bad_rows_leave_the_state_untouched() -> None:
    moments = RunningMoments(2).update([[1.0, 2.0], [3.0, 5.0]])
    kept = moments.copy()
    for bad in (
        [[1.0, np.nan]],
        [[np.inf, 1.0]],
        [[1.0, 2.0, 3.0]],
        [1.0, 2.0],
        [["a", "b"]],
        [[1e200, 1.0], [-1e200, 1.0]],
    ):
        with pytest.raises(InvalidInput):
            moments.update(bad)
        assert moments == kept
    with pytest.raises(InvalidInput, match="row 1 holds NaN in column 0"):
        moments.prefix([[1.0, 2.0], [np.nan, 2.0]])


def test_refusals_name_the_rule() -> None:
    moments = RunningMoments(2)
    with pytest.raises(InvalidInput, match="2 columns cannot be combined with moments of 3"):
        moments.merge(RunningMoments(3))
    with pytest.raises(InvalidInput, match="cannot take moments of weight 1"):
        moments.without(RunningMoments(2).update([[1.0, 2.0]]))
    with pytest.raises(InvalidInput, match="n_columns must be a whole number >= 1"):
        RunningMoments(0)
    with pytest.raises(InvalidInput, match="m2 must be at least 0"):
        RunningMoments.from_state(1.0, [0.0], [-1.0])
    with pytest.raises(InvalidInput, match="same shape"):
        RunningMoments.from_state(1.0, [0.0], [1.0, 2.0])
    with pytest.raises(InvalidInput, match="weight must be finite"):
        RunningMoments.from_state(float("inf"), [0.0], [1.0])
    assert moments.variance.tolist() == [0.0, 0.0]
    assert "weight=0" in repr(moments)
