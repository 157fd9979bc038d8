"""KL-matching against a loop over classes in 50 digits, and a softmax that is typical of a class though not certain."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

import normscale as ns


def by_formula(train: list[list[float]], test: list[list[float]]) -> list[float]:
    """The smallest sum of p log(p / d) over the classes that training predicts."""

    def softmax(row: list[float]) -> list[mpmath.mpf]:
        weights = [mpmath.exp(z) for z in row]
        return [w / mpmath.fsum(weights) for w in weights]

    with mpmath.workdps(50):
        groups: dict[int, list[list[mpmath.mpf]]] = {}
        for row in train:
            groups.setdefault(row.index(max(row)), []).append(softmax(row))
        typical = [[mpmath.fsum(column) / len(own) for column in zip(*own, strict=True)] for own in groups.values()]
        return [
            float(
                min(mpmath.fsum(p * mpmath.log(p / d) for p, d in zip(softmax(row), t, strict=True)) for t in typical)
            )
            for row in test
        ]


@pytest.mark.parametrize("spread", (1.0, 4.0, 30.0))
def test_it_is_its_formula(spread: float) -> None:
    rng = np.random.default_rng(0)
    train, test = rng.normal(0.0, spread, (60, 5)), rng.normal(0.0, spread, (20, 5))
    train[:, 4] -= 10.0 * spread  # class 4 is never predicted in training
    expected = by_formula(train.tolist(), test.tolist())
    np.testing.assert_allclose(ns.KLMatching().fit(train).score(test), expected, rtol=1e-9, atol=1e-12)


def test_a_usual_doubt_is_not_strange_and_an_unusual_certainty_is() -> None:
    """Class 0 is always doubted in favour of class 1, never of class 2: MSP ranks these two the other way."""
    train = np.log([[0.6, 0.39, 0.01], [0.62, 0.37, 0.01], [0.01, 0.98, 0.01], [0.01, 0.01, 0.98]])
    usual, unusual = np.log([[0.6, 0.39, 0.01], [0.7, 0.01, 0.29]])
    scores = ns.KLMatching().fit(train).score([usual, unusual])
    assert scores[0] < 0.01 < 0.5 < scores[1]
    assert np.diff(ns.MSP().score([usual, unusual]))[0] < 0


def test_probabilities_that_underflow_are_no_zeros() -> None:
    """exp(-2000) is 0 in float64; its logarithm is not minus infinity here."""
    detector = ns.KLMatching().fit([[2000.0, 0.0], [0.0, 1.0]])
    np.testing.assert_allclose(detector.fitted_.log_typical[0], [0.0, -2000.0])
    assert detector.fit([[2000.0, 0.0]]).score([[0.0, 0.0]]) == pytest.approx(1000.0 - np.log(2.0))  # one class
