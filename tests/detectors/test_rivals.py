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
    detector = ns.Mahalanobis(shrinkage=0.0).fit(train)
    assert train.labels is not None
    expected = oracles.mahalanobis(train.features, train.labels, test.features)
    np.testing.assert_allclose(detector.score(test), expected, rtol=1e-10)
    assert detector.fitted_.gaussians[0].whitening.shape[1] == 12


def test_mahalanobis_is_not_moved_by_a_common_offset() -> None:
    train, test = outputs(), outputs(50, seed=1)
    expected = ns.Mahalanobis(shrinkage=0.0).fit(train).score(test)
    far_train = ns.ModelOutputs(train.logits, train.features + 1e6, train.labels)
    far_test = ns.ModelOutputs(test.logits, test.features + 1e6)
    np.testing.assert_allclose(ns.Mahalanobis(shrinkage=0.0).fit(far_train).score(far_test), expected, rtol=1e-7)


def test_oas_shrinkage_is_scikit_learns() -> None:
    train = outputs(40)
    assert train.labels is not None
    detector = ns.Mahalanobis(shrinkage="oas").fit(train)
    centred = train.features - detector.fitted_.gaussians[0].means[train.labels]
    assert detector.fitted_.gaussians[0].shrinkage == pytest.approx(
        OAS(assume_centered=True).fit(centred).shrinkage_, rel=1e-10
    )


