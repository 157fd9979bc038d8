"""The other detectors against oracles and scikit-learn."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.covariance import OAS

import normscale as ns
import oracles


def outputs(n: int = 600, d: int = 12, n_classes: int = 4, seed: int = 0) -> ns.ModelOutputs:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, n)
    labels[:n_classes] = np.arange(n_classes)
    means = 4.0 * np.random.default_rng(0).normal(size=(n_classes, d))
    features = means[labels] + rng.normal(size=(n, d)) @ np.random.default_rng(9).normal(size=(d, d))
    logits = 2.0 * rng.normal(size=(n, n_classes)) + 5.0 * np.eye(n_classes)[labels]
    return ns.ModelOutputs(logits, features, labels)


def test_mahalanobis_equals_solving_for_every_pair() -> None:
    train, test = outputs(), outputs(50, seed=1)
    detector = ns.Mahalanobis().fit(train)
    assert train.features is not None
    assert train.labels is not None
    assert test.features is not None
    expected = oracles.mahalanobis(train.features, train.labels, test.features)
    np.testing.assert_allclose(detector.score(test), expected, rtol=1e-10)
    assert detector.rank_ == 12


def test_mahalanobis_is_not_moved_by_a_common_offset() -> None:
    train, test = outputs(), outputs(50, seed=1)
    assert train.features is not None
    assert test.features is not None
    expected = ns.Mahalanobis().fit(train).score(test)
    far_train = ns.ModelOutputs(train.logits, train.features + 1e6, train.labels)
    far_test = ns.ModelOutputs(test.logits, test.features + 1e6)
    np.testing.assert_allclose(ns.Mahalanobis().fit(far_train).score(far_test), expected, rtol=1e-7)


def test_oas_shrinkage_is_scikit_learns() -> None:
    train = outputs(40)
    assert train.features is not None
    assert train.labels is not None
    detector = ns.Mahalanobis(shrinkage="oas").fit(train)
    centred = train.features - detector.means_[train.labels]
    assert detector.shrinkage_ == pytest.approx(OAS(assume_centered=True).fit(centred).shrinkage_, rel=1e-10)


def test_a_singular_covariance_reports_its_rank() -> None:
    train = outputs()
    assert train.features is not None
    doubled = ns.ModelOutputs(train.logits, np.c_[train.features, train.features[:, :5]], train.labels)
    with pytest.warns(ns.NumericalWarning, match="rank 12 of 17"):
        detector = ns.Mahalanobis().fit(doubled)
    assert detector.rank_ == 12
    np.testing.assert_allclose(detector.score(doubled), ns.Mahalanobis().fit(train).score(train), rtol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ns.Mahalanobis(shrinkage=0.1).fit(doubled).rank_ == 17


def test_mahalanobis_without_variation_is_refused() -> None:
    same = ns.ModelOutputs(np.zeros((6, 2)), np.ones((6, 3)), [0, 0, 0, 1, 1, 1])
    with pytest.raises(ns.InvalidInput, match=r"rank 0 of 3"):
        ns.Mahalanobis().fit(same)
    unknown = ns.ModelOutputs(np.zeros((3, 2)), np.eye(3), [0, -1, 1])
    with pytest.raises(ns.InvalidInput, match=r"labels\[1\] is -1"):
        ns.Mahalanobis().fit(unknown)


def test_a_class_without_training_rows_is_no_candidate() -> None:
    train = outputs()
    assert train.labels is not None
    detector = ns.Mahalanobis().fit(train[train.labels != 2])
    assert detector.classes_.tolist() == [0, 1, 3]


@pytest.mark.parametrize("shrinkage", (-0.1, 1.1, "ledoit", None))
def test_shrinkage_is_checked(shrinkage: Any) -> None:
    with pytest.raises(ns.InvalidInput, match="shrinkage must"):
        ns.Mahalanobis(shrinkage=shrinkage)


def test_temperature_scaling_uses_the_fitted_temperature() -> None:
    validation, test = outputs(seed=3), outputs(40, seed=4)
    detector = ns.TemperatureScaling().fit(validation)
    assert validation.labels is not None
    assert detector.temperature_ == pytest.approx(ns.fit_temperature(validation.logits, validation.labels))
    np.testing.assert_allclose(detector.score(test), ns.msp_score(test.logits, detector.temperature_))


def test_multi_threshold_sets_one_threshold_per_predicted_class() -> None:
    train, test = outputs(), outputs(80, seed=5)
    detector = ns.MultiThreshold(keep=0.9).fit(train)
    scores, predicted = ns.msp_score(train.logits), train.predicted
    for c in range(4):
        mine = np.sort(scores[predicted == c])
        assert detector.thresholds_[c] == mine[oracles.ceil_share("0.9", len(mine)) - 1]
    excess = ns.msp_score(test.logits) - detector.thresholds_[test.predicted]
    np.testing.assert_allclose(detector.score(test), excess)
    assert np.array_equal(detector.predict(test), excess > 0)


def test_odin_is_msp_at_its_temperature() -> None:
    logits = outputs(30).logits
    assert np.array_equal(ns.ODIN(temperature=500.0).score(logits), ns.msp_score(logits, 500.0))


def test_detectors_say_what_is_missing() -> None:
    logits = np.zeros((4, 3))
    with pytest.raises(ns.InvalidInput, match="mahalanobis needs features to fit"):
        ns.Mahalanobis().fit(logits)
    with pytest.raises(ns.InvalidInput, match="mahalanobis needs labels to fit"):
        ns.Mahalanobis().fit(ns.ModelOutputs(logits, features=logits))
    with pytest.raises(ns.InvalidInput, match="temperature_scaling needs labels to fit"):
        ns.TemperatureScaling().fit(logits)
    fitted = ns.Mahalanobis().fit(outputs())
    with pytest.raises(ns.InvalidInput, match="reads features; got outputs without them"):
        fitted.score(logits)
    with pytest.raises(ns.NotFitted, match=r"Mahalanobis is not fitted; call fit\(outputs\) or load_detector\(path\)"):
        ns.Mahalanobis().score(outputs())
