"""The hot loops in blocked numpy: always there, and the oracle the compiled ones are tested against.

Running statistics come from the sums of the deviations, and of their squares, from the mean the block starts
with. With a start weight w >= 1 few digits are lost that way: the sum of squares exceeds the result at most
(w + b) / w times. A first row that meets a smaller weight is therefore taken in alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale._kernels.kinds import LOG_ODDS, MAX, TINY_VARIANCE

FloatArray = NDArray[np.float64]

_BLOCK_ELEMENTS = 1 << 14  # blocks that stay in the second-level cache


def _blocks(rows: NDArray[Any], weight: float = 1.0) -> Iterator[tuple[slice, FloatArray]]:
    """Rows a block at a time, in float64, with their places."""
    step, start = max(16, _BLOCK_ELEMENTS // rows.shape[1]), 0
    while start < rows.shape[0]:
        stop = min(rows.shape[0], start + (1 if start == 0 and weight < 1.0 else step))
        yield slice(start, stop), rows[start:stop].astype(np.float64)
        start = stop


def prefix(
    rows: NDArray[Any], weight: float, mean: FloatArray, m2: FloatArray
) -> Iterator[tuple[slice, FloatArray, FloatArray, FloatArray]]:
    """Places, rows, means and variances (b, C) after every row, a block at a time."""
    for place, block in _blocks(rows, weight):
        weights = weight + np.arange(place.start + 1.0, place.stop + 1.0)[:, None]
        deviation = block - mean
        moved = np.cumsum(deviation, axis=0)
        moved /= weights
        np.square(deviation, out=deviation)
        deviation[0] += m2
        variance = np.cumsum(deviation, axis=0, out=deviation)
        variance /= weights
        variance -= moved * moved
        np.maximum(variance, 0.0, out=variance)
        moved += mean
        yield place, block, moved, variance
        mean, m2 = moved[-1].copy(), variance[-1] * weights[-1]


def absorb(rows: NDArray[Any], weight: float, mean: FloatArray, m2: FloatArray) -> bool:
    """Take rows (b, C) into ``mean`` and ``m2`` (C,); False, and nothing changed, when a result is not finite."""
    new_mean, new_m2 = mean.copy(), m2.copy()
    with np.errstate(all="ignore"):
        for place, deviation in _blocks(rows, weight):
            deviation -= new_mean
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
        for place, z, means, variances in prefix(rows, weight, mean, m2):
            new_mean, new_m2 = means[-1], variances[-1] * (weight + place.stop)
            z -= means
            z /= np.sqrt(np.maximum(variances, TINY_VARIANCE))
            z *= inverse_tau
            out[place] = _row_scores(z, kind)
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
    for place, z in _blocks(rows):
        if not np.isfinite(z).all():
            return False
        z -= shift
        z *= factor
        out[place] = _row_scores(z, kind)
    return True


def softmax_entropy(rows: NDArray[Any], out: FloatArray) -> bool:
    """-sum p log p of the softmax; False when a row is not finite."""
    for place, below in _blocks(rows):
        if not np.isfinite(below).all():
            return False
        below -= below.max(axis=1, keepdims=True)
        others = np.exp(_row_scores(below.copy(), LOG_ODDS))
        out[place] = np.log1p(others) - (below * np.exp(below)).sum(axis=1) / (1.0 + others)
    return True


def generalised_entropy(rows: NDArray[Any], gamma: float, top: int, out: FloatArray) -> bool:
    """Sum of (p (1 - p)) ** gamma over the ``top`` largest p of the softmax; False when a row is not finite."""
    for place, below in _blocks(rows):
        if not np.isfinite(below).all():
            return False
        below -= below.max(axis=1, keepdims=True)
        log_others = _row_scores(below, LOG_ODDS)  # leaves -inf in the place of a largest logit
        log_total = np.logaddexp(0.0, log_others)
        n_less = below.shape[1] - top
        log_p = np.partition(below, n_less, axis=1)[:, n_less + 1 :] - log_total[:, None]  # the largest comes on top
        terms = np.exp(gamma * (log_p + np.log1p(-np.exp(log_p)))).sum(axis=1)
        out[place] = terms + np.exp(gamma * (log_others - 2.0 * log_total))
    return True


def _row_scores(z: FloatArray, kind: int) -> FloatArray:
    """Reduce scaled logits (b, C) to the scores of their rows; ``z`` is overwritten."""
    top = z.max(axis=1)
    if kind == MAX:
        return -top  # type: ignore[no-any-return]
    largest = top
    if kind == LOG_ODDS:  # over all classes but one largest, relative to the runner-up: nothing underflows or cancels
        z[np.arange(len(z)), z.argmax(axis=1)] = -np.inf
        largest = z.max(axis=1)
    log_sum: FloatArray = largest + np.log(np.exp(z - largest[:, None]).sum(axis=1))
    return log_sum - top if kind == LOG_ODDS else -log_sum


def _commit(mean: FloatArray, m2: FloatArray, new_mean: FloatArray, new_m2: FloatArray) -> bool:
    if not (np.isfinite(new_mean).all() and np.isfinite(new_m2).all()):
        return False
    mean[:] = new_mean
    m2[:] = new_m2
    return True