def test_a_singular_covariance_reports_its_rank() -> None:
    train = outputs()
    doubled = ns.ModelOutputs(train.logits, np.c_[train.features, train.features[:, :5]], train.labels)
    with pytest.warns(ns.NumericalWarning, match="rank 12 of 17"):
        detector = ns.Mahalanobis(shrinkage=0.0).fit(doubled)
    assert detector.fitted_.gaussians[0].whitening.shape[1] == 12
    np.testing.assert_allclose(
        detector.score(doubled), ns.Mahalanobis(shrinkage=0.0).fit(train).score(train), rtol=1e-6
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ns.Mahalanobis(shrinkage=0.1).fit(doubled).fitted_.gaussians[0].whitening.shape[1] == 17


def test_mahalanobis_without_variation_is_refused() -> None:
    same = ns.ModelOutputs(np.zeros((6, 2)), np.ones((6, 3)), [0, 0, 0, 1, 1, 1])
    with pytest.raises(ns.InvalidInput, match=r"rank 0 of 3"):
        ns.Mahalanobis(shrinkage=0.0).fit(same)
    unknown = ns.ModelOutputs(np.zeros((3, 2)), np.eye(3), [0, -1, 1])
    with pytest.raises(ns.InvalidInput, match=r"labels\[1\] is -1"):
        ns.Mahalanobis(shrinkage=0.0).fit(unknown)


def test_a_class_without_training_rows_is_no_candidate() -> None:
    train = outputs()
    assert train.labels is not None
    detector = ns.Mahalanobis(shrinkage=0.0).fit(train[train.labels != 2])
    assert detector.fitted_.gaussians[0].classes.tolist() == [0, 1, 3]


@pytest.mark.parametrize("shrinkage", (-0.1, 1.1, "ledoit", None))
def test_shrinkage_is_checked(shrinkage: Any) -> None:
    with pytest.raises(ns.InvalidInput, match="shrinkage must"):
        ns.Mahalanobis(shrinkage=shrinkage)


def test_temperature_scaling_uses_the_fitted_temperature() -> None:
    validation, test = outputs(seed=3), outputs(40, seed=4)
    detector = ns.TemperatureScaling().fit(validation)
    assert validation.labels is not None
    assert detector.fitted_.temperature == pytest.approx(ns.fit_temperature(validation.logits, validation.labels))
    np.testing.assert_allclose(detector.score(test), ns.msp_score(test.logits, detector.fitted_.temperature))


def test_multi_threshold_sets_one_threshold_per_predicted_class() -> None:
    train, test = outputs(), outputs(80, seed=5)
    detector = ns.MultiThreshold(keep=0.9).fit(train)
    scores, predicted = ns.msp_score(train.logits), train.predicted
    for c in range(4):
        mine = np.sort(scores[predicted == c])
        assert detector.fitted_.thresholds[c] == mine[oracles.ceil_share("0.9", len(mine)) - 1]
    excess = ns.msp_score(test.logits) - detector.fitted_.thresholds[test.predicted]
    np.testing.assert_allclose(detector.score(test), excess)
    assert np.array_equal(detector.predict(test), excess > 0)


def test_odin_is_msp_of_perturbed_logits_at_its_temperature() -> None:
    plain, perturbed = outputs(30).logits, outputs(30, seed=1).logits
    record = ns.ModelOutputs(plain, perturbed_logits=perturbed)
    assert np.array_equal(ns.ODIN(temperature=500.0).score(record), ns.msp_score(perturbed, 500.0))
    with pytest.raises(ns.InvalidInput, match="odin reads perturbed_logits; got outputs with logits"):
        ns.ODIN().score(ns.ModelOutputs(plain))
    perturbed[3, 1] = np.nan
    with pytest.raises(ns.InvalidInput, match="perturbed_logits row 3 holds NaN in column 1"):
        ns.ODIN().score(record)


def layered(n: int, seed: int) -> ns.ModelOutputs:
    """Two layers of different width and scale, and what an attack makes of them."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    early = 100.0 * (rng.normal(size=(n, 3)) + labels[:, None])
    late = rng.normal(size=(n, 6)) + 2.0 * np.eye(3, 6)[labels]
    return ns.ModelOutputs(
        layer1=early, features=late, labels=labels, attacked_layer1=early + 30.0, attacked_features=late + 1.5
    )


def test_layers_are_joined_in_deviations_over_the_training_rows() -> None:
    train, test = layered(300, 0), layered(60, 1)
    assert train.labels is not None
    detector = ns.Mahalanobis(layers=["layer1", "features"], shrinkage=0.0).fit(train)
    expected = np.zeros(60)
    for name in ("layer1", "features"):
        own = oracles.mahalanobis(train.array(name), train.labels, train.array(name))
        expected += oracles.mahalanobis(train.array(name), train.labels, test.array(name)) / own.std() / 2
    np.testing.assert_allclose(detector.score(test), expected, rtol=1e-9)
    assert detector.reads == ("layer1", "features")
    assert detector._formula() is None
    fixed = ns.Mahalanobis(layers="layer1,features", shrinkage=0.0, weights=[0.0, 1.0]).fit(train)
    np.testing.assert_allclose(fixed.score(test), ns.Mahalanobis(shrinkage=0.0).fit(train).score(test), rtol=1e-12)


def test_weights_fitted_on_attacks_are_those_of_a_logistic_regression() -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    train = layered(300, 0)
    assert train.labels is not None
    detector = ns.Mahalanobis(layers=["layer1", "features"], shrinkage=0.0, weights="attacks").fit(train)
    columns = [
        np.concatenate(
            [oracles.mahalanobis(train.array(n), train.labels, train.array(p + n)) for p in ("", "attacked_")]
        )
        for n in ("layer1", "features")
    ]
    rows, attacked = np.stack(columns, 1), np.arange(600) >= 300
    scaler = StandardScaler().fit(rows)
    reference = LogisticRegression(C=1.0, tol=1e-10, max_iter=1000).fit(scaler.transform(rows), attacked)
    np.testing.assert_allclose(detector.fitted_.layer_weights, reference.coef_[0] / scaler.scale_, rtol=1e-4)
    with pytest.raises(ns.InvalidInput, match="mahalanobis reads attacked_layer1; got outputs with layer1"):
        ns.Mahalanobis(layers=["layer1", "features"], weights="attacks").fit(train.only("layer1", "features"))


def test_layers_and_weights_are_checked() -> None:
    for layers in ((), ("a", "a"), ("not a name",), ("labels",)):
        with pytest.raises(ns.InvalidInput, match=r"layers must be|name is a word"):
            ns.Mahalanobis(layers=layers)
    with pytest.raises(ns.InvalidInput, match="weights must be 2 numbers, one a layer; got 1"):
        ns.Mahalanobis(layers=("a", "b"), weights=[1.0])
    with pytest.raises(ns.InvalidInput, match="weights must be one of 'uniform', 'attacks'"):
        ns.Mahalanobis(weights="equal")


def test_detectors_say_what_is_missing() -> None:
    logits = np.zeros((4, 3))
    with pytest.raises(
        ns.InvalidInput,
        match=r"mahalanobis reads features; got .* Pass ModelOutputs\(features=",
    ):
        ns.Mahalanobis(shrinkage=0.0).fit(ns.ModelOutputs(logits))
    with pytest.raises(ns.InvalidInput, match="mahalanobis needs labels to fit"):
        ns.Mahalanobis(shrinkage=0.0).fit(ns.ModelOutputs(logits, features=logits))
    with pytest.raises(ns.InvalidInput, match="temperature_scaling needs labels to fit"):
        ns.TemperatureScaling().fit(logits)
    fitted = ns.Mahalanobis(shrinkage=0.0).fit(outputs())
    with pytest.raises(ns.InvalidInput, match="reads features; got outputs with logits"):
        fitted.score(ns.ModelOutputs(logits))
    with pytest.raises(ns.NotFitted, match=r"Mahalanobis is not fitted; call fit\(outputs\) or load_detector\(path\)"):
        ns.Mahalanobis(shrinkage=0.0).score(outputs())


def test_rtl_says_of_every_row_what_least_squares_on_the_rows_so_far_says() -> None:
    sample = ns.load_sample()
    detector = ns.RTL(ridge=2.0).fit(sample.train)
    rows = ns.ModelOutputs.concatenate([sample.test, sample.ood["unseen_digits"]])[::5]
    targets = detector.scorer.score(rows)
    design = np.c_[rows.features.astype(np.float64), np.ones(len(rows))]
    start, ridge = detector.fitted_.start, 2.0 * np.eye(design.shape[1])
    expected = [
        row @ np.linalg.solve(ridge + seen.T @ seen, ridge @ start + seen.T @ targets[: i + 1])
        for i, row in enumerate(design)
        for seen in [design[: i + 1]]
    ]
    found = np.concatenate([detector.stream(rows[a:b]) for a, b in ((0, 1), (1, 40), (40, 143), (143, len(rows)))])
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(detector.state_.covariance, np.linalg.inv(ridge + design.T @ design), atol=1e-10)
