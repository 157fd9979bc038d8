"""NNGuide against all similarities, sorted."""

from __future__ import annotations

import math

import numpy as np
import pytest

import normscale as ns
from normscale.detectors import neighbours
from normscale.detectors.neighbours import NNGuide


def outputs(n: int, seed: int = 0, d: int = 10) -> ns.ModelOutputs:
    rng = np.random.default_rng(seed)
    return ns.ModelOutputs(3.0 * rng.normal(size=(n, 4)), rng.normal(size=(n, d)))


def slow(train: ns.ModelOutputs, test: ns.ModelOutputs, k: int) -> list[float]:
    def energy(z: np.ndarray) -> float:
        return math.log(sum(math.exp(v) for v in z))

    def cosine(a: np.ndarray, b: np.ndarray) -> float:
        return float(a @ b) / (math.hypot(*a) * math.hypot(*b)) if a.any() and b.any() else 0.0

    scores = []
    for z, f in zip(test.logits, test.features, strict=True):
        guides = [energy(zi) * cosine(f, fi) for zi, fi in zip(train.logits, train.features, strict=True)]
        scores.append(-energy(z) * sum(sorted(guides, reverse=True)[:k]) / k)
    return scores


@pytest.mark.parametrize(("n", "k"), ((1, 1), (30, 30), (700, 1), (700, 10), (700, 100)))
def test_scores_are_those_of_all_pairs(n: int, k: int) -> None:
    train, test = outputs(n), outputs(20, 1)
    np.testing.assert_allclose(NNGuide(k).fit(train).score(test), slow(train, test, k), rtol=1e-9)


def test_planted_neighbours() -> None:
    """Energies 4 and 2 along two axes: the guidance of a diagonal row is their mean times cos 45."""
    train = ns.ModelOutputs([[4.0, -999.0], [-999.0, 2.0]], [[7.0, 0.0], [0.0, 0.1]])
    test = ns.ModelOutputs([[3.0, -999.0]] * 3, [[2.0, 2.0], [5.0, 0.0], [-5.0, -5.0]])
    cos = math.sqrt(0.5)
    np.testing.assert_allclose(NNGuide(2).fit(train).score(test), [-9.0 * cos, -6.0, 9.0 * cos], rtol=1e-12)
    np.testing.assert_allclose(NNGuide(1).fit(train).score(test), [-12.0 * cos, -12.0, 6.0 * cos], rtol=1e-12)
    np.testing.assert_allclose(NNGuide(50).fit(train).score(test), NNGuide(2).fit(train).score(test))


@pytest.mark.filterwarnings("ignore::normscale.NumericalWarning")
def test_ties_zeros_copies_and_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = outputs(300), outputs(20, 1)
    same = train[np.zeros(500, dtype=np.int64)]
    of_same = NNGuide(3).fit(same)
    of_same._marks_far_rows = False
    np.testing.assert_allclose(of_same.score(test), slow(train[:1], test, 1), rtol=1e-9)
    holes = train.replace(features=train.features * (np.arange(300) % 3 > 0)[:, None])
    np.testing.assert_allclose(NNGuide(250).fit(holes).score(test), slow(holes, test, 250), rtol=1e-7)
    assert not NNGuide().fit(train).score(test.replace(features=np.zeros((20, 10)))).any()
    twice = [r.replace(features=np.c_[r.features, r.features]) for r in (train, test)]
    expected = NNGuide().fit(train).score(test)
    np.testing.assert_allclose(NNGuide().fit(twice[0]).score(twice[1]), expected, rtol=1e-10)
    monkeypatch.setattr(neighbours, "_MOST_CANDIDATES", -1.0)
    np.testing.assert_allclose(NNGuide().fit(train).score(test), expected, rtol=1e-10)
