"""The same loops in blocked numpy: always there, and the oracle the compiled ones are tested against.

A block of b rows is laid out as a cube: row ``r = run * LENGTH + step`` stands at ``[step, ..., run]``, so that a
running sum over the rows is LENGTH - 1 additions of large contiguous slices (all runs take a step at once), then
one short sum over the runs' ends. numpy's own cumsum is five times slower. With few classes the runs lie along
the last axis, with many the classes do: the longer one belongs innermost.

Running statistics come from the sums of the deviations, and of their squares, from the mean the block starts
with. With a start weight w >= 1 no digits are lost that way: the sum of squares exceeds the result at most
(w + b) / w times. A first row that meets a smaller weight is therefore taken in alone.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale._kernels.kinds import LOG_ODDS, MAX, TINY_VARIANCE, WIDE_FROM

FloatArray = NDArray[np.float64]

LENGTH = 16
_BLOCK_ELEMENTS = 1 << 17  # a megabyte per cube (measured: smaller pieces pay more for calls than caches give)
_FEW_RUNS = 64
_NO_OVERFLOW = 300.0
_CONFIDENT = 2.0**-6  # below it "sum over all classes, less 1" would lose digits


class Prefix(NamedTuple):
    """Statistics after every row of a piece, as cubes."""

    moved: FloatArray
    """How far the mean has gone from the mean before the piece."""
    mean_square: FloatArray
    """Of the deviations from the mean before the piece; less the square of ``moved`` it is the variance."""
    deviation: FloatArray
    """The row less the mean before the piece."""


def _class_axis(n_classes: int) -> int:
    return 1 if n_classes < WIDE_FROM else 2


def _per_class(values: FloatArray) -> FloatArray:
    """Values (C,) in the shape that broadcasts against a cube."""
    return values[:, None] if _class_axis(values.shape[0]) == 1 else values


def _cube(block: NDArray[Any], out: FloatArray | None = None) -> FloatArray:
    """A contiguous block (b, C) as a float64 cube, (step, class, run) or (step, run, class)."""
    b, n_classes = block.shape
    length = LENGTH if b % LENGTH == 0 else 1
    runs = block.reshape(b // length, length, n_classes)
    turned = runs.transpose((1, 2, 0) if _class_axis(n_classes) == 1 else (1, 0, 2))
    if out is None:
        return np.array(turned, dtype=np.float64, order="C")
    cube = out[: block.size].reshape(turned.shape)
    np.copyto(cube, turned)
    return cube


@lru_cache(maxsize=8)
def _earlier_runs(n_runs: int) -> FloatArray:
    """The matrix that sums, for each run, all runs before it."""
    return np.tri(n_runs, k=-1)


def _before_runs(totals: FloatArray, run_axis: int) -> FloatArray:
    """Sums over all earlier runs; of few runs by a matrix product, because numpy's cumsum is slow."""
    n_runs = totals.shape[run_axis - 1]
    if n_runs <= _FEW_RUNS:
        earlier = _earlier_runs(n_runs)
        return earlier @ totals if run_axis == 1 else totals @ earlier.T
    sums: FloatArray = np.cumsum(totals, axis=run_axis - 1)
    sums -= totals
    return sums


def _running_sum(terms: FloatArray, run_axis: int, start: FloatArray | None, out: FloatArray) -> None:
    """Sum over the rows up to and with each row, beginning at ``start``; ``out`` may be ``terms``."""
    before = _before_runs(terms.sum(axis=0), run_axis)
    if start is not None:
        before += _per_class(start)
    np.add(terms[0], before, out=out[0])
    for step in range(1, terms.shape[0]):
        np.add(terms[step], out[step - 1], out=out[step])


def workspace(n: int, n_classes: int) -> FloatArray:
    """Memory for the three cubes of :func:`prefix_cubes`, to be used again for every piece."""
    return np.empty((3, min(n, _step(n_classes)) * n_classes))


