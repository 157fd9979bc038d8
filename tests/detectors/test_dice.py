"""DICE against a loop over weights, and a planted noisy weight that must go."""

from __future__ import annotations

import numpy as np
import pytest

import normscale as ns

SAMPLE = ns.load_sample()


def by_formula(train: ns.ModelOutputs, rows: np.ndarray, percentile: float) -> list[float]:
    """One weight at a time."""
    assert train.head is not None
    weight, bias = (part.astype(np.float64) for part in train.head)
    means = train.features.astype(np.float64).mean(axis=0)
    contributions = [[w * m for w, m in zip(row, means, strict=True)] for row in weight]
    limit = np.percentile(np.array(contributions).ravel(), percentile)
    scores = []
    for row in rows.astype(np.float64):
        logits = [
            sum(w * f for w, f, c in zip(weight[k], row, contributions[k], strict=True) if c > limit) + bias[k]
            for k in range(len(bias))
        ]
        scores.append(-float(np.logaddexp.reduce(logits)))
    return scores


@pytest.mark.parametrize("percentile", (10.0, 70.0, 90.0))
def test_it_is_its_formula(percentile: float) -> None:
    rows = SAMPLE.ood["unseen_digits"].features[:40]
    detector = ns.make_detector("dice", percentile=percentile).fit(SAMPLE.train)
    np.testing.assert_allclose(detector.score(rows), by_formula(SAMPLE.train, rows, percentile), rtol=1e-9)


def test_a_weight_that_never_matters_in_training_cannot_raise_a_logit() -> None:
    """Feature 2 is 0 in training; an OoD row excites it, and its weight would make the row look certain."""
    train = ns.ModelOutputs(
        features=[[5.0, 0.0, 0.0], [0.0, 5.0, 0.0]], head=([[1.0, 0.0, 3.0], [0.0, 1.0, 0.0]], [0.0, 0.0])
    )
    known, strange = [5.0, 0.0, 0.0], [0.0, 0.0, 9.0]
    detector = ns.DICE(percentile=50.0).fit(train)
    assert detector.fitted_.head.weight.tolist() == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    assert np.diff(detector.score(np.array([known, strange])))[0] > 3.0
    assert np.diff(ns.Energy().score(train.head.logits(np.array([known, strange]))))[0] < 0  # type: ignore[union-attr]


def test_chunks_of_two_networks_are_refused() -> None:
    head = SAMPLE.train.head
    assert head is not None
    other = SAMPLE.train.replace(head=(head.weight * 2.0, head.bias))
    with pytest.raises(ns.InvalidInput, match="different networks"):
        ns.DICE()._fit_chunks([SAMPLE.train, other])
