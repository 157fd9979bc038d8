"""The hot loops for numba: one fused pass from a row of logits to its score.

Two layouts, because a vector register wants four equal neighbours:

* *narrow* (few classes): tiles of 128 rows, turned so that the rows of one class lie side by side; every step
  after the running update works on four rows at once.
* *wide* (many classes): one row at a time, four classes at once.

The loops update the statistics, scale, and reduce to the score without ever holding more than one tile. They
work on copies of the statistics and write them back only when every number stayed finite, so a block with a NaN
in it is refused whole. ``kind`` is one of the constants of :mod:`normscale._kernels.kinds`.

The functions with a trailing comment "four at once" are the ones whose speed rests on LLVM vectorising them;
``benchmarks/`` would show it at once if that broke.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from normscale._kernels.kinds import LOG_ODDS, MAX, TINY_VARIANCE, WIDE_FROM
from normscale._kernels.vector_math import EXACT, REDUCE, compiled, exp_nonpositive, inverse_sqrt_near_one, larger

Array = Any  # numba reads no annotations; these say what a person needs: float arrays of the shapes below

FOLDED_WIDTH = 128  # numbers that _take_in should see at a time
TILE = 128  # rows: a tile of ten classes and its statistics fill the first-level cache
_SERIES_LIMIT = 2.0**-14  # square of the largest e that inverse_sqrt_near_one takes
_UNDERFLOW = 1e-290  # below it terms may have been cut off by the smallest number exp_nonpositive returns


@compiled(EXACT)
def _take_in(row: Array, inverse_weight: float, mean: Array, m2: Array, deviation: Array) -> None:
    """Welford's update of every class with one row; four at once."""
    for j in range(mean.shape[0]):
        x = np.float64(row[j])
        before = x - mean[j]
        new_mean = mean[j] + before * inverse_weight
        after = x - new_mean
        mean[j] = new_mean
        m2[j] += before * after
        deviation[j] = after


@compiled(REDUCE)
def _scale_near(inverse_weight: float, m2: Array, anchor: Array, z: Array, inverse_tau: float) -> tuple[float, float]:
    """Divide deviations by sigma, with 1/sigma as a series around its last exact value ``anchor``; four at once.

    Returns the largest scaled logit and the largest squared series argument: when that is too large, the caller
    scales the row again exactly. A running sigma hardly moves from row to row, so that is rare.
    """
    top = -np.inf
    worst = 0.0
    for j in range(z.shape[0]):
        variance = m2[j] * inverse_weight
        variance = variance if variance > TINY_VARIANCE else TINY_VARIANCE
        e = 1.0 - variance * (anchor[j] * anchor[j])
        scaled = z[j] * ((anchor[j] * inverse_tau) * inverse_sqrt_near_one(e))
        z[j] = scaled
        top = larger(scaled, top)
        worst = larger(e * e, worst)
    return top, worst


@compiled(REDUCE)
def _scale_exactly(
    row: Array, inverse_weight: float, mean: Array, m2: Array, anchor: Array, z: Array, inverse_tau: float
) -> float:
    """Scale one row by square root and division, and remember 1/sigma as the new anchor."""
    top = -np.inf
    for j in range(z.shape[0]):
        variance = m2[j] * inverse_weight
        variance = variance if variance > TINY_VARIANCE else TINY_VARIANCE
        anchor[j] = 1.0 / np.sqrt(variance)
        z[j] = (np.float64(row[j]) - mean[j]) * (anchor[j] * inverse_tau)
        top = larger(z[j], top)
    return top


@compiled(REDUCE)
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


@compiled(REDUCE)
def _sums_of_exp(z: Array, top: float) -> tuple[float, float]:
    """Sums of exp(z - top) over all classes, and over those below the top; four at once."""
    every = 0.0
    below = 0.0
    for j in range(z.shape[0]):
        d = z[j] - top
        term = exp_nonpositive(d)
        every += term
        below += term if d < 0.0 else 0.0
    return every, below


@compiled(EXACT)
def _second_largest(z: Array) -> float:
    top = -np.inf
    second = -np.inf
    for j in range(z.shape[0]):
        if z[j] > top:
            second = top
            top = z[j]
        elif z[j] > second:
            second = z[j]
    return second


