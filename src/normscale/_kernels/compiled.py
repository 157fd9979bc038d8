"""The hot loops for numba: one fused pass from a row of logits to its score.

Rows of many classes go one by one, four classes at once. Rows of few classes go by tiles, turned so that the rows of
one class lie side by side, four rows at once.

The loops work on copies of the statistics and write them back only when every number stayed finite, so a block with
a NaN in it is refused whole. ``kind`` is one of the constants of :mod:`normscale._kernels`. The functions that
say "four at once" are the ones whose speed rests on LLVM vectorising them; ``benchmarks/`` shows when that breaks.
:mod:`normscale._kernels.reference` has the same functions in numpy, and says what they promise.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from normscale._kernels import LOG_ODDS, MAX, TINY_VARIANCE
from normscale._kernels.vector_math import EXACT, INLINE, REDUCE, compiled, exp_nonpositive, larger

Array = Any  # numba reads no annotations: float arrays of the shapes below

_UNDERFLOW = 1e-290  # below it terms may have been cut off by the smallest number exp_nonpositive returns
_MANY = 16  # classes from which rows go one by one (measured)
_SHORT = 16  # rows of a group, below which they go one by one
_TILE = 128  # rows: a tile of ten classes and its statistics fill the first-level cache


@compiled({**REDUCE, **INLINE})
def _take_in(row: Array, inverse_weight: float, mean: Array, m2: Array, inverse_tau: float, z: Array) -> float:
    """Welford's update of every class with one row, and the row scaled by what comes out; four at once.

    Returns the largest scaled logit.
    """
    top = -np.inf
    for j in range(z.shape[0]):
        x = np.float64(row[j])
        before = x - mean[j]
        mean[j] += before * inverse_weight
        after = x - mean[j]
        m2[j] += before * after
        variance = m2[j] * inverse_weight
        variance = variance if variance > TINY_VARIANCE else TINY_VARIANCE
        z[j] = after * inverse_tau / np.sqrt(variance)
        top = larger(z[j], top)
    return top


@compiled({**REDUCE, **INLINE})
def _scale_frozen(row: Array, shift: Array, factor: Array, z: Array) -> tuple[float, float]:
    """Scale one row with fixed statistics; the second result is 0 unless the row holds NaN or infinity."""
    top = -np.inf
    trace = 0.0
    for j in range(z.shape[0]):
        x = np.float64(row[j])
        z[j] = (x - shift[j]) * factor[j]
        top = larger(z[j], top)
        trace += x * 0.0
    return top, trace


@compiled({**REDUCE, **INLINE})
def _sums_of_exp(z: Array, top: float) -> tuple[float, float]:
    """Sums of exp(z - top) over all classes and over those below the top; four at once."""
    every = 0.0
    below = 0.0
    for j in range(z.shape[0]):
        d = z[j] - top
        term = exp_nonpositive(d)
        every += term
        below += term if d < 0.0 else 0.0
    return every, below


@compiled(EXACT)
def _log_others(z: Array, top: float, every: float, below: float) -> float:
    """Log of the sum of exp(z - top) over all classes but one largest, from the sums over all and below the top."""
    others = below + (np.round(every - below) - 1.0)  # equals of the largest count 1 each, it itself does not
    if others > _UNDERFLOW:
        return np.log(others)
    second = -np.inf  # relative to the runner-up the sum is at least 1: nothing underflows
    for j in range(z.shape[0]):
        second = z[j] if second < z[j] < top else second
    total = 0.0
    for j in range(z.shape[0]):
        total += exp_nonpositive(z[j] - second) if z[j] <= second else 0.0
    return (second - top) + np.log(total)


@compiled({**EXACT, **INLINE})
def _row_score(z: Array, top: float, kind: int) -> float:
    """Reduce one row of scaled logits to its score."""
    if kind == MAX:
        return -top
    every, below = _sums_of_exp(z, top)
    if kind == LOG_ODDS:
        return _log_others(z, top, every, below)
    return -(top + np.log(every))


@compiled(EXACT)
def _all_finite(mean: Array, m2: Array) -> bool:
    trace = 0.0
    for j in range(mean.shape[0]):
        trace += mean[j] * 0.0 + m2[j] * 0.0
    return trace == 0.0


@compiled(EXACT)
def absorb(rows: Array, weight: float, mean: Array, m2: Array) -> bool:
    """Take rows (b, C) into ``mean`` and ``m2`` (C,); False, and nothing changed, when a result is not finite."""
    new_mean, new_m2 = mean.copy(), m2.copy()
    for i in range(rows.shape[0]):
        inverse_weight = 1.0 / (weight + i + 1.0)
        for j in range(new_mean.shape[0]):  # four at once
            x = np.float64(rows[i, j])
            before = x - new_mean[j]
            new_mean[j] += before * inverse_weight
            new_m2[j] += before * (x - new_mean[j])
    if not _all_finite(new_mean, new_m2):
        return False
    mean[:] = new_mean
    m2[:] = new_m2
    return True


@compiled({**EXACT, **INLINE})
def _take_in_tile(
    rows: Array, weight: float, mean: Array, m2: Array, inverse_tau: float, z: Array, tile: Array
) -> None:
    """Welford's updates with some rows, and the rows scaled by what comes out of each, into the turned tile z."""
    inverse_weight = tile[0]
    for r in range(rows.shape[0]):
        inverse_weight[r] = 1.0 / (weight + r + 1.0)
    for j in range(0, z.shape[0], 2):
        k = min(j + 1, z.shape[0] - 1)  # two classes side by side, so that no update waits for the one before
        mean_j, m2_j, mean_k, m2_k = mean[j], m2[j], mean[k], m2[k]
        for r in range(rows.shape[0]):
            x, y = np.float64(rows[r, j]), np.float64(rows[r, k])
            x_before, y_before = x - mean_j, y - mean_k
            mean_j += x_before * inverse_weight[r]
            mean_k += y_before * inverse_weight[r]
            x, y = x - mean_j, y - mean_k
            m2_j += x_before * x
            m2_k += y_before * y
            z[j, r], z[k, r] = x, y
            tile[1, r], tile[2, r] = m2_j, m2_k
        mean[j], m2[j], mean[k], m2[k] = mean_j, m2_j, mean_k, m2_k
        for c in range(j, k + 1):
            for r in range(z.shape[1]):  # four at once
                variance = tile[1 + c - j, r] * inverse_weight[r]
                variance = variance if variance > TINY_VARIANCE else TINY_VARIANCE
                z[c, r] = z[c, r] * inverse_tau / np.sqrt(variance)


