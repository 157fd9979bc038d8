"""KNN and its exact search against all pairs, one by one."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscale as ns
from normscale.detectors import neighbours
from normscale.detectors.neighbours import KNN


def rows(n: int, d: int = 16, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) + 2.0 * np.eye(4, d)[rng.integers(0, 4, n)]


def slow(bank: np.ndarray, queries: np.ndarray, k: int) -> np.ndarray:
    """Every distance by differences, all sorted."""

    def unit(v: np.ndarray) -> np.ndarray:
        return v / np.linalg.norm(v) if v.any() else v

    vectors = np.array([unit(b.astype(np.float64)) for b in bank])
    every = [np.sqrt(((unit(q) - vectors) ** 2).sum(axis=1)) for q in queries.astype(np.float64)]
    return np.array([np.sort(distances)[k - 1] for distances in every])


@pytest.mark.parametrize(("n", "k"), ((1, 1), (60, 60), (900, 1), (900, 7), (900, 50), (3000, 50)))
def test_scores_are_those_of_all_pairs(n: int, k: int) -> None:
    bank, queries = rows(n), rows(25, seed=1)
    np.testing.assert_allclose(KNN(k=k).fit(bank).score(queries), slow(bank, queries, k), rtol=1e-12)


def test_a_bank_smaller_than_k_uses_its_last_row() -> None:
    bank, queries = rows(9), rows(5, seed=1)
    np.testing.assert_allclose(KNN(k=50).fit(bank).score(queries), slow(bank, queries, 9), rtol=1e-12)


def test_planted_distances() -> None:
    """Angles on the circle are known: with the bank at 0, 10, 20 ... 90 degrees the third nearest of 0 is at 20."""
    angles = np.radians(np.arange(0.0, 91.0, 10.0))
    bank = np.c_[np.cos(angles), np.sin(angles)] * np.arange(1.0, 11.0)[:, None]  # lengths do not matter
    detector = KNN(k=3).fit(bank)
    scores = detector.score(np.array([[5.0, 0.0], [0.0, 1e-9], [-1.0, 0.0]]))
    np.testing.assert_allclose(scores, 2.0 * np.sin(np.radians([20.0, 20.0, 110.0]) / 2.0), rtol=1e-12)
    assert scores[2] > scores[0], "the opposite direction is farther away"


def test_neighbours_closer_than_float32_can_tell_are_told_apart() -> None:
    """2000 rows whose products with the query differ by 1e-9 only: float32 sees them all the same."""
    tilt = 1e-4 + 1e-9 * np.random.default_rng(0).permutation(2000)
    bank = np.c_[np.cos(tilt), np.sin(tilt)]
    scores = KNN(k=10).fit(bank).score(np.array([[1.0, 0.0]]))
    np.testing.assert_allclose(scores, 2.0 * np.sin((1e-4 + 9e-9) / 2.0), rtol=1e-10 / 1e-4)


def test_a_few_near_ties_are_settled_in_float64() -> None:
    bank = rows(4000, 8)
    query = bank[0]
    bank[100:103] = query + 1e-7 * np.arange(1, 4)[:, None]
    for k in (1, 2, 3, 4):
        np.testing.assert_allclose(
            KNN(k=k).fit(bank).score(query[None]), slow(bank, query[None], k), rtol=1e-7, atol=1e-15
        )


def test_duplicates_zeros_and_constant_columns() -> None:
    same = np.tile(rows(1), (800, 1))
    assert KNN().fit(same).score(same[:3]).tolist() == [0.0, 0.0, 0.0]
    bank = np.r_[rows(300), np.zeros((40, 16))]
    queries = np.r_[rows(20, seed=1), np.zeros((2, 16))]
    for k in (1, 39, 41, 300, 340):
        np.testing.assert_allclose(KNN(k=k).fit(bank).score(queries), slow(bank, queries, k), rtol=1e-12)
    padded = KNN(k=5).fit(np.c_[rows(300), np.zeros((300, 3))]).score(np.c_[rows(9, seed=1), np.zeros((9, 3))])
    np.testing.assert_allclose(padded, KNN(k=5).fit(rows(300)).score(rows(9, seed=1)), rtol=1e-12)


def test_twice_the_same_columns_change_nothing() -> None:
    bank, queries = rows(300), rows(30, seed=1)
    doubled = KNN(k=5).fit(np.c_[bank, bank]).score(np.c_[queries, queries])
    np.testing.assert_allclose(doubled, KNN(k=5).fit(bank).score(queries), rtol=1e-12)


@pytest.mark.parametrize("dtype", (np.float16, np.float32, np.int64))
def test_the_bank_keeps_its_dtype_and_the_scores_are_exact(dtype: Any, tmp_path: Path) -> None:
    bank, queries = (10 * rows(400)).astype(dtype), (10 * rows(10, seed=1)).astype(dtype)
    detector = KNN(k=3).fit(bank)
    np.testing.assert_allclose(detector.score(queries), slow(bank, queries, 3), rtol=1e-12)
    detector.save(tmp_path / "knn.safetensors")
    assert np.array_equal(ns.load_detector(tmp_path / "knn.safetensors").score(queries), detector.score(queries))


def test_blocks_are_not_seen_in_the_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    bank, queries = rows(5000), rows(300, seed=1)
    expected = KNN().fit(bank).score(queries)
    monkeypatch.setattr(neighbours, "_PRODUCTS", 5000)
    monkeypatch.setattr(neighbours, "_PAIRS", 7)
    np.testing.assert_allclose(KNN().fit(bank).score(queries), expected, rtol=1e-12)
    monkeypatch.setattr(neighbours, "_MOST_CANDIDATES", -1.0)  # everything in float64
    np.testing.assert_allclose(KNN().fit(bank).score(queries), expected, rtol=1e-12)


@pytest.mark.parametrize("m", (40, 3000))
def test_tiny_distances_are_exact_alone_and_in_a_batch(m: int) -> None:
    """Rows about 1e-7 apart: a squared distance by products alone is 2 % off, and differs between batches."""
    rng = np.random.default_rng(0)
    bank = rng.normal(size=64) + 1e-7 * rng.normal(size=(m, 64))
    queries = bank[:40] + 1e-8 * rng.normal(size=(40, 64))
    detector = KNN(k=3).fit(bank)
    together = detector.score(queries)
    np.testing.assert_allclose(together, slow(bank, queries, 3), rtol=1e-7)
    assert np.concatenate([detector.score(row[None]) for row in queries]).tolist() == together.tolist()


@pytest.mark.parametrize("dtype", (np.float32, np.float64))
def test_a_row_of_the_bank_is_at_distance_zero(dtype: Any) -> None:
    bank = rows(500).astype(dtype)
    assert not KNN(k=1).fit(bank).score(bank[:50]).any()
    assert not KNN(k=1).fit(bank[:3]).score(bank[1:2].astype(np.float64)).any()


def test_memory_does_not_grow_with_queries_times_bank() -> None:
    bank, queries = rows(6000, 32), rows(6000, 32, seed=1)
    detector = KNN().fit(bank)
    detector.score(queries[:50])
    tracemalloc.start()
    detector.score(queries)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 25e6, "all products would be 144 MB"


def test_parameters_are_checked() -> None:
    assert KNN(k=20.0).k == 20  # type: ignore[arg-type]  # the command line reads numbers so
    for wrong in (0, -1, 2.5, True, "x"):
        with pytest.raises(ns.InvalidInput, match="k must be a whole number >= 1"):
            KNN(k=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("n", "k"), ((30, 1), (120, 4), (4000, 50)))
def test_by_default_a_tenth_of_the_rows_of_a_class_are_neighbours(n: int, k: int) -> None:
    rng = np.random.default_rng(5)
    logits = np.eye(3)[np.arange(n) % 3]
    train = ns.ModelOutputs(logits, features=rng.normal(size=(n, 4)))
    test = ns.ModelOutputs(features=rng.normal(size=(20, 4)))
    assert np.array_equal(ns.KNN().fit(train).score(test), ns.KNN(k=k).fit(train).score(test))