def prefix_cubes(block: NDArray[Any], weight: float, mean: FloatArray, m2: FloatArray, work: FloatArray) -> Prefix:
    """Statistics after every row of one piece (see :func:`pieces`), in the memory of ``work``."""
    class_axis = _class_axis(block.shape[1])
    run_axis = 3 - class_axis
    deviation = _cube(block, work[0])
    deviation -= _per_class(mean)
    moved, mean_square = (memory[: block.size].reshape(deviation.shape) for memory in work[1:])
    length, n_runs = deviation.shape[0], deviation.shape[run_axis]
    rows_taken = 1.0 + np.arange(length)[:, None] + length * np.arange(n_runs)
    inverse_weights = np.expand_dims(1.0 / (weight + rows_taken), class_axis)
    _running_sum(deviation, run_axis, None, out=moved)
    np.multiply(deviation, deviation, out=mean_square)
    _running_sum(mean_square, run_axis, m2, out=mean_square)
    moved *= inverse_weights
    mean_square *= inverse_weights
    return Prefix(moved, mean_square, deviation)


def _step(n_classes: int) -> int:
    """Rows of a full piece."""
    return max(LENGTH, _BLOCK_ELEMENTS // n_classes // LENGTH * LENGTH)


def pieces(n: int, n_classes: int, weight: float) -> list[tuple[int, int]]:
    """Cut n rows into pieces that :func:`prefix_cubes` takes whole and without losing digits."""
    step = _step(n_classes)
    cuts = [0, 1] if weight < 1.0 and n > 1 else [0]
    while n - cuts[-1] >= step:
        cuts.append(cuts[-1] + step)
    for length in (LENGTH, 1):  # what is left: whole runs first, then single rows
        rest = (n - cuts[-1]) // length * length
        if rest:
            cuts.append(cuts[-1] + rest)
    return list(pairwise(cuts))


def prefix(
    rows: NDArray[Any], weight: float, mean: FloatArray, m2: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Weights (n,), means and sums of squared deviations (n, C) after every row."""
    n, n_classes = rows.shape
    weights = weight + np.arange(1.0, n + 1.0)
    means, squares = np.empty((n, n_classes)), np.empty((n, n_classes))
    work = workspace(n, n_classes)
    back = (2, 0, 1) if _class_axis(n_classes) == 1 else (1, 0, 2)
    with np.errstate(all="ignore"):
        for a, b in pieces(n, n_classes, weight):
            state = prefix_cubes(rows[a:b], weight + a, mean, m2, work)
            means[a:b] = mean + state.moved.transpose(back).reshape(b - a, n_classes)
            variance = np.maximum(state.mean_square - state.moved**2, 0.0).transpose(back).reshape(b - a, n_classes)
            squares[a:b] = variance * weights[a:b, None]
            mean, m2 = means[b - 1], squares[b - 1]
    return weights, means, squares


def absorb(rows: NDArray[Any], weight: float, mean: FloatArray, m2: FloatArray) -> bool:
    """Take rows (b, C) into ``mean`` and ``m2`` (C,); False, and nothing changed, when a result is not finite."""
    new_mean, new_m2 = mean.copy(), m2.copy()
    with np.errstate(all="ignore"):
        for a, b in pieces(rows.shape[0], rows.shape[1], weight):
            deviation = rows[a:b].astype(np.float64)
            deviation -= new_mean
            total = weight + b
            moved = deviation.sum(axis=0) / total
            new_m2 += np.maximum(np.einsum("ij,ij->j", deviation, deviation) - total * moved * moved, 0.0)
            new_mean += moved
    return _commit(mean, m2, new_mean, new_m2)


def stream_scores(
    rows: NDArray[Any],
    weight: float,
    mean: FloatArray,
    m2: FloatArray,
    kind: int,
    inverse_tau: float,
    out: FloatArray,
) -> bool:
    """Take rows (b, C) in one by one and score each with the statistics that include it.

    ``mean`` and ``m2`` (C,) move on, ``out`` (b,) gets the scores. False, and nothing moved, when a result is
    not finite.
    """
    class_axis = _class_axis(rows.shape[1])
    run_axis = 3 - class_axis
    new_mean, new_m2 = mean.copy(), m2.copy()
    work = workspace(*rows.shape)
    with np.errstate(all="ignore"):
        for a, b in pieces(rows.shape[0], rows.shape[1], weight):
            moved, variance, z = prefix_cubes(rows[a:b], weight + a, new_mean, new_m2, work)
            z -= moved
            new_mean = new_mean + moved[-1].take(-1, axis=run_axis - 1)
            np.multiply(moved, moved, out=moved)
            variance -= moved
            last_variance = variance[-1].take(-1, axis=run_axis - 1)
            # M2 never falls, so where it was clearly above rounding error before, the variance is positive after
            if not new_m2.min() > 1e-6 * (weight + b) * last_variance.max():
                np.maximum(variance, TINY_VARIANCE, out=variance)
            new_m2 = np.maximum(last_variance, 0.0) * (weight + b)
            np.sqrt(variance, out=variance)
            z /= variance
            if inverse_tau != 1.0:
                z *= inverse_tau
            _score_cube(z, class_axis, kind, out[a:b], scratch=variance)
    return _commit(mean, m2, new_mean, new_m2)


def stream_row(
    row: NDArray[Any],
    weight: float,
    mean: FloatArray,
    m2: FloatArray,
    kind: int,
    inverse_tau: float,
    new_mean: FloatArray,
    new_m2: FloatArray,
    out: FloatArray,
) -> bool:
    """One row (1, C), taken in and scored; the statistics with the row go to ``new_mean`` and ``new_m2``."""
    new_mean[:] = mean
    new_m2[:] = m2
    return stream_scores(row, weight, new_mean, new_m2, kind, inverse_tau, out)


def predicted(rows: NDArray[Any], out: NDArray[np.int64]) -> None:
    """The first of the largest numbers of every row."""
    np.argmax(rows, axis=1, out=out)


def less_row_means(rows: NDArray[Any], out: FloatArray) -> None:
    """Every row less its mean."""
    with np.errstate(all="ignore"):
        np.subtract(rows, rows.mean(axis=1, keepdims=True, dtype=np.float64), out=out)


def frozen_scores(rows: NDArray[Any], shift: FloatArray, factor: FloatArray, kind: int, out: FloatArray) -> bool:
    """Score rows (b, C) as (row - shift) * factor; False when a row holds NaN or infinity."""
    with np.errstate(all="ignore"):
        for a, b in pieces(rows.shape[0], rows.shape[1], 1.0):
            if not np.isfinite(rows[a:b]).all():
                return False
            z = _cube(rows[a:b])
            z -= _per_class(shift)
            z *= _per_class(factor)
            _score_cube(z, _class_axis(rows.shape[1]), kind, out[a:b], scratch=None)
    return True


def _score_cube(z: FloatArray, class_axis: int, kind: int, out: FloatArray, scratch: FloatArray | None) -> None:
    """Reduce scaled logits to the scores of their rows; ``z`` is overwritten."""
    top = z.max(axis=class_axis, keepdims=True)
    if kind == MAX:
        scores = -top
    else:
        lift = top  # exp(z - top) sums safely; where no exp(z) can overflow, one pass is spared by dividing afterwards
        if np.abs(top).max(initial=0.0) < _NO_OVERFLOW:
            total = np.exp(z, out=scratch).sum(axis=class_axis, keepdims=True) * np.exp(-top)
        else:
            z -= top
            lift = np.zeros_like(top)
            total = np.exp(z, out=scratch).sum(axis=class_axis, keepdims=True)
        scores = -(top + np.log(total)) if kind != LOG_ODDS else _log_odds(z, lift, class_axis, total)
    scores = scores.squeeze(class_axis)
    out.reshape(scores.shape[1], scores.shape[0])[...] = scores.T


def _log_odds(z: FloatArray, top: FloatArray, class_axis: int, total: FloatArray) -> FloatArray:
    """Log of the sum of exp(z - top) over all classes but the largest; ``total`` is the sum over all."""
    others = total - 1.0
    confident = (others <= _CONFIDENT).squeeze(class_axis)
    if not confident.any():
        return np.log(others)
    others[np.expand_dims(confident, class_axis)] = 1.0
    scores: FloatArray = np.log(others)
    rest = np.moveaxis(z - top, class_axis, -1)[confident]
    rest[np.arange(rest.shape[0]), rest.argmax(axis=1)] = -np.inf
    second = rest.max(axis=1, keepdims=True)  # relative to it the sum is at least 1: nothing underflows or cancels
    exact = second[:, 0] + np.log(np.exp(rest - second).sum(axis=1))
    np.moveaxis(scores, class_axis, -1)[confident, 0] = exact
    return scores


def _commit(mean: FloatArray, m2: FloatArray, new_mean: FloatArray, new_m2: FloatArray) -> bool:
    if not (np.isfinite(new_mean).all() and np.isfinite(new_m2).all()):
        return False
    mean[:] = new_mean
    m2[:] = new_m2
    return True
