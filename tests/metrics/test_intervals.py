from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from normscale.errors import InvalidInput, NumericalWarning
from normscale.metrics import METRICS, bootstrap_intervals, delong_interval, evaluate

quick = settings(deadline=None, max_examples=60)

# slow and obvious definitions, in exact fractions


def slow_auroc(inside: Sequence[float], outside: Sequence[float]) -> Fraction:
    won = sum(Fraction(1) if o > i else Fraction(1, 2) if o == i else Fraction(0) for o in outside for i in inside)
    return Fraction(won) / (len(inside) * len(outside))


def slow_delong_variance(inside: Sequence[float], outside: Sequence[float]) -> Fraction:
    def psi(o: float, i: float) -> Fraction:
        return Fraction(1) if o > i else Fraction(1, 2) if o == i else Fraction(0)

    def variance(values: list[Fraction]) -> Fraction:
        mean = sum(values, Fraction(0)) / len(values)
        return sum(((v - mean) ** 2 for v in values), Fraction(0)) / (len(values) - 1)

    by_outside = [sum((psi(o, i) for i in inside), Fraction(0)) / len(inside) for o in outside]
    by_inside = [sum((psi(o, i) for o in outside), Fraction(0)) / len(outside) for i in inside]
    return variance(by_outside) / len(outside) + variance(by_inside) / len(inside)


scores = st.lists(st.integers(-4, 4).map(float), min_size=2, max_size=12)


@quick
@given(scores, scores, st.sampled_from([0.5, 0.9, 0.95, 0.999]))
def test_delong_matches_the_pairwise_variance(inside: list[float], outside: list[float], level: float) -> None:
    auroc = float(slow_auroc(inside, outside))
    assume(0 < auroc < 1)
    variance = float(slow_delong_variance(inside, outside))
    assume(variance > 0)
    found = delong_interval(inside, outside, level)
    half = NormalDist().inv_cdf(0.5 + level / 2) * math.sqrt(variance) / (auroc * (1 - auroc))
    centre = math.log(auroc / (1 - auroc))
    assert found.low == pytest.approx(1 / (1 + math.exp(half - centre)), rel=1e-12)
    assert found.high == pytest.approx(1 / (1 + math.exp(-half - centre)), rel=1e-12)
    assert 0 <= found.low < auroc < found.high <= 1


def test_delong_when_perfectly_apart_depends_on_the_number_of_pairs() -> None:
    assert delong_interval([1, 2, 3], [4, 5]).low == pytest.approx(0.025**0.5)
    assert delong_interval([1, 2, 3], [4, 5]).high == 1.0
    assert delong_interval([4, 5], [1, 2, 3]).high == pytest.approx(1 - 0.025**0.5)
    many = delong_interval(np.arange(1000), np.arange(1000) + 1000.0)
    assert many.low == pytest.approx(1 - 3.69 / 1000, abs=1e-4)
    touching = delong_interval([1, 2, 3], [3, 4, 5])  # a tie: not apart, the formula holds
    assert 0 < touching.low < touching.high < 1


def test_delong_of_constant_scores_is_a_point_and_says_so() -> None:
    with pytest.warns(NumericalWarning, match="single point"):
        found = delong_interval([1.0] * 3, [1.0] * 4)
    assert (found.low, found.high) == (0.5, 0.5)


def test_delong_needs_two_on_each_side() -> None:
    with pytest.raises(InvalidInput, match="id_scores must have at least 2 rows"):
        delong_interval([1.0], [1.0, 2.0])
    with pytest.raises(InvalidInput, match="ood_scores must have at least 2 rows"):
        delong_interval([1.0, 2.0], [2.0])
    with pytest.raises(InvalidInput, match="level"):
        delong_interval([1.0, 2.0], [2.0, 3.0], level=1.0)


def test_both_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(7)
    truth = NormalDist().cdf(1 / math.sqrt(2))  # of N(1, 1) against N(0, 1)
    trials = 150
    covered = {"delong": 0, "bootstrap": 0}
    for _ in range(trials):
        inside, outside = rng.normal(size=60), rng.normal(size=50) + 1
        covered["delong"] += truth in delong_interval(inside, outside, 0.9)
        covered["bootstrap"] += truth in bootstrap_intervals(inside, outside, 0.9, resamples=200).auroc
    for hits in covered.values():
        assert 0.82 < hits / trials < 0.97


def test_bootstrap_agrees_with_delong_on_a_large_sample() -> None:
    rng = np.random.default_rng(1)
    inside, outside = rng.normal(size=3000), rng.normal(size=2000) + 0.5
    boot, delong = bootstrap_intervals(inside, outside, resamples=600).auroc, delong_interval(inside, outside)
    width = delong.high - delong.low
    assert boot.low == pytest.approx(delong.low, abs=0.15 * width)
    assert boot.high == pytest.approx(delong.high, abs=0.15 * width)


def test_bootstrap_matches_resampling_by_hand() -> None:
    inside, outside = [0.1, 0.3, 0.3, 0.5, 0.5], [0.3, 0.5, 0.7, 0.7]
    rng = np.random.default_rng(11)
    draws = [evaluate(rng.choice(inside, 5), rng.choice(outside, 4)) for _ in range(4000)]
    found = bootstrap_intervals(inside, outside, level=0.8, resamples=4000, seed=3)
    for name in METRICS:
        low, high = np.quantile([getattr(draw, name) for draw in draws], [0.1, 0.9])
        interval = getattr(found, name)
        assert interval.low == pytest.approx(low, abs=0.05), name
        assert interval.high == pytest.approx(high, abs=0.05), name


def test_bootstrap_is_settled_by_its_seed_and_not_by_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    inside, outside = rng.normal(size=30), rng.normal(size=30) + 1
    first = bootstrap_intervals(inside, outside, resamples=100, seed=1)
    assert bootstrap_intervals(inside, outside, resamples=100, seed=1) == first
    assert bootstrap_intervals(inside[::-1], outside, resamples=100, seed=1) == first
    assert bootstrap_intervals(inside, outside, resamples=100, seed=2) != first
    monkeypatch.setattr("normscale.metrics.intervals._BATCH", 1)  # one resample at a time
    one_by_one = bootstrap_intervals(inside, outside, resamples=100, seed=1)
    for name in METRICS:  # other random numbers, the same distribution
        assert getattr(one_by_one, name).low == pytest.approx(getattr(first, name).low, abs=0.15)


def test_evaluate_attaches_what_was_asked_for() -> None:
    inside, outside = [0.1, 0.3, 0.4, 0.5], [0.2, 0.5, 0.7]
    assert evaluate(inside, outside).intervals is None
    delong = evaluate(inside, outside, intervals="delong")
    assert delong.intervals is not None
    assert delong.intervals.auroc == delong_interval(inside, outside)
    assert list(delong.intervals.metrics) == ["auroc"]
    boot = evaluate(inside, outside, intervals="bootstrap")
    assert boot.intervals == bootstrap_intervals(inside, outside)
    assert set(boot.to_dict()["intervals"]["fpr95_in"]) == {"low", "high"}
    assert "95 % intervals (bootstrap)" in str(boot)


@pytest.mark.parametrize("arguments", [{"resamples": 0}, {"seed": -1}, {"level": 0.0}, {"tpr": 2.0}])
def test_bootstrap_checks_its_arguments(arguments: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(arguments))):
        bootstrap_intervals([1.0], [2.0], **arguments)  # type: ignore[arg-type]
