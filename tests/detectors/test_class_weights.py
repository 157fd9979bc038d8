"""fDBD and NCI, which read the weights of the last layer, against loops over rows and classes."""

from __future__ import annotations

import math

import numpy as np
import pytest

import normscale as ns
from normscale.detectors.class_features import FDBD, NCI

_fixed = np.random.default_rng(3)
HEAD = (_fixed.normal(size=(5, 8)), _fixed.normal(size=5))


def outputs(n: int, seed: int = 0, head: tuple[np.ndarray, np.ndarray] = HEAD) -> ns.ModelOutputs:
    features = np.random.default_rng(seed).normal(size=(n, head[0].shape[1])) + 1.0
    return ns.ModelOutputs(features @ head[0].T + head[1], features, head=head)


def slow_fdbd(train: ns.ModelOutputs, test: ns.ModelOutputs) -> list[float]:
    """By the geometry: step along the difference of two classes' weights until their logits are equal."""
    weight, bias = HEAD
    mean = train.features.sum(axis=0) / len(train)
    scores = []
    for f in test.features:
        z = [float(w @ f + b) for w, b in zip(weight, bias, strict=True)]
        c = z.index(max(z))
        distances = []
        for k in range(len(z)):
            if k != c:
                direction = weight[k] - weight[c]
                step = (z[c] - z[k]) / float(direction @ direction)  # f + step * direction lies on the boundary
                on = f + step * direction
                assert weight[c] @ on + bias[c] == pytest.approx(weight[k] @ on + bias[k])
                distances.append(math.dist(f, on))
        scores.append(-sum(distances) / len(distances) / math.dist(f, mean))
    return scores


def slow_nci(train: ns.ModelOutputs, test: ns.ModelOutputs, alpha: float) -> list[float]:
    mean = train.features.sum(axis=0) / len(train)
    scores = []
    for z, f in zip(test.logits, test.features, strict=True):
        centred = [a - b for a, b in zip(f, mean, strict=True)]
        along = sum(a * b for a, b in zip(HEAD[0][z.tolist().index(max(z))], centred, strict=True))
        scores.append(-along / math.hypot(*centred) - alpha * sum(abs(a) for a in f))
    return scores


def test_fdbd_is_the_distance_to_the_boundaries() -> None:
    train, test = outputs(100), outputs(30, 1)
    np.testing.assert_allclose(FDBD().fit(train).score(test), slow_fdbd(train, test), rtol=1e-9)


@pytest.mark.parametrize("alpha", (0.0, 1e-4, 0.7))
def test_nci_is_the_formula_of_the_paper(alpha: float) -> None:
    train, test = outputs(100), outputs(30, 1)
    np.testing.assert_allclose(NCI(alpha).fit(train).score(test), slow_nci(train, test, alpha), rtol=1e-10)


def test_planted_rows() -> None:
    """Two classes along one axis, mean 0: the boundary is 0, at the same share of every row's distance from it."""
    head = (np.array([[1.0, 0.0], [-1.0, 0.0]]), np.zeros(2))
    train = ns.ModelOutputs(np.eye(2), [[1.0, 0.0], [-1.0, 0.0]], head=head)
    rows = np.array([[3.0, 0.0], [3.0, 4.0], [0.0, 5.0]])
    test = ns.ModelOutputs(rows @ head[0].T, rows)
    np.testing.assert_allclose(FDBD().fit(train).score(test), [-1.0, -0.6, 0.0])
    np.testing.assert_allclose(NCI(0.0).fit(train).score(test), [-1.0, -0.6, 0.0])
    np.testing.assert_allclose(NCI(0.1).fit(train).score(test), [-1.3, -1.3, -0.5])


def test_rows_in_the_mean_and_equal_weights_are_defined() -> None:
    head = (np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), np.array([0.5, 0.0, 0.0]))
    features = np.array([[2.0, 1.0], [4.0, 1.0]])
    train = ns.ModelOutputs(features @ head[0].T + head[1], features, head=head)
    middle = np.array([[3.0, 1.0]])
    row = ns.ModelOutputs(middle @ head[0].T + head[1], middle)
    assert np.isfinite(FDBD().fit(train).score(row)).all()
    assert NCI(0.25).fit(train).score(row).tolist() == [-1.0]
    other = np.array([[3.0, 4.0]])  # 3 from the mean; predicted as class 2, with 0.5 and 1 more than the other two
    scores = FDBD().fit(train).score(ns.ModelOutputs(other @ head[0].T + head[1], other))
    np.testing.assert_allclose(scores, [-(0.5 + 1.0) / math.sqrt(2.0) / 2.0 / 3.0])
    first = np.array([[9.0, 1.0]])  # predicted as class 0: no boundary with class 1, one with class 2
    scores = FDBD().fit(train).score(ns.ModelOutputs(first @ head[0].T + head[1], first))
    np.testing.assert_allclose(scores, [-8.5 / math.sqrt(2.0) / 2.0 / 6.0])


@pytest.mark.parametrize("make", (FDBD, NCI))
def test_columns_of_zeros_change_nothing(make: type[ns.Detector]) -> None:
    train, test = outputs(100), outputs(30, 1)
    head = (np.c_[HEAD[0], np.zeros((5, 2))], HEAD[1])
    wide = [ns.ModelOutputs(r.logits, np.c_[r.features, np.zeros((len(r), 2))], head=head) for r in (train, test)]
    np.testing.assert_allclose(make().fit(wide[0]).score(wide[1]), make().fit(train).score(test), rtol=1e-12)
    assert np.isfinite(make().fit(train[:1]).score(test)).all()


@pytest.mark.parametrize("alpha", (-1.0, math.inf, "x"))
def test_alpha_is_checked(alpha: float) -> None:
    with pytest.raises(ns.InvalidInput, match="alpha must be"):
        NCI(alpha)
