"""OpenMax against loops over rows and classes, and its Weibull fit against scipy's likelihood."""

from __future__ import annotations

import math

import numpy as np
import pytest

import normscale as ns
from normscale.detectors.class_logits import TRANSLATION, OpenMax, WeibullTail, fit_weibull


def outputs(n: int, seed: int = 0, n_classes: int = 6) -> ns.ModelOutputs:
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % n_classes
    logits = rng.normal(size=(n, n_classes)) * 2.0 + 8.0 * np.eye(n_classes)[labels]
    return ns.ModelOutputs(logits, labels=labels)


def log_likelihood(tail: np.ndarray, shape: float, scale: float) -> float:
    """Of the textbook's Weibull density."""
    y = tail - tail.min() + TRANSLATION
    return float(sum(math.log(shape / scale) + (shape - 1) * math.log(v / scale) - (v / scale) ** shape for v in y))


@pytest.mark.parametrize("size", (2, 5, 20, 200))
@pytest.mark.parametrize("spread", (0.01, 1.0, 500.0))
def test_nothing_near_the_fit_is_likelier(size: int, spread: float) -> None:
    tail = 30.0 + spread * np.random.default_rng(size).exponential(size=size)
    _, shape, log_scale = fit_weibull(tail)
    scale = TRANSLATION * math.exp(log_scale)
    best = log_likelihood(tail, shape, scale)
    for factor in (0.99, 1.01):
        assert log_likelihood(tail, shape * factor, scale) < best
    for moved in (-0.02 / shape, 0.02 / shape):
        assert log_likelihood(tail, shape, scale * math.exp(moved)) < best


def test_the_fit_is_scipys() -> None:
    stats = pytest.importorskip("scipy.stats")
    tail = 5.0 + np.random.default_rng(0).gamma(2.0, size=25)
    smallest, shape, log_scale = fit_weibull(tail)
    theirs, _, scale = stats.weibull_min.fit(tail - smallest + TRANSLATION, floc=0)
    assert shape == pytest.approx(theirs, rel=1e-3)
    assert TRANSLATION * math.exp(log_scale) == pytest.approx(scale, rel=1e-6)
    mine = WeibullTail(np.array([smallest]), np.array([shape]), np.array([log_scale]))
    values = np.linspace(4.0, 15.0, 12)[:, None]
    exact = stats.weibull_min.cdf(values - smallest + TRANSLATION, shape, scale=TRANSLATION * math.exp(log_scale))
    np.testing.assert_allclose(mine.probability(values), exact, atol=1e-9)


def test_equal_values_make_a_step() -> None:
    for tail in (np.array([3.0]), np.full(20, 3.0), np.zeros(4)):
        step = WeibullTail(*(np.array([part]) for part in fit_weibull(tail)))
        below, above = step.probability(tail[:1, None] + np.array([[-1e-6], [1e-6]]))[:, 0]
        assert below < 1e-6
        assert above > 1.0 - 1e-6


def slow(train: ns.ModelOutputs, rows: np.ndarray, tail: int, alpha: int) -> list[float]:
    assert train.labels is not None
    groups: dict[int, list[np.ndarray]] = {}
    for z, label in zip(train.logits, train.labels.tolist(), strict=True):
        if int(np.argmax(z)) == label:
            groups.setdefault(label, []).append(z)
    means, fits = {}, {}
    for c, members in groups.items():
        means[c] = np.sum(members, axis=0) / len(members)
        distances = sorted(math.dist(z, means[c]) for z in members)
        fits[c] = fit_weibull(np.array(distances[-min(tail, max(2, len(members) // 20)) :]))
    scores = []
    for z in rows:
        revised, unknown = list(z), 0.0
        ranked = sorted(range(len(z)), key=lambda k: -z[k])
        for i, k in enumerate(ranked[:alpha], start=1):
            far = 1.0
            if k in fits:
                smallest, shape, log_scale = fits[k]
                y = (math.dist(z, means[k]) - smallest + TRANSLATION) / (TRANSLATION * math.exp(log_scale))
                far = 1.0 - math.exp(-min(y**shape, 700.0))
            a = min(alpha, len(z))
            revised[k] = z[k] * (1.0 - (a + 1 - i) / a * far)
            unknown += z[k] - revised[k]
        p = math.exp(unknown) / (math.exp(unknown) + sum(math.exp(v) for v in revised))
        scores.append(math.log(p / (1.0 - p)))
    return scores


@pytest.mark.parametrize(("tail", "alpha"), ((20, 10), (5, 3), (20, 1)))
def test_scores_are_the_papers(tail: int, alpha: int) -> None:
    train, test = outputs(3000), outputs(60, 1)
    detector = OpenMax(tail, alpha).fit(train)
    np.testing.assert_allclose(detector.score(test), slow(train, test.logits, tail, alpha), rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*far outside:normscale.NumericalWarning")
def test_planted_rows() -> None:
    """Far beyond every tail all logits but the smallest shares go to the unknown class; in a mean little does."""
    train = outputs(3000, n_classes=2)
    detector = OpenMax().fit(train)
    detector._marks_far_rows = False
    rows = np.array([[300.0, 200.0], detector.fitted_.means[0]])
    scores = detector.score(rows)
    assert scores[0] == pytest.approx(300.0 + 100.0 - 100.0)  # shares 1 and 1/2 go; 0 and 100 stay
    mean = detector.fitted_.means[0]  # next to nothing of its own class goes, half of the other's does
    assert scores[1] == pytest.approx(mean[1] / 2 - np.logaddexp(mean[0], mean[1] / 2), abs=0.05)
    assert scores[0] > scores[1]


def test_classes_without_right_rows_are_far() -> None:
    train = outputs(3000, n_classes=3)
    without = train[np.asarray(train.labels) != 2]
    detector = OpenMax().fit(without)
    assert detector.fitted_.known.tolist() == [True, True, False]
    rows = outputs(30, 1, 3).logits
    np.testing.assert_allclose(detector.score(rows), slow(without, rows, 20, 10), rtol=1e-6, atol=1e-6)
    with pytest.raises(ns.InvalidInput, match="no training row is predicted as its label"):
        OpenMax().fit(ns.ModelOutputs([[1.0, 0.0]], labels=[1]))


@pytest.mark.filterwarnings("ignore::normscale.NumericalWarning")
def test_duplicates_are_finite() -> None:
    one = ns.ModelOutputs([[3.0, 0.0]], labels=[0])
    rows = np.array([[3.0, 0.0], [9.0, 2.0], [-1e6, -1e6], [1e5, -1e5]])
    assert np.isfinite(OpenMax().fit(one[[0] * 4]).score(rows)).all()
    assert np.isfinite(OpenMax().fit(one[[0] * 50]).score(rows)).all()
