"""Sums by class against loops, and class numbers of any size."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import normscale as ns
from normscale.detectors.mahalanobis import ClassSums, class_totals


def test_totals_are_those_of_a_loop() -> None:
    rng = np.random.default_rng(0)
    rows, classes = rng.integers(-9, 9, (300, 4)).astype(float), rng.integers(0, 40, 300) * 25_000
    found, counts, sums = class_totals(rows, classes)
    assert found.tolist() == sorted(set(classes.tolist()))
    for c, count, total in zip(found, counts, sums, strict=True):
        assert count == (classes == c).sum()
        assert total.tolist() == rows[classes == c].sum(axis=0).tolist()


def test_no_rows_have_no_classes() -> None:
    found, counts, sums = class_totals(np.zeros((0, 3)), np.zeros(0, dtype=np.int64))
    assert (found.size, counts.size, sums.shape) == (0, 0, (0, 3))


@pytest.mark.parametrize("name", ("mahalanobis", "relative_mahalanobis"))
def test_a_large_class_number_costs_no_memory(name: str) -> None:
    rng = np.random.default_rng(1)
    features, labels = rng.normal(size=(500, 8)), rng.integers(0, 5, 500)
    small = ns.make_detector(name).fit(ns.ModelOutputs(features=features, labels=labels))
    far = np.where(labels == 4, 1_000_000, labels)
    tracemalloc.start()
    large = ns.make_detector(name).fit(ns.ModelOutputs(features=features, labels=far))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2e6
    np.testing.assert_array_equal(large.score(features), small.score(features))


def test_classes_may_come_in_any_order_and_part() -> None:
    rng = np.random.default_rng(2)
    features, labels = rng.integers(0, 9, (90, 3)).astype(float), rng.permutation(90) // 9 * 1000
    whole, parts = ClassSums(), ClassSums()
    whole.add(features, labels)
    for a in range(0, 90, 7):
        parts.add(features[a : a + 7], labels[a : a + 7])
    for found, wanted in zip(parts.result()[:3], whole.result()[:3], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


def test_a_label_beyond_the_logits_is_refused() -> None:
    with pytest.raises(ns.InvalidInput, match="labels"):
        ns.ModelOutputs(np.zeros((2, 3)), np.zeros((2, 4)), labels=[0, 1_000_000])
