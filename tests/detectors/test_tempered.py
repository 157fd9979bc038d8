"""Tempered logits are the detector's own at z / T; its formula, and what a temperature makes visible."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import normscale as ns
from normscale.detectors.formula import SumFormula, formula_of

SAMPLE = ns.load_sample()


@pytest.mark.parametrize("score", ("msp", "entropy", "gen", "max_logit", "standardised_max_logit"))
def test_it_scores_the_divided_logits(score: str) -> None:
    train, test = SAMPLE.train.logits.astype(np.float64), SAMPLE.test.logits.astype(np.float64)
    detector = ns.make_detector(f"tempered+{score}", temperature=7.0).fit(train)
    assert detector._needs_fit == ns.make_detector(score)._needs_fit
    expected = ns.make_detector(score).fit(train / 7.0).score(test / 7.0)
    np.testing.assert_allclose(detector.score(test), expected, rtol=1e-12)
    np.testing.assert_allclose(detector.stream(test), expected, rtol=1e-12)


@pytest.mark.parametrize("score", ("msp", "energy", "multi_threshold", "norm_scaling"))
def test_the_formula_is_the_score(score: str) -> None:
    detector = ns.make_detector(f"tempered+{score}").fit(SAMPLE.train.logits)
    formula: Any = formula_of(detector)
    z = SAMPLE.test.logits.astype(np.float64)
    kinds = {"log_odds": ns.msp_score, "log_sum_exp": ns.energy_score}
    expected = np.zeros(len(z))
    terms: Any = formula.terms if isinstance(formula, SumFormula) else [(1.0, formula)]
    for weight, term in terms:
        expected += weight * term.weight * kinds[term.kind]((z - term.shift) * term.factor)
    if isinstance(formula, SumFormula):
        expected -= formula.class_offset[z.argmax(axis=1)]
    np.testing.assert_allclose(detector.score(z), expected, rtol=1e-9, atol=1e-12)


def test_a_high_temperature_sees_all_logits() -> None:
    """Equal distance to the runner-up, but the stranger excites every other class too."""
    known, strange = [10.0, 5.0, -20.0, -20.0], [10.0, 5.0, 4.0, 4.0]
    near = np.diff(ns.MSP().score([known, strange]))[0]
    far = np.diff(ns.make_detector("tempered+msp").score([known, strange]))[0] * 1000.0
    assert 0.0 < near < 1.0 < 10.0 < far


def test_labels_reach_the_scorer() -> None:
    detector = ns.Tempered(ns.Mahalanobis(layers="logits", shrinkage="oas")).fit(SAMPLE.train)
    assert detector._needs_labels
    assert np.isfinite(detector.score(SAMPLE.test)).all()