@compiled({**REDUCE, **INLINE})
def _scale_tile(rows: Array, shift: Array, factor: Array, z: Array) -> float:
    """Some rows scaled with fixed statistics into the turned tile z; 0 unless they hold NaN or infinity."""
    trace = 0.0
    for j in range(z.shape[0]):
        for r in range(rows.shape[0]):
            x = np.float64(rows[r, j])
            z[j, r] = (x - shift[j]) * factor[j]
            trace += x * 0.0
    return trace


@compiled({**EXACT, **INLINE})
def _tile_scores(z: Array, tile: Array, kind: int, out: Array) -> None:
    """Reduce a turned tile (C, b) of scaled logits to the scores of its first rows; four rows at once."""
    top, second, total = tile[0], tile[1], tile[2]
    top[:] = -np.inf
    second[:] = -np.inf
    for j in range(z.shape[0]):
        for r in range(top.shape[0]):
            lower = z[j, r] if z[j, r] < top[r] else top[r]
            second[r] = lower if lower > second[r] else second[r]
            top[r] = z[j, r] if z[j, r] > top[r] else top[r]
    largest = second if kind == LOG_ODDS else top
    total[:] = -1.0 if kind == LOG_ODDS else 0.0  # without the largest itself, which counts as exp(0) below
    for j in range(z.shape[0] if kind != MAX else 0):
        for r in range(top.shape[0]):
            d = z[j, r] - largest[r]
            total[r] += exp_nonpositive(d if d < 0.0 else 0.0)
    for r in range(out.shape[0]):
        if kind == MAX:
            out[r] = -top[r]
        elif kind == LOG_ODDS:
            out[r] = (second[r] - top[r]) + np.log(total[r])
        else:
            out[r] = -(top[r] + np.log(total[r]))


@compiled(EXACT)
def stream_scores(
    rows: Array, weight: float, mean: Array, m2: Array, kind: int, inverse_tau: float, out: Array
) -> bool:
    """Take rows (b, C) in one by one and score each with the statistics that include it."""
    n, n_classes = rows.shape
    new_mean, new_m2 = mean.copy(), m2.copy()
    if n_classes >= _MANY:
        z = np.empty(n_classes)
        for i in range(n):
            top = _take_in(rows[i], 1.0 / (weight + i + 1.0), new_mean, new_m2, inverse_tau, z)
            out[i] = _row_score(z, top, kind)
    else:
        turned, tile = np.zeros((n_classes, min(n, _TILE))), np.zeros((3, min(n, _TILE)))
        for a in range(0, n, _TILE):
            b = min(a + _TILE, n)
            _take_in_tile(rows[a:b], weight + a, new_mean, new_m2, inverse_tau, turned, tile)
            _tile_scores(turned, tile, kind, out[a:b])
    if not _all_finite(new_mean, new_m2):
        return False
    mean[:] = new_mean
    m2[:] = new_m2
    return True


