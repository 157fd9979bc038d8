from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from normscale.errors import InvalidInput
from normscale.metrics import delong_interval, evaluate, evaluate_per_class
from normscale.metrics.paired import paired_bootstrap, resampled_auroc

quick = settings(deadline=None, max_examples=40)
Side = NDArray[np.float64]


def slow_auroc(inside: Side, outside: Side) -> float:
    won = sum(Fraction(1) if o > i else Fraction(1, 2) if o == i else Fraction(0) for o in outside for i in inside)
    return float(Fraction(won) / (len(inside) * len(outside)))


def slow_draws(n_id: int, n_ood: int, resamples: int, seed: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """The rows of each resample, drawn one resample at a time."""
    id_rng, ood_rng = np.random.default_rng((seed, 0)), np.random.default_rng((seed, 1))
    return [(id_rng.integers(0, n_id, n_id), ood_rng.integers(0, n_ood, n_ood)) for _ in range(resamples)]


few = st.integers(-3, 3).map(float)  # few values: ties within and between the sides


@st.composite
def two_methods(draw: st.DrawFn) -> tuple[Side, Side, Side, Side]:
    n_id, n_ood = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    sizes = (n_id, n_ood, n_id, n_ood)
    a, b, c, d = (np.array(draw(st.lists(few, min_size=n, max_size=n))) for n in sizes)
    return a, b, c, d


@quick
@given(two_methods(), st.integers(0, 5))
def test_it_is_a_loop_over_resamples_done_quickly(scores: tuple[Side, Side, Side, Side], seed: int) -> None:
    id_a, ood_a, id_b, ood_b = scores
    rows = slow_draws(len(id_a), len(ood_a), 30, seed)
    slow_a = np.array([slow_auroc(id_a[i], ood_a[o]) for i, o in rows])
    slow_b = np.array([slow_auroc(id_b[i], ood_b[o]) for i, o in rows])
    np.testing.assert_allclose(resampled_auroc([(id_a, ood_a), (id_b, ood_b)], 30, seed), [slow_a, slow_b], rtol=1e-15)
    found = paired_bootstrap(id_a, ood_a, id_b, ood_b, level=0.8, resamples=30, seed=seed)
    low, high = np.quantile(slow_a - slow_b, [0.1, 0.9])
    assert (found.interval.low, found.interval.high) == pytest.approx((low, high), abs=1e-15)
    assert found.wins == np.mean(slow_a > slow_b)
    assert found.ties == np.mean(slow_a == slow_b)
    assert found.auroc_a == evaluate(id_a, ood_a).auroc
    assert found.auroc_b == evaluate(id_b, ood_b).auroc
    assert found.difference == found.auroc_a - found.auroc_b


def test_batches_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    a, b, c, d = rng.normal(size=(4, 40))
    whole = paired_bootstrap(a, b, c, d, resamples=101, seed=3)
    monkeypatch.setattr("normscale.metrics.paired._BATCH", 7 * 80)
    assert paired_bootstrap(a, b, c, d, resamples=101, seed=3) == whole
    assert paired_bootstrap(a, b, c, d, resamples=101, seed=4) != whole


def test_the_same_ranking_ties_in_every_resample() -> None:
    rng = np.random.default_rng(1)
    inside, outside = rng.normal(size=50), rng.normal(size=30)
    same = paired_bootstrap(inside, outside, np.exp(inside), np.exp(outside))
    assert (same.difference, same.wins, same.ties) == (0.0, 0.0, 1.0)
    assert (same.interval.low, same.interval.high) == (0.0, 0.0)


def test_swapping_the_methods_mirrors_everything() -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.normal(size=60), rng.normal(size=40) + 1), (rng.normal(size=60), rng.normal(size=40) + 0.8)
    one, other = paired_bootstrap(*a, *b), paired_bootstrap(*b, *a)
    assert one.difference == -other.difference
    assert one.interval.low == pytest.approx(-other.interval.high)
    assert one.wins == pytest.approx(1 - other.wins - other.ties)


def test_pairing_narrows_the_interval() -> None:
    rng = np.random.default_rng(3)
    inside, outside = rng.normal(size=400), rng.normal(size=400) + 1
    noisy = inside + 0.05 * rng.normal(size=400), outside + 0.05 * rng.normal(size=400)
    alone = delong_interval(inside, outside)
    paired = paired_bootstrap(inside, outside, *noisy).interval
    assert paired.high - paired.low < 0.25 * (alone.high - alone.low)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(4)
    hits, trials = 0, 150
    for _ in range(trials):  # two methods equally good: signal plus their own noise
        inside, outside = rng.normal(size=60), rng.normal(size=60) + 1
        a, b = ((inside + rng.normal(size=60), outside + rng.normal(size=60)) for _ in range(2))
        hits += 0.0 in paired_bootstrap(*a, *b, level=0.9, resamples=200).interval
    assert 0.82 < hits / trials < 0.97


def test_one_ranking_per_class_is_the_mean_over_classes_that_are_left() -> None:
    rng = np.random.default_rng(5)
    inside, outside = rng.integers(0, 6, 14).astype(float), rng.integers(2, 8, 11).astype(float)
    id_classes, ood_classes = rng.integers(0, 4, 14), rng.integers(1, 5, 11)
    (found,) = resampled_auroc([(inside, outside, id_classes, ood_classes)], 60, 9)
    rows = slow_draws(14, 11, 60, 9)
    expected = [evaluate_per_class(inside[i], id_classes[i], outside[o], ood_classes[o]).auroc for i, o in rows]
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_a_resample_without_a_common_class_has_no_number() -> None:
    (found,) = resampled_auroc([([1.0, 2.0], [3.0, 4.0], [0, 1], [0, 2])], 200)
    assert set(found[np.isfinite(found)]) == {1.0}
    assert 0.3 < np.isfinite(found).mean() < 0.8  # (3/4) ** 2 in the long run


def test_in_distribution_draws_do_not_depend_on_the_ood_set() -> None:
    inside = np.arange(12.0)
    high, higher = np.full(5, 5.5), np.full(9, 5.5)  # AUROC = share of the in-distribution draws below 5.5
    np.testing.assert_array_equal(resampled_auroc([(inside, high)], 50), resampled_auroc([(inside, higher)], 50))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"same inputs by every method; got 2 and 1 in id_scores_a .* 1 and 1"):
        paired_bootstrap([1.0, 2.0], [3.0], [1.0], [3.0])
    with pytest.raises(InvalidInput, match=r"id_scores_b\[0\] is NaN"):
        paired_bootstrap([1.0], [3.0], [float("nan")], [3.0])
    with pytest.raises(InvalidInput, match="no class in common"):
        resampled_auroc([([1.0], [2.0], [0], [1])])
    for arguments in ({"resamples": 0}, {"seed": -1}, {"level": 1.0}):
        with pytest.raises(InvalidInput, match=next(iter(arguments))):
            paired_bootstrap([1.0], [2.0], [1.0], [2.0], **arguments)
