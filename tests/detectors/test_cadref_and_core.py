"""CADRef and CORE against the formulas, one row at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest

import normscale as ns

WEIGHT = np.random.default_rng(5).normal(size=(4, 9))
BIAS = np.array([0.5, -0.2, 0.0, 0.1])


def outputs(n: int, seed: int) -> ns.ModelOutputs:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, 9)) + WEIGHT[rng.integers(0, 4, n)]
    return ns.ModelOutputs(features @ WEIGHT.T + BIAS, features=features, head=(WEIGHT, BIAS))


TRAIN, TEST = outputs(300, 0), outputs(25, 1)


def energy(z: np.ndarray) -> float:
    return math.log(math.fsum(math.exp(v) for v in z))


def class_means() -> list[np.ndarray]:
    return [TRAIN.features[TRAIN.logits.argmax(axis=1) == c].mean(axis=0) for c in range(4)]


def test_cadref_is_its_formula() -> None:
    means, mean_energy = class_means(), np.mean([energy(z) for z in TRAIN.logits])
    expected = []
    for z, f in zip(TEST.logits, TEST.features, strict=True):
        c = int(z.argmax())
        raising = sum(max((f[i] - means[c][i]) * np.sign(WEIGHT[c, i]), 0.0) for i in range(9))
        lowering = sum(max(-(f[i] - means[c][i]) * np.sign(WEIGHT[c, i]), 0.0) for i in range(9))
        size = sum(abs(f))
        expected.append(raising / size / energy(z) + lowering / size / mean_energy)
    np.testing.assert_allclose(ns.CADRef().fit(TRAIN).score(TEST), expected, rtol=1e-12)


def test_cadref_without_energy_or_features() -> None:
    detector = ns.CADRef().fit(TRAIN)
    detector._marks_far_rows = False
    ordinary = detector.score(TEST).max()
    silent = ns.ModelOutputs(TEST.logits, features=np.zeros_like(TEST.features))
    low = ns.ModelOutputs(TEST.logits - 100.0, features=TEST.features)  # the energy is negative: no sign may flip
    assert detector.score(silent).min() > 100.0 * ordinary
    assert (detector.score(low) > detector.score(TEST)).all()


def test_a_class_that_is_never_predicted_has_the_mean_of_all() -> None:
    some = TRAIN[TRAIN.logits.argmax(axis=1) != 2]
    means = ns.CADRef().fit(some).fitted_.means
    np.testing.assert_allclose(means[2], some.features.mean(axis=0), rtol=1e-12)


def residual(f: np.ndarray) -> np.ndarray:
    """By least squares: what no combination of the weights explains."""
    left: np.ndarray = f - WEIGHT.T @ np.linalg.lstsq(WEIGHT.T, f, rcond=None)[0]
    return left


def test_core_is_its_formula() -> None:
    directions = [np.mean([residual(f) for f in TRAIN.features[TRAIN.logits.argmax(1) == c]], axis=0) for c in range(4)]

    def parts(z: np.ndarray, f: np.ndarray) -> tuple[float, float]:
        r, d = residual(f), directions[int(z.argmax())]
        return energy(z), float(r @ d / np.linalg.norm(r) / np.linalg.norm(d))

    train = np.array([parts(z, f) for z, f in zip(TRAIN.logits, TRAIN.features, strict=True)])
    test = np.array([parts(z, f) for z, f in zip(TEST.logits, TEST.features, strict=True)])
    expected = -((test - train.mean(axis=0)) / train.std(axis=0)).sum(axis=1)
    np.testing.assert_allclose(ns.CORE().fit(TRAIN).score(TEST), expected, rtol=1e-9)


def test_core_is_the_energy_where_the_weights_span_everything() -> None:
    rows = ns.ModelOutputs(TEST.logits, features=TEST.logits, head=(np.eye(4), np.zeros(4)))
    scores = ns.CORE().fit(rows).score(rows)
    energies = ns.energy_score(TEST.logits)
    np.testing.assert_allclose(scores, (energies - energies.mean()) / energies.std(), rtol=1e-9)


@pytest.mark.parametrize("name", ("cadref", "core"))
def test_parts_of_two_networks_are_refused(name: str) -> None:
    other = TRAIN.replace(head=(WEIGHT + 1.0, BIAS))
    with pytest.raises(ns.InvalidInput, match="the same head"):
        ns.make_detector(name)._fit_chunks([TRAIN, other])
