"""GEN against the formula in 60 digits, both kernels, and rows whose order is known."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

import normscale as ns
from normscale import _kernels


def by_formula(row: list[float], gamma: float, top: int) -> float:
    """Sum of p^gamma (1 - p)^gamma over the largest p, in 60 digits; 1 - p is the sum of the others."""
    with mpmath.workdps(60):
        weights = sorted((mpmath.exp(mpmath.mpf(z)) for z in row), reverse=True)
        total = mpmath.fsum(weights)
        others = [mpmath.fsum(weights[:j] + weights[j + 1 :]) for j in range(min(top, len(row)))]
        pairs = zip(weights, others, strict=False)
        return float(mpmath.fsum((w / total) ** gamma * (o / total) ** gamma for w, o in pairs))


@pytest.mark.parametrize("width", (2, 3, 50, 130))
@pytest.mark.parametrize("spread", (0.1, 3.0, 40.0, 800.0))
@pytest.mark.parametrize(("gamma", "top"), ((0.1, 100), (0.1, 7), (0.7, 1), (1.0, 2)))
def test_gen_is_its_formula(kernels: _kernels.Backend, width: int, spread: float, gamma: float, top: int) -> None:
    rows = np.random.default_rng(width).normal(0.0, spread, (6, width))
    rows[3] = rows[3].round()  # equal logits
    rows[4] = rows[4, 0]
    rows[5, :2] = rows[5].max() + 1.0  # two largest
    expected = [by_formula(row.tolist(), gamma, top) for row in rows]
    np.testing.assert_allclose(ns.GEN(gamma, top).score(rows), expected, rtol=1e-11, atol=1e-290)


def test_the_order_of_planted_rows_is_found(kernels: _kernels.Backend) -> None:
    """From certain to clueless; a flipped sign turns the order round."""
    rows = [[2000.0, 0.0, 0.0], [1000.0, 0.0, 0.0], [60.0, 0.0, 0.0], [9.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
    assert (np.diff(ns.GEN().score(rows)) > 0).all()


def test_a_tail_counts_that_the_largest_probability_does_not_see(kernels: _kernels.Backend) -> None:
    """Two rows with the same largest probability: one leaves the rest to one class, the other spreads it."""
    one, spread = np.log([[0.9, 0.1 - 3e-9, 1e-9, 1e-9, 1e-9], [0.9, 0.025, 0.025, 0.025, 0.025]])
    first, second = ns.MSP().score([one, spread])
    assert first == pytest.approx(second, rel=1e-6)
    scores = ns.GEN().score([one, spread])
    assert scores[1] > 1.2 * scores[0]
    first, second = ns.GEN(top=1).score([one, spread])  # which hides the tail
    assert first == pytest.approx(second, rel=1e-6)


@pytest.mark.parametrize(("gamma", "top"), ((0.0, 5), (1.5, 5), (0.1, 0), (0.1, 2.5), ("a", 5)))
def test_parameters_are_checked(gamma: float, top: int) -> None:
    with pytest.raises(ns.InvalidInput, match=r"gamma must|top must"):
        ns.GEN(gamma, top)
    assert ns.GEN(top=50.0).top == 50  # type: ignore[arg-type]  # as the command line reads it
