from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscale.errors import InvalidInput
from normscale.metrics import threshold_at, thresholds_per_class

quick = settings(deadline=None, max_examples=60)

values = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=40)
shares = st.integers(1, 100).map(lambda percent: percent / 100)


def smallest_that_keeps(scores: list[float], keep: float) -> float:
    wanted = Fraction(str(keep)) * len(scores)
    return min(t for t in scores if sum(s <= t for s in scores) >= wanted)


@quick
@given(values, shares)
def test_is_the_smallest_score_that_keeps_enough(scores: list[float], keep: float) -> None:
    assert threshold_at(scores, keep) == smallest_that_keeps(scores, keep)


@pytest.mark.parametrize(
    ("keep", "n", "rank"),
    [(0.95, 20, 19), (0.55, 20, 11), (0.07, 100, 7), (0.29, 100, 29), (1, 7, 7), (0.001, 5, 1)],
)
def test_rank_is_exact(keep: float, n: int, rank: int) -> None:
    assert threshold_at(np.arange(1, n + 1), keep) == rank
    assert threshold_at(np.arange(n, 0, -1), keep) == rank


@quick
@given(values, shares)
def test_conformal_rank_counts_the_new_input(scores: list[float], keep: float) -> None:
    rank = math.ceil(Fraction(str(keep)) * (len(scores) + 1))
    if keep == 1.0:
        with pytest.raises(InvalidInput, match="keep"):
            threshold_at(scores, keep, conformal=True)
    elif rank > len(scores):
        with pytest.raises(InvalidInput, match="must hold at least"):
            threshold_at(scores, keep, conformal=True)
    else:
        assert threshold_at(scores, keep, conformal=True) == sorted(scores)[rank - 1]


def test_conformal_coverage_is_at_least_what_it_says() -> None:
    # exchangeable ranks: leave each of n + 1 scores out once; a share of at least keep must be accepted
    scores = np.random.default_rng(0).permutation(21).astype(float)
    for keep in (0.5, 0.8, 0.9, 0.95):
        accepted = [scores[i] <= threshold_at(np.delete(scores, i), keep, conformal=True) for i in range(scores.size)]
        assert np.mean(accepted) >= keep
    plain = [scores[i] <= threshold_at(np.delete(scores, i), 0.95) for i in range(scores.size)]
    assert np.mean(plain) < 0.95  # what conformal is for


def test_conformal_says_how_many_scores_it_needs() -> None:
    with pytest.raises(InvalidInput, match=r"at least 19 scores .* keep=0.95; got 18"):
        threshold_at(np.arange(18), conformal=True)
    assert threshold_at(np.arange(19), conformal=True) == 18
    with pytest.raises(InvalidInput, match="at least 14 scores"):  # 0.93 / 0.07 = 13.3
        threshold_at(np.arange(13), 0.93, conformal=True)
    assert threshold_at(np.arange(14), 0.93, conformal=True) == 13


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32])
def test_every_dtype(dtype: type) -> None:
    assert threshold_at(np.array([3, 1, 2], dtype), 0.5) == 2.0


@pytest.mark.parametrize(
    ("scores", "keep", "message"),
    [
        ([], 0.95, "id_scores is empty"),
        ([1.0, math.nan], 0.95, r"id_scores\[1\] is NaN"),
        ([math.inf], 0.95, "infinity"),
        ([1.0], 95, r"For 95 % write 0.95"),
        ([1.0], 0.0, "keep"),
        ([1.0], math.nan, "keep"),
        ([1.0], "0.95", "keep"),
    ],
)
def test_bad_arguments_are_refused(scores: list[float], keep: float, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        threshold_at(scores, keep)


def test_per_class_is_threshold_at_within_each_class() -> None:
    rng = np.random.default_rng(2)
    scores, classes = rng.normal(size=400), rng.integers(0, 4, 400)
    for conformal in (False, True):
        found = thresholds_per_class(scores, classes, 5, 0.9, conformal=conformal)
        expected = [threshold_at(scores[classes == c], 0.9, conformal=conformal) for c in range(4)]
        assert found.tolist() == [*expected, threshold_at(scores, 0.9, conformal=conformal)]


def test_a_class_with_too_few_scores_gets_the_common_threshold() -> None:
    scores, classes = np.arange(40.0), np.repeat([0, 1, 2], [19, 18, 3])
    common = threshold_at(scores, conformal=True)
    assert thresholds_per_class(scores, classes, 3, conformal=True).tolist() == [18.0, common, common]
    assert thresholds_per_class(scores, classes, 3).tolist() == [18.0, 36.0 - 0.0, 39.0]
    few = thresholds_per_class(scores, classes, 3, min_count=4)
    assert few.tolist() == [18.0, 36.0, threshold_at(scores)]


def test_per_class_bad_arguments() -> None:
    with pytest.raises(InvalidInput, match="from 0 to 1"):
        thresholds_per_class([1.0], [2], 2)
    with pytest.raises(InvalidInput, match="one entry per row"):
        thresholds_per_class([1.0], [0, 1], 2)
    with pytest.raises(InvalidInput, match="min_count"):
        thresholds_per_class([1.0], [0], 2, min_count=0)
    with pytest.raises(InvalidInput, match="at least 19"):
        thresholds_per_class([1.0], [0], 2, conformal=True)
