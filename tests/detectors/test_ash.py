"""ASH against sorting every row, what equal features do, and a planted stranger."""

from __future__ import annotations

import numpy as np
import pytest

import normscale as ns
from normscale.conformance import CHECKS, check_detector

SAMPLE = ns.load_sample()


def by_formula(head: ns.Head, rows: np.ndarray, variant: str, percentile: float) -> list[float]:
    """Sort the features of each row; the first of equals stay."""
    scores = []
    for row in rows.astype(np.float64).tolist():
        k = len(row) - round(len(row) * percentile / 100.0)
        places = sorted(range(len(row)), key=lambda j: (-row[j], j))[:k]
        shaped = [0.0] * len(row)
        for j in places:
            shaped[j] = sum(row) / k if variant == "b" else row[j]
        if variant == "s":
            factor = np.exp(sum(row) / sum(shaped))
            shaped = [factor * f for f in shaped]
        logits = head.weight.astype(np.float64) @ np.array(shaped) + head.bias
        scores.append(-float(np.logaddexp.reduce(logits)))
    return scores


@pytest.mark.parametrize(("variant", "published"), (("p", 60.0), ("b", 65.0), ("s", 90.0)))
def test_it_is_its_formula_at_the_published_percentile(variant: str, published: float) -> None:
    assert SAMPLE.train.head is not None
    rows = np.abs(SAMPLE.ood["unseen_digits"].features[:60]).round(1)  # many equals
    detector = ns.make_detector("ash+energy", variant=variant).fit(SAMPLE.train)
    assert detector.get_params()["percentile"] == published
    np.testing.assert_allclose(detector.score(rows), by_formula(SAMPLE.train.head, rows, variant, published), rtol=1e-9)


@pytest.mark.parametrize("variant", "pb")
def test_the_other_variants_conform(variant: str) -> None:
    assert check_detector(lambda: ns.ASH(variant=variant)) == sorted(CHECKS)


@pytest.mark.parametrize("variant", "pbs")
def test_many_small_features_do_not_add_up_to_a_class(variant: str) -> None:
    """Twenty features of 0.5 give the logit of one feature of 10; only the latter is of the class."""
    train = ns.ModelOutputs(features=np.eye(20) * 10.0, head=(np.ones((2, 20)) * [[1.0], [0.0]], np.zeros(2)))
    known, strange = np.eye(20)[0] * 10.0, np.full(20, 0.5)
    detector = ns.ASH("msp", variant, percentile=90.0).fit(train)
    assert ns.MSP().score(train.head.logits(np.array([known, strange]))).std() < 1e-9  # type: ignore[union-attr]
    if variant == "p":
        assert np.diff(detector.score(np.array([known, strange])))[0] > 1.0
    elif variant == "b":  # which keeps the sum
        np.testing.assert_allclose(*detector.score(np.array([known, strange])))
    else:  # which scales what was removed back in, more than it took away
        factor = np.exp(10.0) * 0.1 / np.exp(1.0)
        known_score, strange_score = detector.score(np.array([known, strange]))
        np.testing.assert_allclose(strange_score / known_score, factor)
        assert known_score < 0.0


def test_rows_without_positive_features_stay_finite() -> None:
    train = ns.ModelOutputs(features=np.ones((3, 2000)), head=(np.ones((2, 2000)), np.zeros(2)))
    rows = np.array([np.zeros(2000), np.full(2000, -1e6), np.r_[1e-300, np.full(1999, -1.0)], np.full(2000, 1e6)])
    for detector in (ns.ASH("max_logit", "s", percentile=99.9), ns.SCALE("max_logit", percentile=99.9)):
        scores = detector.fit(train).score(rows)
        assert np.isfinite(scores).all()
        assert scores[1] > scores[0] > scores[3]


def test_parameters_are_checked() -> None:
    with pytest.raises(ns.InvalidInput, match="variant must be one of 'p', 'b', 's'"):
        ns.ASH(variant="x")
    with pytest.raises(ns.InvalidInput, match="percentile/100 must lie in"):
        ns.ASH(percentile=100.0)
