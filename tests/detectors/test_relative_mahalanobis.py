"""Relative Mahalanobis against solving both systems for every pair."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.covariance import OAS

import normscale as ns
from normscale.detectors.mahalanobis import RelativeMahalanobis


def outputs(n: int = 600, d: int = 9, n_classes: int = 4, seed: int = 0) -> ns.ModelOutputs:
    rng = np.random.default_rng(seed)
    labels = np.sort(rng.integers(0, n_classes, n) ** 2 % n_classes) if n_classes > 2 else np.arange(n) % n_classes
    means = 3.0 * np.random.default_rng(8).normal(size=(n_classes, d))
    features = means[labels] + rng.normal(size=(n, d)) @ np.random.default_rng(9).normal(size=(d, d)) + 50.0
    return ns.ModelOutputs(features=features, labels=labels)


def slow(train: ns.ModelOutputs, rows: np.ndarray) -> np.ndarray:
    """Two Gaussians, one linear system for every pair."""
    features, labels = train.features, train.labels
    assert labels is not None
    present = sorted(set(labels.tolist()))
    means = {c: features[labels == c].mean(axis=0) for c in present}
    within = sum(np.outer(f - means[c], f - means[c]) for f, c in zip(features, labels.tolist(), strict=True))
    centre = features.mean(axis=0)
    overall = sum(np.outer(f - centre, f - centre) for f in features)
    n = len(features)
    scores = []
    for row in rows:
        background = (row - centre) @ np.linalg.solve(overall / n, row - centre)
        nearest = min((row - m) @ np.linalg.solve(within / n, row - m) for m in means.values())
        scores.append(nearest - background)
    return np.array(scores)


@pytest.mark.parametrize(("d", "n_classes"), ((9, 4), (3, 7), (1, 2), (6, 2)))
def test_scores_are_the_difference_of_both_distances(d: int, n_classes: int) -> None:
    train, test = outputs(d=d, n_classes=n_classes), outputs(40, d, n_classes, seed=1)
    np.testing.assert_allclose(
        RelativeMahalanobis(shrinkage=0.0).fit(train).score(test), slow(train, test.features), rtol=1e-8
    )


def test_shrinkage_moves_the_covariance_within_classes() -> None:
    """Both Gaussians have the shrunk covariance: the one of all rows is it and that between the class means."""
    train, test = outputs(30), outputs(10, seed=1)
    assert train.labels is not None
    means = np.array([train.features[train.labels == c].mean(axis=0) for c in np.unique(train.labels)])
    own = np.searchsorted(np.unique(train.labels), train.labels)
    within = OAS(assume_centered=True).fit(train.features - means[own]).covariance_
    centre = train.features.mean(axis=0)
    overall = within + np.cov((means[own] - centre).T, bias=True)
    apart = test.features[:, None] - means
    nearest = np.einsum("nkd,nkd->nk", apart @ np.linalg.inv(within), apart).min(axis=1)
    apart = test.features - centre
    expected = nearest - np.einsum("nd,nd->n", apart @ np.linalg.inv(overall), apart)
    np.testing.assert_allclose(RelativeMahalanobis().fit(train).score(test), expected, rtol=1e-8)


def test_planted_positions() -> None:
    """Two classes at -4 and 4 with variance 1 in one dimension: S = 1, S_0 = 17; a second column tells nothing."""
    x = np.array([-5.0, -3.0, 3.0, 5.0])
    train = ns.ModelOutputs(features=np.c_[np.tile(x, 2), np.repeat([-1.0, 1.0], 4)], labels=[0, 0, 1, 1] * 2)
    detector = RelativeMahalanobis(shrinkage=0.0).fit(train)
    rows = np.array([[4.0, 0.0], [0.0, 0.0], [0.0, 900.0], [10.0, -3.0]])
    expected = [0.0 - 16 / 17, 16.0, 16.0, 36.0 - 100 / 17]
    np.testing.assert_allclose(detector.score(rows), expected, atol=1e-9)
    assert detector.fitted_.projection.shape == (2, 1)


def test_copies_and_zeros_of_columns_change_nothing() -> None:
    train, test = outputs(), outputs(40, seed=1)
    expected = RelativeMahalanobis(shrinkage=0.0).fit(train).score(test)

    def wide(record: ns.ModelOutputs) -> ns.ModelOutputs:
        f = record.features
        return ns.ModelOutputs(features=np.c_[f, f, np.zeros(len(f)), 3.0 * f[:, 0] - f[:, 1]], labels=record.labels)

    with pytest.warns(ns.NumericalWarning, match="rank 9 of 20"):
        detector = RelativeMahalanobis(shrinkage=0.0).fit(wide(train))
    np.testing.assert_allclose(detector.score(wide(test)), expected, rtol=1e-6, atol=1e-6)


def test_one_class_scores_zero_and_duplicates_stay_finite() -> None:
    train = outputs(50, n_classes=1)
    assert not RelativeMahalanobis(shrinkage=0.0).fit(train).score(outputs(9, seed=1)).any()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        few = RelativeMahalanobis(shrinkage=0.0).fit(outputs(8, d=20, n_classes=2))
        twice = RelativeMahalanobis(shrinkage=0.0).fit(outputs(9)[[0, 0, 1, 1, 5, 5, 6, 6]])
    assert np.isfinite(few.score(outputs(9, d=20, seed=1))).all()
    assert np.isfinite(twice.score(outputs(9, seed=1))).all()


def test_what_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(ns.InvalidInput, match="rank 0 of 3"):
        RelativeMahalanobis(shrinkage=0.0).fit(ns.ModelOutputs(features=np.ones((4, 3)), labels=[0, 0, 1, 1]))
    with pytest.raises(ns.InvalidInput, match=r"labels\[1\] is -1"):
        RelativeMahalanobis(shrinkage=0.0).fit(ns.ModelOutputs(features=np.eye(3), labels=[0, -1, 1]))
