from __future__ import annotations

import math
import pickle
from collections.abc import Iterable, Sequence
from dataclasses import FrozenInstanceError
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.metrics import roc_curve as sklearn_roc_curve

from normscale.errors import InvalidInput
from normscale.metrics import RankingResult, evaluate, precision_recall_curve, roc_curve
from normscale.metrics.metric import METRICS, Counts, values_of_counts

quick = settings(deadline=None, max_examples=60)

# slow and obvious definitions, in exact fractions


def slow_auroc(inside: Sequence[float], outside: Sequence[float]) -> Fraction:
    won = sum(Fraction(1) if o > i else Fraction(1, 2) if o == i else Fraction(0) for o in outside for i in inside)
    return Fraction(won) / (len(inside) * len(outside))


def slow_average_precision(negatives: Sequence[float], positives: Sequence[float]) -> Fraction:
    total, recall_before = Fraction(0), Fraction(0)
    for t in sorted({*negatives, *positives}, reverse=True):
        hits = sum(s >= t for s in positives)
        flagged = hits + sum(s >= t for s in negatives)
        recall = Fraction(hits, len(positives))
        total += (recall - recall_before) * Fraction(hits, flagged)
        recall_before = recall
    return total


def slow_fpr(negatives: Sequence[float], positives: Sequence[float], level: Fraction) -> Fraction:
    rates = [
        Fraction(sum(s >= t for s in negatives), len(negatives))
        for t in {*negatives, *positives}
        if Fraction(sum(s >= t for s in positives), len(positives)) >= level
    ]
    return min(rates)


def negated(scores: Iterable[float]) -> list[float]:
    return [-s for s in scores]


def slow_metrics(inside: Sequence[float], outside: Sequence[float], level: str = "0.95") -> dict[str, Fraction]:
    inside, outside = [float(s) for s in inside], [float(s) for s in outside]
    return {
        "auroc": slow_auroc(inside, outside),
        "aupr_out": slow_average_precision(inside, outside),
        "aupr_in": slow_average_precision(negated(outside), negated(inside)),
        "fpr95_out": slow_fpr(inside, outside, Fraction(level)),
        "fpr95_in": slow_fpr(negated(outside), negated(inside), Fraction(level)),
    }


few_values = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=12)
any_floats = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=12)
any_floats32 = st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=12)


def assert_matches_oracle(result: RankingResult, inside: Any, outside: Any, level: str = "0.95") -> None:
    expected = slow_metrics(inside, outside, level)
    for name in METRICS:
        assert getattr(result, name) == pytest.approx(float(expected[name]), abs=1e-14, rel=0), name
    assert result.auroc == float(expected["auroc"])  # whole-number arithmetic: the very same float
    assert result.fpr95_out == float(expected["fpr95_out"])
    assert result.fpr95_in == float(expected["fpr95_in"])


@quick
@given(few_values, few_values)
def test_ties_match_the_definitions(inside: list[float], outside: list[float]) -> None:
    assert_matches_oracle(evaluate(inside, outside), inside, outside)


@quick
@given(any_floats, any_floats)
def test_any_float64_matches_the_definitions(inside: list[float], outside: list[float]) -> None:
    assert_matches_oracle(evaluate(inside, outside), inside, outside)


@quick
@given(any_floats32, any_floats32, st.sampled_from(["f2", "f4"]))
def test_narrow_floats_match_the_definitions(inside: list[float], outside: list[float], dtype: str) -> None:
    with np.errstate(over="ignore"):
        a, b = np.array(inside, dtype), np.array(outside, dtype)
    a, b = np.nan_to_num(a), np.nan_to_num(b)
    assert_matches_oracle(evaluate(a, b), a.tolist(), b.tolist())


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        ([0.0, -0.0, 1.0], [-0.0, 0.0]),
        ([-0.0, -1.0], [-0.0, 2.0]),  # minus zero without plus zero
        ([-5e-324, 1e308], [5e-324, -1e308, 0.0]),  # no bit free for the label: dense ranks
        ([-1e-45, 3e38], [1e-45, -3e38, 0.0]),
        ([-3.0, -2.0], [-2.0, -1.0]),
        ([1.0, 2.0], [-2.0, -1.0]),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_extremes_of_the_number_format(inside: list[float], outside: list[float], dtype: Any) -> None:
    with np.errstate(over="ignore", under="ignore"):
        a, b = np.array(inside, dtype), np.array(outside, dtype)
    top = np.finfo(dtype).max
    a, b = np.clip(a, -top, top), np.clip(b, -top, top)
    assert_matches_oracle(evaluate(a, b), a.tolist(), b.tolist())
    curve = roc_curve(a, b)
    assert curve.thresholds[1:].tolist() == sorted({*a.tolist(), *b.tolist()}, reverse=True)


