"""The largest features of every row: which they are, and what they sum to."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from normscale._validate import BoolArray, FloatArray

_LARGEST_EXPONENT = 500.0
"""exp of it times any feature is still finite."""


def n_kept(n_features: int, percentile: float) -> int:
    """How many of a row's features lie above a percentile of them; at least one.

    Examples
    --------
    >>> n_kept(512, 90.0), n_kept(4, 99.0)
    (51, 1)
    """
    return max(1, n_features - round(n_features * percentile / 100.0))


def sum_of_largest(features: FloatArray, k: int) -> FloatArray:
    """The sum of the k largest numbers of every row; (n, 1)."""
    n_less = features.shape[1] - k
    total: FloatArray = np.partition(features, n_less, axis=1)[:, n_less:].sum(axis=1, keepdims=True)
    return total


def largest(features: FloatArray, k: int) -> BoolArray:
    """Which numbers of every row are its k largest, the first of equals; (n, d).

    Examples
    --------
    >>> largest(np.array([[3.0, 1.0, 2.0, 2.0]]), 2).tolist()
    [[True, False, True, False]]
    """
    n_less = features.shape[1] - k
    limit = np.partition(features, n_less, axis=1)[:, n_less, None]
    chosen: BoolArray = features >= limit
    for row in np.flatnonzero(chosen.sum(axis=1) > k):  # more equals of the limit than there is room for
        equal = np.flatnonzero(features[row] == limit[row])
        chosen[row, equal[k - int((features[row] > limit[row]).sum()) :]] = False
    return chosen


def ratio_to_largest(every: FloatArray, of_largest: FloatArray, most: ArrayLike) -> FloatArray:
    """Sum of all features / sum of the largest, (n, 1); at most the number of all per largest.

    Features that are never negative, as behind a ReLU, stay below that by themselves; a row whose largest features sum
    to 0 or less, which the papers do not meet, gets the most.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(of_largest > 0.0, every / of_largest, most)
    return np.minimum(ratio, most)


def growth(every: FloatArray, of_largest: FloatArray, most: ArrayLike) -> FloatArray:
    """exp of :func:`ratio_to_largest`."""
    factor: FloatArray = np.exp(np.minimum(ratio_to_largest(every, of_largest, most), _LARGEST_EXPONENT))
    return factor
