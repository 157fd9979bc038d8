"""The hot loops in blocked numpy: always there, and the oracle the compiled ones are tested against.

A block of rows is a cube: row ``run * LENGTH + step`` is at ``[step, run]``. So a running sum over the rows is a few
additions of large slices, all runs at once, and then a short sum over the ends of the runs; numpy's own cumsum is five
times slower. In memory the runs of one class lie side by side when the classes are few.

Running statistics come from the sums of the deviations, and of their squares, from the mean the block starts
with. With a start weight w >= 1 few digits are lost that way: the sum of squares exceeds the result at most
(w + b) / w times. A first row that meets a smaller weight is therefore taken in alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale._kernels import LOG_ODDS, MAX, TINY_VARIANCE

FloatArray = NDArray[np.float64]

LENGTH = 16
_BLOCK_ELEMENTS = 1 << 17  # a megabyte a cube (measured: smaller ones pay more for calls than caches give)
_FEW = 48  # classes up to which the runs belong innermost
_NO_OVERFLOW = 300.0
_CONFIDENT = 2.0**-6  # below it "sum over all classes, less 1" would lose digits


def _places(rows: NDArray[Any], weight: float = 1.0) -> Iterator[slice]:
    """Blocks of whole runs, then the rest."""
    n, step, start = rows.shape[0], max(1, _BLOCK_ELEMENTS // rows.shape[1] // LENGTH) * LENGTH, 0
    while start < n:
        size = 1 if start == 0 and weight < 1.0 else min(step, (n - start) // LENGTH * LENGTH) or n - start
        yield slice(start, start + size)
        start += size


def _cube(block: NDArray[Any]) -> FloatArray:
    """Rows (b, C) as a new cube (step, run, class) of float64."""
    length = LENGTH if len(block) % LENGTH == 0 else 1
    runs = block.reshape(-1, length, block.shape[1])
    if block.shape[1] > _FEW:
        return np.array(runs.swapaxes(0, 1), dtype=np.float64, order="C")
    return np.array(runs.transpose(1, 2, 0), dtype=np.float64, order="C").swapaxes(1, 2)


def in_rows(cube: FloatArray) -> FloatArray:
    """A cube (step, run, ...) as rows (b, ...)."""
    return cube.swapaxes(0, 1).reshape(-1, *cube.shape[2:])


def _add_up(terms: FloatArray, start: FloatArray | float, out: FloatArray) -> FloatArray:
    """Sums of a cube over the rows up to and with each row, beginning at ``start``; ``out`` may be ``terms``."""
    before = np.zeros_like(terms[0])
    np.cumsum(terms.sum(axis=0)[:-1], axis=0, out=before[1:])
    before += start
    np.add(terms[0], before, out=out[0])
    for step in range(1, len(terms)):
        np.add(terms[step], out[step - 1], out=out[step])
    return out


def prefix(
    rows: NDArray[Any], weight: float, mean: FloatArray, m2: FloatArray
) -> Iterator[tuple[slice, FloatArray, FloatArray, FloatArray, FloatArray]]:
    """A block at a time: its place, the mean before it, and three cubes.

    They are the rows less that mean, how far the mean has moved after every row, and the mean of the squares up to it.
    The latter less the square of the move is the variance.
    """
    for place in _places(rows, weight):
        deviation = _cube(rows[place])
        length, n_runs, _ = deviation.shape
        inverse_weights = 1.0 / (weight + np.arange(place.start + 1.0, place.stop + 1.0))
        inverse_weights = inverse_weights.reshape(n_runs, length).T[:, :, None]
        deviation -= mean
        moved = _add_up(deviation, 0.0, out=np.empty_like(deviation))
        moved *= inverse_weights
        mean_square = deviation * deviation
        _add_up(mean_square, m2, out=mean_square)
        mean_square *= inverse_weights
        before, mean = mean, mean + moved[-1, -1]
        m2 = np.maximum(mean_square[-1, -1] - moved[-1, -1] ** 2, 0.0) * (weight + place.stop)
        yield place, before, deviation, moved, mean_square


def absorb(rows: NDArray[Any], weight: float, mean: FloatArray, m2: FloatArray) -> bool:
    """Take rows (b, C) into ``mean`` and ``m2`` (C,); False, and nothing changed, when a result is not finite."""
    new_mean, new_m2 = mean.copy(), m2.copy()
    with np.errstate(all="ignore"):
        for place in _places(rows, weight):
            deviation = rows[place] - new_mean
            total = weight + place.stop
            moved = deviation.sum(axis=0) / total
            new_m2 += np.maximum(np.einsum("ij,ij->j", deviation, deviation) - total * moved * moved, 0.0)
            new_mean += moved
    return _commit(mean, m2, new_mean, new_m2)


def stream_scores(
    rows: NDArray[Any], weight: float, mean: FloatArray, m2: FloatArray, kind: int, inverse_tau: float, out: FloatArray
) -> bool:
    """Take rows (b, C) in one by one and score each with the statistics that include it.

    ``mean`` and ``m2`` (C,) move on, ``out`` (b,) gets the scores. False, and nothing moved, when a result is
    not finite.
    """
    new_mean, new_m2 = mean, m2
    with np.errstate(all="ignore"):
        for place, before, z, moved, variance in prefix(rows, weight, mean, m2):
            z -= moved
            new_mean = before + moved[-1, -1]
            variance -= np.square(moved, out=moved)
            # M2 never falls: where it was clearly above rounding error before, the variance is positive after
            m2_before, new_m2 = new_m2, np.maximum(variance[-1, -1], 0.0) * (weight + place.stop)
            if not m2_before.min() > 1e-6 * new_m2.max():
                np.maximum(variance, TINY_VARIANCE, out=variance)
            z /= np.sqrt(variance, out=variance)
            if inverse_tau != 1.0:
                z *= inverse_tau
            out[place] = in_rows(_scores(z, kind, variance))
    return _commit(mean, m2, new_mean, new_m2)


def stream_row(
    row: NDArray[Any],
    weight: float,
    mean: FloatArray,
    m2: FloatArray,
    kind: int,
    inverse_tau: float,
    low: float,
    high: float,
    new_mean: FloatArray,
    new_m2: FloatArray,
    out: FloatArray,
) -> bool:
    """One row (1, C), taken in and scored; the statistics with the row go to ``new_mean`` and ``new_m2``.

    False where a logit lies below ``low`` or above ``high``, or a result is not finite.
    """
    if outside(row[0], low, high):
        return False
    new_mean[:], new_m2[:] = mean, m2
    return stream_scores(row, weight, new_mean, new_m2, kind, inverse_tau, out)


def outside(numbers: NDArray[Any], low: float, high: float) -> bool:
    """Whether any of the numbers (m,) is below ``low``, above ``high`` or NaN."""
    return bool(numbers.size) and not low <= float(numbers.min()) <= float(numbers.max()) <= high


def predicted(rows: NDArray[Any], out: NDArray[np.int64]) -> None:
    """The first of the largest numbers of every row."""
    np.argmax(rows, axis=1, out=out)


def less_row_means(rows: NDArray[Any], out: FloatArray) -> None:
    """Every row less its mean."""
    with np.errstate(all="ignore"):
        np.subtract(rows, rows.mean(axis=1, keepdims=True, dtype=np.float64), out=out)


def frozen_scores(rows: NDArray[Any], shift: FloatArray, factor: FloatArray, kind: int, out: FloatArray) -> bool:
    """Score rows (b, C) as (row - shift) * factor; False when a row holds NaN or infinity."""
    for place in _places(rows):
        if not np.isfinite(rows[place]).all():
            return False
        z = _cube(rows[place])
        z -= shift
        z *= factor
        out[place] = in_rows(_scores(z, kind))
    return True


def _scores(z: FloatArray, kind: int, scratch: FloatArray | None = None) -> FloatArray:
    """Reduce a cube of scaled logits to the scores of its rows (step, run); ``z`` may be overwritten."""
    top = z.max(axis=-1)
    if kind == MAX:
        return -top  # type: ignore[no-any-return]
    small = np.abs(top).max() < _NO_OVERFLOW  # then a pass is spared by dividing afterwards
    if not small:
        z -= top[:, :, None]
    total = np.exp(z, out=scratch).sum(axis=-1)
    if small:
        total *= np.exp(-top)
    if kind != LOG_ODDS:
        return -(top + np.log(total))  # type: ignore[no-any-return]
    confident = total <= 1.0 + _CONFIDENT
    total[confident] = 2.0
    scores: FloatArray = np.log(total - 1.0)
    if confident.any():
        scores[confident] = _log_others(z[confident] - (top[confident][:, None] if small else 0.0))
    return scores


def _log_others(z: FloatArray) -> FloatArray:
    """Log of the sum of exp(z) over all classes but one largest of rows (b, C), which becomes -inf."""
    z[np.arange(len(z)), z.argmax(axis=1)] = -np.inf
    second = z.max(axis=1)  # relative to the runner-up nothing underflows or cancels
    log_sum: FloatArray = second + np.log(np.exp(z - second[:, None]).sum(axis=1))
    return log_sum


def _commit(mean: FloatArray, m2: FloatArray, new_mean: FloatArray, new_m2: FloatArray) -> bool:
    if not (np.isfinite(new_mean).all() and np.isfinite(new_m2).all()):
        return False
    mean[:] = new_mean
    m2[:] = new_m2
    return True