def random_scores(seed: int, dtype: Any, decimals: int) -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(seed)
    inside = rng.normal(size=40_000).round(decimals)
    return inside.astype(dtype), (rng.normal(size=23_001) + 0.7).round(decimals).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("decimals", [1, 3, 12])
def test_agrees_with_scikit_learn(dtype: Any, decimals: int) -> None:
    inside, outside = random_scores(3, dtype, decimals)
    scores = np.concatenate([inside, outside]).astype(np.float64)
    is_ood = np.r_[np.zeros(inside.size), np.ones(outside.size)]
    result = evaluate(inside, outside)
    assert result.auroc == pytest.approx(roc_auc_score(is_ood, scores), abs=1e-12)
    assert result.aupr_out == pytest.approx(average_precision_score(is_ood, scores), abs=1e-12)
    assert result.aupr_in == pytest.approx(average_precision_score(1 - is_ood, -scores), abs=1e-12)
    fpr, tpr, thresholds = sklearn_roc_curve(is_ood, scores, drop_intermediate=False)
    curve = roc_curve(inside, outside)
    np.testing.assert_allclose(curve.fpr, fpr, atol=1e-12)
    np.testing.assert_allclose(curve.tpr, tpr, atol=1e-12)
    np.testing.assert_array_equal(curve.thresholds, thresholds)
    assert result.fpr95_out == pytest.approx(fpr[tpr >= 0.95].min(), abs=1e-12)
    fpr, tpr, _ = sklearn_roc_curve(1 - is_ood, -scores, drop_intermediate=False)
    assert result.fpr95_in == pytest.approx(fpr[tpr >= 0.95].min(), abs=1e-12)


@quick
@given(few_values, few_values, st.randoms())
def test_order_of_the_inputs_never_matters(inside: list[float], outside: list[float], random: Any) -> None:
    before = evaluate(inside, outside)
    random.shuffle(inside)
    random.shuffle(outside)
    assert evaluate(inside, outside) == before


@quick
@given(few_values, few_values)
def test_increasing_maps_change_nothing(inside: list[float], outside: list[float]) -> None:
    # small whole numbers: the map keeps distinct values distinct in floating point
    assert evaluate(np.exp(inside) * 3 - 1, np.exp(outside) * 3 - 1) == evaluate(inside, outside)


@quick
@given(any_floats, any_floats)
def test_negating_and_swapping_turns_out_into_in(inside: list[float], outside: list[float]) -> None:
    there = evaluate(inside, outside)
    back = evaluate(negated(outside), negated(inside))
    assert back.auroc == there.auroc
    assert back.aupr_out == pytest.approx(there.aupr_in, abs=1e-14)
    assert back.aupr_in == pytest.approx(there.aupr_out, abs=1e-14)
    assert (back.fpr95_out, back.fpr95_in) == (there.fpr95_in, there.fpr95_out)


@quick
@given(any_floats, any_floats)
def test_swapping_the_sides_mirrors_auroc(inside: list[float], outside: list[float]) -> None:
    assert evaluate(inside, outside).auroc + evaluate(outside, inside).auroc == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize("level", ["0.05", "0.1", "0.55", "0.7", "0.9", "0.95", "1.0"])
@pytest.mark.parametrize("n", [1, 2, 3, 19, 20, 21, 40, 100])
def test_level_is_counted_exactly(level: str, n: int) -> None:
    inside, outside = list(range(0, 2 * n, 2)), list(range(1, 2 * n, 2))
    assert_matches_oracle(evaluate(inside, outside, tpr=float(level)), inside, outside, level)


def test_twenty_ood_inputs_need_nineteen_caught_and_not_twenty() -> None:
    outside = [0.0] + [1.0] * 19
    assert evaluate([0.5, 0.5], outside).fpr95_out == 0.0
    assert evaluate([0.5, 0.5], outside, tpr=0.951).fpr95_out == 1.0


