"""NECO against scikit-learn's principal components."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

import normscale as ns


def outputs(n: int, seed: int) -> ns.ModelOutputs:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, 7)) @ np.random.default_rng(3).normal(size=(7, 7)) + 50.0
    return ns.ModelOutputs(rng.normal(size=(n, 4)), features=features)


TRAIN, TEST = outputs(400, 0), outputs(30, 1)


@pytest.mark.parametrize("components", (None, 2, 7))
def test_neco_is_its_formula(components: int | None) -> None:
    scaler = StandardScaler().fit(TRAIN.features)
    pca = PCA(components or 3).fit(scaler.transform(TRAIN.features))
    x = scaler.transform(TEST.features)
    share = np.linalg.norm(pca.transform(x), axis=1) / np.linalg.norm(x, axis=1)
    detector = ns.NECO(components).fit(TRAIN)
    np.testing.assert_allclose(detector.score(TEST), -share * TEST.logits.max(axis=1), rtol=1e-9)


def test_a_feature_that_never_varies_is_left_out() -> None:
    constant = [
        ns.ModelOutputs(rows.logits, features=np.c_[rows.features, np.full(len(rows), 5.0)]) for rows in (TRAIN, TEST)
    ]
    expected = ns.NECO().fit(TRAIN).score(TEST)
    np.testing.assert_allclose(ns.NECO().fit(constant[0]).score(constant[1]), expected, rtol=1e-9)


def test_average_features_have_no_direction() -> None:
    detector = ns.NECO().fit(TRAIN)
    row = ns.ModelOutputs([[3.0, 0.0, 0.0, 0.0]], features=detector.fitted_.mean[None])
    assert detector.score(row).tolist() == [0.0]
