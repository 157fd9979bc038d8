"""Gram against full Gram matrices and loops over rows, and a planted row that breaks a correlation."""

from __future__ import annotations

import numpy as np
import pytest

import normscale as ns


def gram_vector(row: np.ndarray, p: int) -> np.ndarray:
    """Row sums of the p-th order Gram matrix, written out; the root keeps the sign."""
    matrix = np.outer(row**p, row**p)
    sums = matrix.sum(axis=1)
    root: np.ndarray = np.sign(sums) * np.abs(sums) ** (1.0 / p)
    return root


def by_formula(train: ns.ModelOutputs, test: ns.ModelOutputs, layers: tuple[str, ...], powers: int) -> np.ndarray:
    scores = np.zeros(len(test))
    for name in layers:
        held: list[tuple[int, np.ndarray]] = []
        ranges: dict[int, list[np.ndarray]] = {}
        seen: dict[int, int] = {}
        for row, c in zip(train.array(name), train.predicted.tolist(), strict=True):
            statistics = np.concatenate([gram_vector(row, p) for p in range(1, powers + 1)])
            seen[c] = seen.get(c, 0) + 1
            if seen[c] % 10 == 0:
                held.append((c, statistics))
            else:
                ranges.setdefault(c, []).append(statistics)

        def deviation(c: int, statistics: np.ndarray, ranges: dict[int, list[np.ndarray]] = ranges) -> float:
            low, high = np.min(ranges[c], axis=0), np.max(ranges[c], axis=0)
            total = 0.0
            for g, a, b in zip(statistics, low, high, strict=True):
                if g < a:
                    total += (a - g) / abs(a + 1e-6)
                if g > b:
                    total += (g - b) / abs(b + 1e-6)
            return total

        expected = float(np.mean([deviation(c, g) for c, g in held])) or 1.0
        for i, (row, c) in enumerate(zip(test.array(name), test.predicted.tolist(), strict=True)):
            scores[i] += deviation(c, np.concatenate([gram_vector(row, p) for p in range(1, powers + 1)])) / expected
    return scores


def outputs(n: int, seed: int, spread: float = 1.0) -> ns.ModelOutputs:
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    logits = 4.0 * np.eye(3)[labels] + rng.normal(0.0, 0.5, (n, 3))
    early, late = rng.normal(0.0, spread, (n, 4)), np.maximum(rng.normal(0.5, spread, (n, 6)), 0.0)
    return ns.ModelOutputs(logits, features=late, stage1=early)


def test_it_is_its_formula_with_negative_and_dead_activations() -> None:
    train, test = outputs(150, 0), outputs(40, 1, spread=1.5)
    layers = ("stage1", "features")
    detector = ns.Gram(layers, powers=4).fit(train)
    np.testing.assert_allclose(detector.score(test), by_formula(train, test, layers, 4), rtol=1e-8)


def test_a_broken_correlation_is_strange_though_every_activation_is_usual() -> None:
    """Two channels always sum to 3 in training, and each alone takes any value from 1 to 2."""
    values = np.linspace(1.0, 2.0, 50)
    train = ns.ModelOutputs(np.c_[np.full(50, 5.0), np.zeros(50)], features=np.c_[values, 3.0 - values])
    detector = ns.Gram().fit(train)
    known, strange = [1.6, 1.4], [2.0, 2.0]
    scores = detector.score(ns.ModelOutputs([[5.0, 0.0]] * 2, features=[known, strange]))
    assert scores[0] == 0.0
    assert scores[1] > 0.0


def test_huge_and_tiny_activations_stay_finite() -> None:
    train = outputs(60, 0)
    detector = ns.Gram().fit(train)
    for factor in (1e-100, 1e60):
        assert np.isfinite(detector.score(train.replace(features=train.features * factor))).all()


def test_one_class_and_a_class_without_rows() -> None:
    train = outputs(30, 0)
    one = train[train.predicted == 1]
    detector = ns.Gram().fit(one)
    assert np.array_equal(detector.bounds_[0][:, 0], detector.bounds_[0][:, 1])
    assert np.isfinite(detector.score(train)).all()


@pytest.mark.parametrize("layers", ((), ("a", "a"), ("logits",), 3.0))
def test_layers_are_checked(layers: object) -> None:
    with pytest.raises(ns.InvalidInput, match="layers must be"):
        ns.Gram(layers)  # type: ignore[arg-type]