def test_level_given_as_numpy_float_or_fraction() -> None:
    inside, outside = list(range(20)), [x - 0.5 for x in range(20)]
    expected = evaluate(inside, outside, tpr=0.55)
    for level in (np.float64(0.55), np.float32(0.55), np.array(0.55)):
        found = evaluate(inside, outside, tpr=level)  # type: ignore[arg-type]
        assert (found.fpr95_out, found.fpr95_in) == (expected.fpr95_out, expected.fpr95_in)
    exact = evaluate(inside, outside, tpr=Fraction(11, 20))  # type: ignore[arg-type]
    assert exact.fpr95_out == expected.fpr95_out


# where peers go wrong -----------------------------------------------------------------------------------


def test_scores_one_float32_step_apart_are_not_tied() -> None:
    step = np.arange(1, 6, dtype=np.float32) * np.float32(1e-7)
    inside, outside = np.float32(1) - step[3:], np.float32(1) - step[:2]
    assert len(np.unique(np.r_[inside, outside])) == 4
    assert evaluate(inside, outside).auroc == 1.0
    in_float64 = evaluate(1 - np.arange(4, 6) * 1e-12, 1 - np.arange(1, 3) * 1e-12)
    assert in_float64.auroc == 1.0


def test_constant_scores_are_worth_nothing() -> None:
    result = evaluate([0.3] * 6, [0.3] * 6)
    assert (result.auroc, result.aupr_out, result.aupr_in) == (0.5, 0.5, 0.5)
    assert (result.fpr95_out, result.fpr95_in) == (1.0, 1.0)
    uneven = evaluate([0.3] * 30, [0.3] * 10)
    assert (uneven.aupr_out, uneven.aupr_in) == (0.25, 0.75)


def test_three_and_two_perfectly_apart() -> None:
    result = evaluate([1, 2, 3], [4, 5])
    assert [getattr(result, name) for name in METRICS] == [1.0, 1.0, 1.0, 0.0, 0.0]
    wrong_way_round = evaluate([4, 5, 6], [1, 2])
    assert (wrong_way_round.auroc, wrong_way_round.fpr95_out, wrong_way_round.fpr95_in) == (0.0, 1.0, 1.0)


def test_average_precision_is_not_a_trapezoid() -> None:
    inside, outside = [0.1, 0.1, 0.4], [0.4, 0.4, 0.8]
    expected = float(slow_average_precision(inside, outside))
    assert evaluate(inside, outside).aupr_out == pytest.approx(expected, abs=1e-15)
    assert expected == pytest.approx(1 / 3 + 2 / 3 * 3 / 4)


def test_scores_outside_zero_one_are_left_as_they_are() -> None:
    inside, outside = [-300.0, -200.0, 100.0, 400.0], [100.0, 200.0, 500.0]
    assert evaluate(inside, outside) == evaluate(np.array(inside) / 1024, np.array(outside) / 1024)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("function", [evaluate, roc_curve, precision_recall_curve])
def test_one_bad_score_is_refused_by_name(bad: float, dtype: Any, function: Any) -> None:
    with pytest.raises(InvalidInput, match=r"ood_scores\[1\] is (NaN|infinity)"):
        function([1.0, 2.0], np.array([1.0, bad], dtype))
    with pytest.raises(InvalidInput, match=r"id_scores\[0\]"):
        function(np.array([bad, 1.0], dtype), [1.0, 2.0])


@pytest.mark.parametrize("function", [evaluate, roc_curve, precision_recall_curve])
def test_an_empty_side_is_refused_by_name(function: Any) -> None:
    with pytest.raises(InvalidInput, match="ood_scores is empty"):
        function([1.0], [])
    with pytest.raises(InvalidInput, match="id_scores is empty"):
        function(np.array([], np.float32), [1.0])


def test_other_arguments_are_checked() -> None:
    with pytest.raises(InvalidInput, match="shape"):
        evaluate([[1.0]], [1.0])
    with pytest.raises(InvalidInput, match="tpr must lie in"):
        evaluate([1.0], [1.0], tpr=95)
    with pytest.raises(InvalidInput, match="'delong', 'bootstrap'"):
        evaluate([1.0], [1.0], intervals="magic")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="'out', 'in'"):
        precision_recall_curve([1.0], [1.0], positive="ood")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"2\*\*53"):
        evaluate(np.array([2**60, 2**60 + 1]), [1.0])


