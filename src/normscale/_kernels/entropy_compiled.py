"""Entropies in numba; :mod:`normscale._kernels.entropy` says what is computed."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from normscale._kernels.compiled import _second_largest
from normscale._kernels.entropy import UNDERFLOW
from normscale._kernels.vector_math import EXACT, REDUCE, compiled, exp_nonpositive, larger, log_one_minus

Array: TypeAlias = NDArray[Any]


@compiled(REDUCE)
def _read(row: Array, z: Array) -> tuple[float, float]:
    """The row in float64 and its largest number; the second result is 0 unless it holds NaN or infinity."""
    top = -np.inf
    trace = 0.0
    for j in range(z.shape[0]):
        x = np.float64(row[j])
        z[j] = x
        top = larger(x, top)
        trace += x * 0.0
    return top, trace


@compiled(REDUCE)
def _sums(z: Array, top: float) -> tuple[float, float, float]:
    """Sums of exp(d) over all classes and over those below the top, and of d exp(d); four at once."""
    every = 0.0
    below = 0.0
    weighted = 0.0
    for j in range(z.shape[0]):
        d = z[j] - top
        term = exp_nonpositive(d)
        every += term
        below += term if d < 0.0 else 0.0
        weighted += term * d
    return every, below, weighted


@compiled(EXACT)
def entropy(rows: Array, out: Array) -> bool:
    """-sum p log p; False when a row is not finite."""
    z = np.empty(rows.shape[1])
    trace = 0.0
    for i in range(rows.shape[0]):
        top, trace_of_row = _read(rows[i], z)
        trace += trace_of_row
        every, below, weighted = _sums(z, top)
        others = below + (np.round(every - below) - 1.0)  # equals of the largest count 1 each, it itself does not
        out[i] = np.log1p(others) - weighted / (1.0 + others)
    return trace == 0.0


@compiled(EXACT)
def _log_others(z: Array, top: float, others: float) -> float:
    """Log of the sum of exp(z - top) over all but the largest."""
    lift = 0.0
    total = others
    if others < UNDERFLOW:
        second = _second_largest(z)
        lift = second - top
        total = 0.0
        for j in range(z.shape[0]):
            if z[j] <= second:
                total += exp_nonpositive(z[j] - second)
    result: float = lift + np.log(total)
    return result


@compiled(EXACT)
def _probabilities(z: Array, top: float, log_total: float, p: Array) -> None:
    for j in range(z.shape[0]):
        p[j] = exp_nonpositive((z[j] - top) - log_total)


@compiled(EXACT)
def _exponents(z: Array, top: float, log_total: float, gamma: float, p: Array) -> None:
    """Put gamma * log(p (1 - p)) in the place of p."""
    for j in range(z.shape[0]):
        p[j] = gamma * ((z[j] - top) - log_total + log_one_minus(p[j]))


@compiled(REDUCE)
def _sum_below(z: Array, top: float, exponents: Array) -> tuple[float, float]:
    """Sum of the powers over the numbers below the top, and how many are the top."""
    below = 0.0
    n_top = 0.0
    for j in range(z.shape[0]):
        term = exp_nonpositive(exponents[j])
        below += term if z[j] < top else 0.0
        n_top += 0.0 if z[j] < top else 1.0
    return below, n_top


@compiled(EXACT)
def generalised_entropy(rows: Array, gamma: float, top: int, out: Array) -> bool:
    """Sum of (p (1 - p)) ** gamma over the ``top`` largest p; False when a row is not finite."""
    n_classes = rows.shape[1]
    z = np.empty(n_classes)
    work = np.empty(n_classes)
    for i in range(rows.shape[0]):
        largest, trace_of_row = _read(rows[i], z)
        if trace_of_row != 0.0:  # of NaN too, which np.partition must not meet
            return False
        every, below, _ = _sums(z, largest)
        others = below + (np.round(every - below) - 1.0)
        log_total = np.log1p(others)
        chosen = z if top >= n_classes else np.partition(z, n_classes - top)[n_classes - top :]
        powers = work[: chosen.shape[0]]
        _probabilities(chosen, largest, log_total, powers)  # three loops: one would be too long to become vector code
        _exponents(chosen, largest, log_total, gamma, powers)  # of numbers below the top, where p is at most 1/2
        terms, n_largest = _sum_below(chosen, largest, powers)
        own_term = exp_nonpositive(gamma * (_log_others(z, largest, others) - 2.0 * log_total))
        out[i] = terms + n_largest * own_term
    return True
