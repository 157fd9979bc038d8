"""Entropy against the formula in 60 digits, both kernels, and rows whose order is known."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

import normscale as ns
from normscale import _kernels


def by_formula(row: list[float]) -> float:
    """-sum p log p in 60 digits, with 1 / p = 1 + others / own so that the largest p keeps its own."""
    with mpmath.workdps(60):
        weights = [mpmath.exp(mpmath.mpf(z)) for z in row]
        total = mpmath.fsum(weights)
        others = [mpmath.fsum(weights[:j] + weights[j + 1 :]) for j in range(len(row))]
        return float(mpmath.fsum(w / total * mpmath.log1p(o / w) for w, o in zip(weights, others, strict=True)))


@pytest.mark.parametrize("width", (2, 3, 10, 50, 130))
@pytest.mark.parametrize("spread", (0.1, 3.0, 40.0))
def test_entropy_is_its_formula(kernels: _kernels.Backend, width: int, spread: float) -> None:
    rows = np.random.default_rng(width).normal(0.0, spread, (12, width))
    rows[3] = rows[3].round()  # equal logits
    rows[4] = rows[4, 0]
    rows[5, :2] = rows[5].max() + 1.0  # two largest
    np.testing.assert_allclose(ns.Entropy().score(rows), [by_formula(row.tolist()) for row in rows], rtol=1e-12)


def test_the_order_of_planted_rows_is_found(kernels: _kernels.Backend) -> None:
    """From certain to clueless; a flipped sign turns the order round, a float32 softmax ties the first two."""
    rows = [[60.0, 0.0, 0.0], [50.0, 0.0, 0.0], [9.0, 0.0, 0.0], [9.0, 9.0, 0.0], [1.0, 1.0, 1.0]]
    scores = ns.Entropy().score(rows)
    assert (np.diff(scores) > 0).all()
    assert scores[-1] == pytest.approx(np.log(3))


def test_memory_does_not_grow_with_the_rows(kernels: _kernels.Backend) -> None:
    import tracemalloc

    rows = np.zeros((40_000, 100), dtype=np.float16)  # converted block by block: 32 MB in float64
    ns.Entropy().score(rows[:10]), ns.GEN(top=10).score(rows[:10])
    tracemalloc.start()
    ns.Entropy().score(rows), ns.GEN(top=10).score(rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16e6
