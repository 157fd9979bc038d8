"""SHE against patterns averaged row by row."""

from __future__ import annotations

import numpy as np
import pytest

import normscale as ns
from normscale.detectors.class_features import SHE


def outputs(n: int, seed: int = 0, d: int = 7, n_classes: int = 4) -> ns.ModelOutputs:
    rng = np.random.default_rng(seed)
    return ns.ModelOutputs(rng.normal(size=(n, n_classes)), rng.normal(size=(n, d)), rng.integers(0, n_classes, n))


def slow(train: ns.ModelOutputs, test: ns.ModelOutputs) -> list[float]:
    stored: dict[int, list[np.ndarray]] = {}
    assert train.labels is not None
    for z, f, label in zip(train.logits, train.features, train.labels, strict=True):
        if max(range(len(z)), key=lambda i: z[i]) == label:
            stored.setdefault(int(label), []).append(f)
    scores: list[float] = []
    for z, f in zip(test.logits, test.features, strict=True):
        pattern = np.sum(stored[int(np.argmax(z))], axis=0) / len(stored[int(np.argmax(z))])
        scores.append(-sum(float(a * b) for a, b in zip(f, pattern, strict=True)))
    return scores


def test_scores_are_inner_products_with_the_mean_of_right_rows() -> None:
    train, test = outputs(200), outputs(60, 1)
    np.testing.assert_allclose(SHE().fit(train).score(test), slow(train, test), rtol=1e-10)


def test_planted_patterns() -> None:
    train = ns.ModelOutputs(
        [[9.0, 0.0], [9.0, 0.0], [9.0, 0.0], [0.0, 9.0]],
        [[4.0, 0.0], [2.0, 0.0], [0.0, 99.0], [0.0, 5.0]],
        labels=[0, 0, 1, 1],  # the third is predicted wrong: not stored
    )
    detector = SHE().fit(train)
    assert detector.fitted_.patterns.tolist() == [[3.0, 0.0], [0.0, 5.0]]
    test = ns.ModelOutputs([[1.0, 0.0]] * 3 + [[0.0, 1.0]], [[2.0, 7.0], [-1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    assert detector.score(test).tolist() == [-6.0, 3.0, 0.0, -5.0]


def test_copies_of_columns_double_the_product() -> None:
    train, test = outputs(200), outputs(60, 1)
    twice = [r.replace(features=np.c_[r.features, r.features]) for r in (train, test)]
    np.testing.assert_allclose(SHE().fit(twice[0]).score(twice[1]), 2.0 * SHE().fit(train).score(test), rtol=1e-10)


def test_a_class_without_right_rows_stores_nothing() -> None:
    train = ns.ModelOutputs([[1.0, 0.0], [1.0, 0.0]], [[3.0], [5.0]], labels=[0, 1])
    assert SHE().fit(train).score(ns.ModelOutputs([[0.0, 1.0], [1.0, 0.0]], [[7.0], [7.0]])).tolist() == [0.0, -21.0]
    with pytest.raises(ns.InvalidInput, match="no training row is predicted as its label"):
        SHE().fit(train.replace(labels=[1, 1]))