@compiled(EXACT)
def _row_score(z: Array, top: float, kind: int) -> float:
    """Reduce one row of scaled logits to its score."""
    if kind == MAX:
        return -top
    every, below = _sums_of_exp(z, top)
    if kind != LOG_ODDS:
        return -(top + np.log(every))
    others = below + (np.round(every - below) - 1.0)  # equals of the largest count 1 each, it itself does not
    if others > _UNDERFLOW:
        return np.log(others)
    second = _second_largest(z)  # relative to the runner-up the sum is at least 1: nothing underflows
    total = 0.0
    for j in range(z.shape[0]):
        if z[j] <= second:
            total += exp_nonpositive(z[j] - second)
    return (second - top) + np.log(total)


@compiled(EXACT)
def _all_finite(mean: Array, m2: Array) -> bool:
    trace = 0.0
    for j in range(mean.shape[0]):
        trace += mean[j] * 0.0 + m2[j] * 0.0
    return trace == 0.0


@compiled(EXACT)
def absorb(rows: Array, weight: float, mean: Array, m2: Array) -> bool:
    """Take rows (b, C) into ``mean`` and ``m2`` (C,); False, and nothing changed, when a result is not finite.

    Rows of few classes are read as fewer, longer ones, ``fold`` rows side by side, so that the registers are full; the
    ``fold`` statistics that come out are then combined.
    """
    n, n_classes = rows.shape
    new_mean = mean.copy()
    new_m2 = m2.copy()
    fold = max(1, FOLDED_WIDTH // n_classes)
    n_long = n // fold
    long_rows = rows[: n_long * fold].reshape(n_long, fold * n_classes)
    own_mean = np.zeros(fold * n_classes)
    own_m2 = np.zeros(fold * n_classes)
    scratch = np.empty(fold * n_classes)
    for i in range(n_long):
        _take_in(long_rows[i], 1.0 / (i + 1.0), own_mean, own_m2, scratch)
    total = weight
    if n_long > 0:
        for part in range(fold):
            share = n_long / (total + n_long)
            for j in range(n_classes):
                k = part * n_classes + j
                delta = own_mean[k] - new_mean[j]
                new_mean[j] += delta * share
                new_m2[j] += own_m2[k] + delta * delta * (total * share)
            total += n_long
    for i in range(n_long * fold, n):
        total += 1.0
        _take_in(rows[i], 1.0 / total, new_mean, new_m2, scratch[:n_classes])
    if not _all_finite(new_mean, new_m2):
        return False
    mean[:] = new_mean
    m2[:] = new_m2
    return True


@compiled(EXACT)
def _stream_wide(rows: Array, weight: float, mean: Array, m2: Array, kind: int, inverse_tau: float, out: Array) -> None:
    n_classes = rows.shape[1]
    anchor = np.zeros(n_classes)
    z = np.empty(n_classes)
    for i in range(rows.shape[0]):
        inverse_weight = 1.0 / (weight + i + 1.0)
        _take_in(rows[i], inverse_weight, mean, m2, z)
        top, worst = _scale_near(inverse_weight, m2, anchor, z, inverse_tau)
        if not worst < _SERIES_LIMIT:
            top = _scale_exactly(rows[i], inverse_weight, mean, m2, anchor, z, inverse_tau)
        out[i] = _row_score(z, top, kind)


@compiled(EXACT)
def _scan_four(rows: Array, inverse_weight: Array, mean: Array, m2: Array, deviation: Array, square: Array) -> None:
    """Welford over the rows of four classes, interleaved so that no update waits for the one before."""
    a0, a1, a2, a3 = mean[0], mean[1], mean[2], mean[3]
    q0, q1, q2, q3 = m2[0], m2[1], m2[2], m2[3]
    d0, d1, d2, d3 = deviation[0], deviation[1], deviation[2], deviation[3]
    s0, s1, s2, s3 = square[0], square[1], square[2], square[3]
    for r in range(inverse_weight.shape[0]):
        k = inverse_weight[r]
        x0 = np.float64(rows[r, 0])
        x1 = np.float64(rows[r, 1])
        x2 = np.float64(rows[r, 2])
        x3 = np.float64(rows[r, 3])
        e0, e1, e2, e3 = x0 - a0, x1 - a1, x2 - a2, x3 - a3
        a0 += e0 * k
        a1 += e1 * k
        a2 += e2 * k
        a3 += e3 * k
        x0, x1, x2, x3 = x0 - a0, x1 - a1, x2 - a2, x3 - a3
        q0 += e0 * x0
        q1 += e1 * x1
        q2 += e2 * x2
        q3 += e3 * x3
        d0[r], d1[r], d2[r], d3[r] = x0, x1, x2, x3
        s0[r], s1[r], s2[r], s3[r] = q0, q1, q2, q3
    mean[0], mean[1], mean[2], mean[3] = a0, a1, a2, a3
    m2[0], m2[1], m2[2], m2[3] = q0, q1, q2, q3


@compiled(EXACT)
def _scan_one(rows: Array, inverse_weight: Array, mean: Array, m2: Array, deviation: Array, square: Array) -> None:
    """Welford over the rows of one class."""
    a, q, d, s = mean[0], m2[0], deviation[0], square[0]
    for r in range(inverse_weight.shape[0]):
        x = np.float64(rows[r, 0])
        e = x - a
        a += e * inverse_weight[r]
        x -= a
        q += e * x
        d[r] = x
        s[r] = q
    mean[0] = a
    m2[0] = q


@compiled(EXACT)
def _scale_class(z: Array, square: Array, inverse_weight: Array, inverse_tau: float) -> None:
    """Scale the deviations of one class by its sigma at every row; four at once."""
    for r in range(z.shape[0]):
        variance = square[r] * inverse_weight[r]
        variance = variance if variance > TINY_VARIANCE else TINY_VARIANCE
        z[r] = z[r] * inverse_tau / np.sqrt(variance)


@compiled(EXACT)
def _rank_class(z: Array, top: Array, second: Array) -> None:
    """Bring one class into the two largest scaled logits of every row; four at once."""
    for r in range(z.shape[0]):
        scaled = z[r]
        t = top[r]
        s = second[r]
        lower = scaled if scaled < t else t
        second[r] = lower if lower > s else s
        top[r] = scaled if scaled > t else t


@compiled(EXACT)
def _add_exp_below(z: Array, reference: Array, total: Array) -> None:
    """Add exp(min(z - reference, 0)) of one class to every row's sum; four at once."""
    for r in range(z.shape[0]):
        d = z[r] - reference[r]
        total[r] += exp_nonpositive(d if d < 0.0 else 0.0)


@compiled(EXACT)
def _tile_scores(z: Array, b: int, top: Array, second: Array, total: Array, kind: int, out: Array) -> None:
    """Reduce the first b columns of a turned tile (C, TILE) of scaled logits to the scores of its rows."""
    top[:] = -np.inf
    second[:] = -np.inf
    for j in range(z.shape[0]):
        _rank_class(z[j, :b], top, second)
    if kind == MAX:
        for r in range(out.shape[0]):
            out[r] = -top[r]
    elif kind == LOG_ODDS:
        total[:] = -1.0  # the largest itself, which counts as exp(0) below
        for j in range(z.shape[0]):
            _add_exp_below(z[j, :b], second, total)
        for r in range(out.shape[0]):
            out[r] = (second[r] - top[r]) + np.log(total[r])
    else:
        total[:] = 0.0
        for j in range(z.shape[0]):
            _add_exp_below(z[j, :b], top, total)
        for r in range(out.shape[0]):
            out[r] = -(top[r] + np.log(total[r]))


@compiled(EXACT)
def _stream_narrow(
    rows: Array, weight: float, mean: Array, m2: Array, kind: int, inverse_tau: float, out: Array
) -> None:
    n, n_classes = rows.shape
    tile = max(1, min(TILE, n))
    deviation = np.empty((n_classes, tile))
    square = np.empty((n_classes, tile))
    work = np.empty((4, tile))
    for start in range(0, n, tile):
        b = min(tile, n - start)
        inverse_weight = work[0, :b]
        for r in range(b):
            inverse_weight[r] = 1.0 / (weight + (start + r) + 1.0)
        block = rows[start : start + b]
        j = 0
        while j + 4 <= n_classes:
            k = j + 4
            _scan_four(block[:, j:k], inverse_weight, mean[j:k], m2[j:k], deviation[j:k], square[j:k])
            j = k
        while j < n_classes:
            k = j + 1
            _scan_one(block[:, j:k], inverse_weight, mean[j:k], m2[j:k], deviation[j:k], square[j:k])
            j = k
        for j in range(n_classes):
            _scale_class(deviation[j, :b], square[j, :b], inverse_weight, inverse_tau)
        _tile_scores(deviation, b, work[1, :b], work[2, :b], work[3, :b], kind, out[start : start + b])


@compiled(EXACT)
def stream_scores(
    rows: Array, weight: float, mean: Array, m2: Array, kind: int, inverse_tau: float, out: Array
) -> bool:
    """Take rows (b, C) in one by one and score each with the statistics that include it.

    ``mean`` and ``m2`` (C,) move on, ``out`` (b,) gets the scores. False, and nothing moved, when a result is
    not finite.
    """
    new_mean = mean.copy()
    new_m2 = m2.copy()
    if rows.shape[1] < WIDE_FROM:
        _stream_narrow(rows, weight, new_mean, new_m2, kind, inverse_tau, out)
    else:
        _stream_wide(rows, weight, new_mean, new_m2, kind, inverse_tau, out)
    if not _all_finite(new_mean, new_m2):
        return False
    mean[:] = new_mean
    m2[:] = new_m2
    return True


@compiled(EXACT)
def stream_row(
    row: Array,
    weight: float,
    mean: Array,
    m2: Array,
    kind: int,
    inverse_tau: float,
    new_mean: Array,
    new_m2: Array,
    out: Array,
) -> bool:
    """One row (1, C), taken in and scored: :func:`stream_scores` without its preparations.

    ``mean`` and ``m2`` stay; the statistics with the row go to ``new_mean`` and ``new_m2``.
    """
    n_classes = mean.shape[0]
    inverse_weight = 1.0 / (weight + 1.0)
    z = np.empty(n_classes)
    top = -np.inf
    trace = 0.0
    for j in range(n_classes):
        x = np.float64(row[0, j])
        before = x - mean[j]
        a = mean[j] + before * inverse_weight
        q = m2[j] + before * (x - a)
        new_mean[j] = a
        new_m2[j] = q
        trace += a * 0.0 + q * 0.0
        variance = q * inverse_weight
        variance = variance if variance > TINY_VARIANCE else TINY_VARIANCE
        z[j] = (x - a) * inverse_tau / np.sqrt(variance)
        top = z[j] if z[j] > top else top
    out[0] = _row_score(z, top, kind)
    return trace == 0.0


@compiled(EXACT)
def predicted(rows: Array, out: Array) -> None:
    """The first of the largest numbers of every row."""
    for i in range(rows.shape[0]):
        top = rows[i, 0]
        where = 0
        for j in range(1, rows.shape[1]):
            larger_one = rows[i, j] > top
            top = rows[i, j] if larger_one else top
            where = j if larger_one else where
        out[i] = where


@compiled(REDUCE)
def less_row_means(rows: Array, out: Array) -> None:
    """Every row less its mean."""
    for i in range(rows.shape[0]):
        total = 0.0
        for j in range(rows.shape[1]):
            total += np.float64(rows[i, j])
        mean = total / rows.shape[1]
        for j in range(rows.shape[1]):
            out[i, j] = np.float64(rows[i, j]) - mean


@compiled(EXACT)
def _turn_scaled(rows: Array, shift: Array, factor: Array, z: Array) -> float:
    """Scale a tile with fixed statistics into its turned form; 0 unless it holds NaN or infinity."""
    trace = 0.0
    for j in range(z.shape[0]):
        column = rows[:, j]
        target = z[j]
        a = shift[j]
        f = factor[j]
        for r in range(column.shape[0]):
            x = np.float64(column[r])
            target[r] = (x - a) * f
            trace += x * 0.0
    return trace


@compiled(EXACT)
def frozen_scores(rows: Array, shift: Array, factor: Array, kind: int, out: Array) -> bool:
    """Score rows (b, C) as (row - shift) * factor; False when a row holds NaN or infinity."""
    n, n_classes = rows.shape
    trace = 0.0
    if n_classes >= WIDE_FROM:
        row = np.empty(n_classes)
        for i in range(n):
            top, trace_of_row = _scale_frozen(rows[i], shift, factor, row)
            trace += trace_of_row
            out[i] = _row_score(row, top, kind)
        return trace == 0.0
    tile = max(1, min(TILE, n))
    turned = np.empty((n_classes, tile))
    work = np.empty((3, tile))
    for start in range(0, n, tile):
        b = min(tile, n - start)
        trace += _turn_scaled(rows[start : start + b], shift, factor, turned)
        _tile_scores(turned, b, work[0, :b], work[1, :b], work[2, :b], kind, out[start : start + b])
    return trace == 0.0
