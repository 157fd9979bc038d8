"""DART against a loop over rows."""

from __future__ import annotations

import numpy as np
import pytest

import normscale as ns


def outputs(n: int, seed: int, offset: float = 0.0) -> ns.ModelOutputs:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, 5)) * np.arange(1.0, 6.0) + offset
    return ns.ModelOutputs(features[:, :3] + rng.normal(size=(n, 3)), features=features)


TRAIN, TEST = outputs(300, 0, offset=3.0), outputs(60, 1, offset=1.0)


def test_prototypes_follow_the_stream() -> None:
    energies = ns.energy_score(TRAIN.logits)
    limit = energies.mean() + energies.std()
    mean, std = TRAIN.features.mean(axis=0), TRAIN.features.std(axis=0)
    x = (TRAIN.features - mean) / std
    prototypes = {side: x[(energies > limit) == side].mean(axis=0) for side in (False, True)}
    detector = ns.DART(memory=20.0).fit(TRAIN)

    def score(row: np.ndarray) -> float:
        near, far = (np.linalg.norm(row - prototypes[side]) for side in (False, True))
        return float(near / (near + far))

    rows = (TEST.features - mean) / std
    np.testing.assert_allclose(detector.score(TEST), [score(row) for row in rows], rtol=1e-10)
    expected = []
    for row, energy in zip(rows, ns.energy_score(TEST.logits), strict=True):
        side = bool(energy > limit)
        prototypes[side] = prototypes[side] + (row - prototypes[side]) / 20.0
        expected.append(score(row))
    np.testing.assert_allclose(detector.stream(TEST), expected, rtol=1e-10)
    np.testing.assert_allclose(detector.score(TEST), [score(row) for row in rows], rtol=1e-10)


def test_a_row_on_both_prototypes_has_a_score() -> None:
    same = ns.ModelOutputs(np.zeros((30, 3)), features=np.full((30, 5), 2.0))
    with pytest.warns(ns.NumericalWarning, match="all 30 training rows are the same"):
        detector = ns.DART().fit(same)
    assert detector.score(same).tolist() == [0.0] * 30


def test_memory_is_checked() -> None:
    with pytest.raises(ns.InvalidInput, match="memory must be at least 1"):
        ns.DART(memory=0.5)
