"""GradNorm against the gradient itself: by finite differences and by torch's backward pass."""

from __future__ import annotations

import numpy as np
import pytest

import normscale as ns
from normscale.detectors.logit_scores import GradNorm


def problem(n: int = 6, d: int = 5, n_classes: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, d)), rng.normal(size=(n_classes, d)), rng.normal(size=n_classes)


def divergence(weight: np.ndarray, bias: np.ndarray, feature: np.ndarray, temperature: float) -> float:
    """KL between the uniform distribution and the softmax."""
    z = (weight @ feature + bias) / temperature
    p = np.exp(z) / np.exp(z).sum()
    return float(np.mean(-np.log(p * len(p))))


@pytest.mark.parametrize("temperature", (1.0, 2.5))
def test_scores_are_norms_of_gradients(temperature: float) -> None:
    features, weight, bias = problem()
    expected = []
    for feature in features:
        total = 0.0
        for index in np.ndindex(weight.shape):
            up, down = weight.copy(), weight.copy()
            up[index] += 1e-5
            down[index] -= 1e-5
            slope = divergence(up, bias, feature, temperature) - divergence(down, bias, feature, temperature)
            total += abs(slope / 2e-5)
        expected.append(-total)
    scores = GradNorm(temperature).score(ns.ModelOutputs(features @ weight.T + bias, features))
    np.testing.assert_allclose(scores, expected, rtol=1e-6)


def test_scores_are_torchs() -> None:
    torch = pytest.importorskip("torch")
    features, weight, bias = problem(20, 30, 10)
    expected = []
    for feature in features:
        layer = torch.tensor(weight, requires_grad=True)
        loss = -torch.log_softmax(layer @ torch.tensor(feature) + torch.tensor(bias), dim=0).mean()
        loss.backward()
        expected.append(-float(layer.grad.abs().sum()))
    scores = GradNorm().score(ns.ModelOutputs(features @ weight.T + bias, features))
    np.testing.assert_allclose(scores, expected, rtol=1e-10)


def test_planted_rows() -> None:
    """A uniform softmax has no gradient; a sure one has 2 (C - 1) / C times the size of the features."""
    rows = ns.ModelOutputs([[7.0] * 4, [999.0, 0.0, 0.0, 0.0], [999.0, 0.0, 0.0, 0.0]], [[1.0], [1.0], [-3.0]])
    scores = GradNorm().score(rows)
    np.testing.assert_allclose(scores, [0.0, -1.5, -4.5], atol=1e-15)
    assert scores[0] > scores[1], "the unsure row is more OoD"


def test_bad_rows_of_either_array_are_named() -> None:
    logits, features = np.zeros((3, 2)), np.zeros((3, 4))
    logits[1, 0] = -np.inf
    with pytest.raises(ns.InvalidInput, match="logits row 1 holds infinity"):
        GradNorm().score(ns.ModelOutputs(logits, features))
    features[2, 3] = np.nan
    with pytest.raises(ns.InvalidInput, match="features row 2 holds NaN"):
        GradNorm().score(ns.ModelOutputs(np.zeros((3, 2)), features))
