"""Standardised MaxLogit against a loop over classes, and a planted class whose logits are always large."""

from __future__ import annotations

import statistics

import numpy as np

import normscale as ns


def by_formula(train: list[list[float]], test: list[list[float]]) -> list[float]:
    """Mean and sample deviation of the largest logit of every predicted class, in plain Python."""
    tops: dict[int, list[float]] = {}
    for row in train:
        tops.setdefault(row.index(max(row)), []).append(max(row))
    every = [top for own in tops.values() for top in own]
    scores = []
    for row in test:
        own = tops.get(row.index(max(row)), [])
        used = own if len(own) > 1 and statistics.stdev(own) > 0 else every
        scores.append(-(max(row) - statistics.mean(used)) / statistics.stdev(used))
    return scores


def test_it_is_its_formula() -> None:
    rng = np.random.default_rng(0)
    train, test = rng.normal(0.0, 3.0, (200, 5)), rng.normal(0.0, 3.0, (50, 5))
    train[:, 4] -= 100.0  # class 4 is never predicted in training
    test[7, 4] = 20.0
    detector = ns.StandardisedMaxLogit().fit(train)
    np.testing.assert_allclose(detector.score(test), by_formula(train.tolist(), test.tolist()), rtol=1e-10)


def test_a_class_whose_logits_are_always_large_does_not_hide_its_strangers() -> None:
    """Class 0 answers with 20 +- 1, class 1 with 5 +- 1: a 12 of class 0 is strange, a 5 of class 1 is not."""
    rng = np.random.default_rng(1)
    train = np.zeros((400, 2))
    train[:200, 0] = rng.normal(20.0, 1.0, 200)
    train[200:, 1] = rng.normal(5.0, 1.0, 200)
    strange, usual = [12.0, 0.0], [0.0, 5.0]
    scores = ns.StandardisedMaxLogit().fit(train).score([strange, usual])
    assert scores[0] > 6.0 > 1.0 > abs(scores[1])
    assert (np.diff(ns.MaxLogit().score([strange, usual])) > 0).all()  # which MaxLogit gets wrong


def test_one_row_equal_rows_and_one_class_are_defined() -> None:
    for train in ([[3.0, 1.0]], [[3.0, 1.0]] * 5, [[3.0, 1.0], [4.0, 1.0]]):
        scores = ns.StandardisedMaxLogit().fit(train).score([[3.0, 1.0], [1.0, 2.0]])
        assert np.isfinite(scores).all()
        assert scores[1] > scores[0]


def test_equal_rows_of_a_class_have_no_deviation_whatever_rounding_says() -> None:
    rng = np.random.default_rng(0)
    varied = rng.normal(size=(200, 3)) + 4.0 * np.eye(3)[rng.integers(0, 2, 200)]
    repeated = np.tile([0.1, 0.2, 12.7], (50, 1))
    assert repeated.max(axis=1).std(ddof=1) > 0.0  # by rounding
    detector = ns.make_detector("standardised_max_logit").fit(np.concatenate([varied, repeated]))
    assert np.abs(detector.score(repeated + rng.normal(size=(50, 3)) * 0.1)).max() < 100.0