@compiled(EXACT)
def stream_groups(
    rows: Array, table: Array, places: Array, edges: Array, kind: int, inverse_tau: float, out: Array
) -> bool:
    """As :func:`stream_scores`, the rows between two edges by the statistics in a row of the table each.

    They are what training counts as, weight, mean and m2. False when a result is not finite; some have moved then.
    """
    n_classes = rows.shape[1]
    z = np.empty(n_classes)
    for i in range(places.size):
        a, b = edges[i], edges[i + 1]
        own = table[places[i]]
        mean, m2 = own[2 : 2 + n_classes], own[2 + n_classes :]
        if b - a < _SHORT:
            for k in range(a, b):
                top = _take_in(rows[k], 1.0 / (own[1] + k - a + 1.0), mean, m2, inverse_tau, z)
                out[k] = _row_score(z, top, kind)
            if not _all_finite(mean, m2):
                return False
        elif not stream_scores(rows[a:b], own[1], mean, m2, kind, inverse_tau, out[a:b]):
            return False
        own[1] += b - a
    return True


@compiled(EXACT)
def outside(numbers: Array, low: float, high: float) -> bool:
    """Whether any of the numbers (m,) is below ``low``, above ``high`` or NaN."""
    for a in range(0, numbers.shape[0], _TILE):
        found = 0
        for i in range(a, min(a + _TILE, numbers.shape[0])):
            found |= not low <= numbers[i] <= high
        if found:
            return True
    return False


@compiled(EXACT)
def stream_row(
    row: Array,
    weight: float,
    mean: Array,
    m2: Array,
    kind: int,
    inverse_tau: float,
    low: float,
    high: float,
    new_mean: Array,
    new_m2: Array,
    out: Array,
) -> bool:
    """One row (1, C), taken in and scored; the statistics with the row go to ``new_mean`` and ``new_m2``."""
    if outside(row[0], low, high):
        return False
    new_mean[:] = mean
    new_m2[:] = m2
    z = np.empty(mean.shape[0])
    top = _take_in(row[0], 1.0 / (weight + 1.0), new_mean, new_m2, inverse_tau, z)
    out[0] = _row_score(z, top, kind)
    return _all_finite(new_mean, new_m2)


@compiled({**EXACT, **INLINE})
def first_largest(rows: Array, i: int) -> int:
    """The first of the largest numbers of row i; without a jump, because nobody can guess it."""
    c = 0
    top = rows[i, 0]
    for j in range(1, rows.shape[1]):
        is_larger = rows[i, j] > top
        top = rows[i, j] if is_larger else top
        c = j if is_larger else c
    return c


@compiled({**REDUCE, **INLINE})
def row_mean(rows: Array, i: int) -> float:
    """Of the numbers of row i."""
    total = 0.0
    for j in range(rows.shape[1]):
        total += np.float64(rows[i, j])
    return total / rows.shape[1]


@compiled(EXACT)
def predicted(rows: Array, out: Array) -> None:
    """The first of the largest numbers of every row."""
    for i in range(rows.shape[0]):
        out[i] = first_largest(rows, i)


@compiled(EXACT)
def less_row_means(rows: Array, out: Array) -> None:
    """Every row less its mean."""
    for i in range(rows.shape[0]):
        mean = row_mean(rows, i)
        for j in range(rows.shape[1]):
            out[i, j] = np.float64(rows[i, j]) - mean


@compiled(EXACT)
def frozen_scores(rows: Array, shift: Array, factor: Array, kind: int, out: Array) -> bool:
    """Score rows (b, C) as (row - shift) * factor; False when a row holds NaN or infinity."""
    n, n_classes = rows.shape
    trace = 0.0
    if n_classes >= _MANY:
        z = np.empty(n_classes)
        for i in range(n):
            top, trace_of_row = _scale_frozen(rows[i], shift, factor, z)
            trace += trace_of_row
            out[i] = _row_score(z, top, kind)
        return trace == 0.0
    turned, tile = np.zeros((n_classes, min(n, _TILE))), np.zeros((3, min(n, _TILE)))
    for a in range(0, n, _TILE):
        b = min(a + _TILE, n)
        trace += _scale_tile(rows[a:b], shift, factor, turned)
        _tile_scores(turned, tile, kind, out[a:b])
    return trace == 0.0
