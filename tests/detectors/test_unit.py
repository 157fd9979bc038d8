"""Features of length one: Mahalanobis++ against scikit-learn, in parts, and where plain distances are upside down."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.covariance import OAS
from sklearn.preprocessing import normalize

import normscale as ns
from normscale.detectors.partial_fit import PartialFit, merged


def outputs(n: int, seed: int, *, short: bool = False) -> ns.ModelOutputs:
    """Five classes in twelve features; ``short`` rows point anywhere and are a fifth as long."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 5, n)
    centres = 1.2 * np.random.default_rng(7).normal(size=(5, 12))
    features = rng.normal(size=(n, 12)) * (0.2 if short else 1.0) + (0.0 if short else centres[labels])
    logits = features @ centres.T
    return ns.ModelOutputs(logits, features, labels)


@pytest.mark.parametrize("n", (20, 400))
def test_mahalanobis_of_unit_rows_with_scikit_learns_covariance(n: int) -> None:
    train, test = outputs(n, 0), outputs(50, 1)
    assert train.labels is not None
    unit = normalize(train.features)
    means = np.array([unit[train.labels == c].mean(axis=0) for c in np.unique(train.labels)])
    residual = unit - means[np.searchsorted(np.unique(train.labels), train.labels)]
    precision = np.linalg.inv(OAS(assume_centered=True).fit(residual).covariance_)
    apart = normalize(test.features)[:, None, :] - means
    expected = np.einsum("nkd,de,nke->nk", apart, precision, apart).min(axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ns.NumericalWarning)  # few rows a class
        detector = ns.make_detector("unit+mahalanobis").fit(train)
    np.testing.assert_allclose(detector.score(test), expected, rtol=1e-8)
    assert detector.about.title == "Mahalanobis++"


def test_short_features_are_no_longer_familiar() -> None:
    train, test, ood = outputs(600, 0), outputs(300, 1), outputs(300, 2, short=True)
    plain, unit = (ns.make_detector(name).fit(train) for name in ("mahalanobis", "unit"))
    assert ns.auroc(plain.score(test), plain.score(ood)) < 0.8 < 0.9 < ns.auroc(unit.score(test), unit.score(ood))


def test_length_does_not_matter_and_zeros_stay_zeros() -> None:
    train, test = outputs(300, 0), outputs(20, 1)
    for name in ("unit+mahalanobis", "unit+relative_mahalanobis", "unit+knn"):
        detector = ns.make_detector(name).fit(train)
        longer = test.features * np.geomspace(1e-200, 1e200, 20)[:, None]
        np.testing.assert_allclose(detector.score(longer), detector.score(test.features), rtol=1e-9, atol=1e-9)
        assert np.isfinite(detector.score(np.zeros((1, 12)))).all()


@pytest.mark.parametrize("name", ("unit+mahalanobis", "unit+relative_mahalanobis", "centred+norm_scaling"))
def test_a_step_that_learns_nothing_is_fitted_in_parts(name: str) -> None:
    train = outputs(300, 0)
    fit = PartialFit(ns.make_detector(name))
    parts = [fit.partial([train[:10], train[10:90]]), fit.partial([train[90:]])]
    assert fit.finish(merged(*parts))
    rows: Any = outputs(20, 1)
    expected = ns.make_detector(name).fit(train).score(rows)
    np.testing.assert_allclose(fit.detector.score(rows), expected, rtol=1e-9, atol=1e-9)
    with pytest.raises(ns.InvalidInput, match="cannot be fitted in parts: its fit takes all rows in one place"):
        PartialFit(ns.make_detector("unit+knn"))


def test_classes_may_be_the_predicted_ones() -> None:
    train = outputs(300, 0)
    by_prediction = ns.Mahalanobis(classes="predicted").fit(train.replace(labels=None))
    expected = ns.Mahalanobis().fit(train.replace(labels=train.predicted)).score(train)
    np.testing.assert_array_equal(by_prediction.score(train), expected)
    with pytest.raises(ns.InvalidInput, match="mahalanobis reads logits"):
        ns.Mahalanobis(classes="predicted").fit(train.only("features"))


def test_a_bad_row_is_named_by_its_place() -> None:
    train = outputs(40_000, 0)
    train.features[30_000, 3] = np.nan
    with pytest.raises(ns.InvalidInput, match="features row 30000 holds NaN in column 3"):
        ns.make_detector("unit+mahalanobis").fit(train)
    with pytest.raises(ns.InvalidInput, match="unit passes features on, so its score must read that; energy reads"):
        ns.make_detector("unit+energy")
