"""Score functions on raw logits: exactness where float32 softmax gives up."""

from __future__ import annotations

import numpy as np
import pytest

import normscale as ns
import oracles


@pytest.mark.parametrize("temperature", (0.5, 1.0, 1000.0))
def test_scores_equal_fifty_digits(temperature: float) -> None:
    logits = np.random.default_rng(0).normal(0, 8, (60, 7)).astype(np.float32)
    z = logits.astype(np.float64)
    msp = [oracles.row_score(row / temperature, "log_odds") for row in z]
    np.testing.assert_allclose(ns.msp_score(logits, temperature), msp, rtol=1e-13, atol=1e-15)
    energy = [temperature * oracles.row_score(row / temperature, "log_sum_exp") for row in z]
    np.testing.assert_allclose(ns.energy_score(logits, temperature), energy, rtol=1e-13)
    np.testing.assert_allclose(ns.max_logit_score(logits), -z.max(axis=1))


def test_no_false_ties_where_float32_softmax_saturates() -> None:
    """33 % of a real network's test inputs have a float32 maximum softmax probability of exactly 1."""
    logits = np.zeros((4, 10), np.float32)
    logits[:, 0] = [20.0, 25.0, 30.0, 60.0]
    float32 = np.exp(logits - logits.max(axis=1, keepdims=True))
    assert len(set((float32 / float32.sum(axis=1, keepdims=True)).max(axis=1).tolist())) == 1
    assert len(set(ns.msp_score(logits).tolist())) == 4


def test_confidence_is_the_softmax_probability() -> None:
    logits = np.random.default_rng(1).normal(size=(50, 4))
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(ns.confidence(ns.msp_score(logits)), p.max(axis=1), rtol=1e-12)
    assert ns.confidence([800.0, -800.0]).tolist() == [0.0, 1.0]


def test_binary_classifier() -> None:
    logits = np.array([[0.0, 3.0], [5.0, -5.0]])
    np.testing.assert_allclose(ns.msp_score(logits), [-3.0, -10.0])


@pytest.mark.parametrize(
    ("logits", "message"),
    (
        (np.zeros(128), r"logits must have shape \(n, n_classes\) with n_classes >= 2; got \(128,\)\."),
        (np.zeros((4, 1)), r"got \(4, 1\)\. A binary classifier with one logit z"),
        ([["a", "b"]], "must hold real numbers"),
        ([[1.0, 2.0], [1.0]], "must be an array of numbers"),
        (np.array([[1.0, np.nan]]), "row 0 holds NaN in column 1"),
        (np.array([[1.0, 1.0], [np.inf, 1.0]]), "row 1 holds infinity in column 0"),
        (np.array([[1 + 2j, 0]]), "real numbers"),
        (None, "real numbers"),
    ),
)
def test_refusals(logits: object, message: str) -> None:
    with pytest.raises(ns.InvalidInput, match=message):
        ns.msp_score(logits)  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", (0.0, -1.0, np.inf, np.nan, "warm", None, True))
def test_temperature_must_be_positive(temperature: float) -> None:
    with pytest.raises(ns.InvalidInput, match="temperature must be"):
        ns.energy_score([[1.0, 2.0]], temperature)