def test_integers_booleans_and_mixed_types() -> None:
    expected = evaluate([0.0, 1.0, 1.0], [1.0, 2.0])
    assert evaluate([0, 1, 1], [1, 2]) == expected
    assert evaluate(np.array([0, 1, 1], np.uint8), np.array([1, 2], np.int64)) == expected
    assert evaluate(np.array([0, 1, 1], np.float16), np.array([1, 2], ">f8")) == expected
    assert evaluate([False, True], [True, True]).auroc == 0.75
    # a float32 and a float64 that differ are not tied
    assert evaluate(np.array([0.1], np.float32), np.array([0.1], np.float64)).auroc == 0.0


def test_inputs_are_left_untouched() -> None:
    inside, outside = np.array([3.0, -0.0, 2.0]), np.array([5.0, 1.0])[::-1]
    copies = inside.copy(), outside.copy()
    inside.setflags(write=False)
    evaluate(inside, outside, intervals="bootstrap")
    assert inside.tobytes() == copies[0].tobytes()
    assert outside.tobytes() == copies[1].tobytes()


# curves -------------------------------------------------------------------------------------------------


@quick
@given(few_values, few_values)
def test_curves_carry_the_metrics(inside: list[float], outside: list[float]) -> None:
    result = evaluate(inside, outside)
    roc = roc_curve(inside, outside)
    area = np.sum(np.diff(roc.fpr) * (roc.tpr[1:] + roc.tpr[:-1]) / 2)
    assert area == pytest.approx(result.auroc, abs=1e-14)
    out, into = precision_recall_curve(inside, outside), precision_recall_curve(inside, outside, "in")
    assert out.average_precision == pytest.approx(result.aupr_out, abs=1e-14)
    assert into.average_precision == pytest.approx(result.aupr_in, abs=1e-14)
    for t, p, r in zip(into.thresholds, into.precision, into.recall, strict=True):
        accepted = sum(s <= t for s in inside)
        assert r == accepted / len(inside)
        assert p == accepted / (accepted + sum(s <= t for s in outside))


def test_curves_are_read_only() -> None:
    curve = roc_curve([0.0], [1.0])
    with pytest.raises(ValueError, match="read-only"):
        curve.tpr[0] = 1


# the record ---------------------------------------------------------------------------------------------


def test_the_record_is_frozen_and_says_which_class_is_positive() -> None:
    result = evaluate([0.1, 0.3, 0.4, 0.5], [0.2, 0.5, 0.7])
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'auroc'"):
        result.auroc = 1.0  # type: ignore[attr-defined]
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'auroc'"):
        del result.auroc
    assert result.to_dict()["positive"] == "OoD for *_out, in-distribution for *_in"
    assert result.to_dict()["n_id"] == 4
    assert "intervals" not in result.to_dict()
    assert "positive class" in str(result)
    assert "FPR90" in str(evaluate([0.0], [1.0], tpr=0.9))
    assert pickle.loads(pickle.dumps(result)) == result  # noqa: S301
    assert hash(result) == hash(evaluate([0.1, 0.3, 0.4, 0.5], [0.2, 0.5, 0.7]))
    assert result != evaluate([0.1], [0.2])
    assert result != "a string"


def test_a_record_takes_its_own_fields_and_no_others() -> None:
    with pytest.raises(TypeError, match=r"missing .* keyword-only arguments: 'n_id' and 'n_ood'"):
        RankingResult(metrics={})  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match="RankingResult has no attribute 'nonsense'"):
        _ = evaluate([0.0], [1.0]).nonsense
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        RankingResult(nonsense=1.0)  # type: ignore[call-arg]


@quick
@given(few_values, few_values)
def test_rows_of_counts_may_have_empty_groups(inside: list[float], outside: list[float]) -> None:
    grid = range(-5, 6)  # groups at both ends, and maybe in the middle, are empty
    edges = [
        np.r_[0.0, np.cumsum([side.count(v) for v in grid])][None, :].repeat(2, axis=0) for side in (inside, outside)
    ]
    rows = values_of_counts(Counts(edges[0], edges[1], Fraction("0.95")))
    for name, expected in slow_metrics(inside, outside).items():
        np.testing.assert_allclose(rows[name], [float(expected)] * 2, atol=1e-14)
