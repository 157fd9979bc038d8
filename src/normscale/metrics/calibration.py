"""Do probabilities mean what they say? Expected calibration error and reliability diagrams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from normscale._validate import BoolArray, FloatArray, IntArray, as_finite_vector, as_outcomes, at_least, to_numpy
from normscale.errors import InvalidInput
from normscale.metrics.record import Record


@dataclass(frozen=True, kw_only=True, eq=False)
class Reliability(Record):
    """A reliability diagram in numbers: what was claimed and what came true, bin by bin.

    ``edges`` has shape (bins + 1,); ``count``, ``accuracy`` and ``confidence`` have shape (bins,), the last
    two NaN where a bin is empty. ``ece`` is the mean gap weighted by count, ``mce`` the largest gap.
    """

    edges: FloatArray
    count: IntArray
    accuracy: FloatArray
    confidence: FloatArray
    ece: float
    mce: float
    n: int


def expected_calibration_error(confidence: ArrayLike, correct: ArrayLike, bins: int = 15) -> float:
    """Mean distance between confidence and accuracy over equal-width bins, weighted by their counts.

    ``ECE = sum_m |B_m| / n * |accuracy(B_m) - mean confidence(B_m)|``; bins and parameters as in :func:`reliability`.

    References
    ----------
    Naeini, Cooper and Hauskrecht, "Obtaining well calibrated probabilities using Bayesian binning", AAAI 2015.

    Examples
    --------
    >>> round(expected_calibration_error([0.95, 1.0], [True, False]), 12)
    0.475
    """
    return reliability(confidence, correct, bins).ece


def reliability(confidence: ArrayLike, correct: ArrayLike, bins: int = 15) -> Reliability:
    """Count, accuracy and mean confidence in M bins of equal width, ``(m - 1) / M < confidence <= m / M``.

    An edge is rounded to the floating-point type of ``confidence``, as ``confidence`` was, so 0.2 in float32 is on the
    edge 3/15 and belongs to the bin below it. A confidence of 0 is in the first bin.

    Parameters
    ----------
    confidence : array of shape (n,), values in [0, 1]
        Probability given to the predicted class.
    correct : boolean (or 0/1) array of shape (n,)
        Whether the prediction was right.
    bins : int
        Number of bins M.

    Examples
    --------
    >>> found = reliability([0.2, 0.4, 0.9, 1.0], [0, 1, 1, 1], bins=5)
    >>> found.count.tolist(), found.accuracy.tolist(), round(found.ece, 12), round(found.mce, 12)
    ([1, 1, 0, 0, 2], [0.0, 1.0, nan, nan, 1.0], 0.225, 0.6)
    """
    bins = at_least(bins, "bins", 1)
    given = to_numpy(confidence, "confidence")
    values = as_finite_vector(given, "confidence")
    outcomes = as_outcomes(correct, "correct", length=values.size)
    outside = (values < 0) | (values > 1)
    if outside.any():
        index = int(np.argmax(outside))
        raise InvalidInput(
            f"confidence[{index}] is {values[index]:g}; every value must lie in [0, 1]. Pass probabilities, not logits."
        )
    precision = given.dtype if given.dtype.kind == "f" else np.dtype(np.float64)
    count, right, claimed = bin_sums(values, outcomes, bins, precision)
    n_or_nan = np.where(count > 0, count, np.nan)
    accuracy, mean = right / n_or_nan, claimed / n_or_nan
    return Reliability(
        edges=np.arange(bins + 1) / bins,
        count=count.astype(np.int64),
        accuracy=accuracy,
        confidence=mean,
        ece=float(np.abs(right - claimed).sum() / count.sum()),
        mce=float(np.nanmax(np.abs(accuracy - mean))),
        n=values.size,
    )


def bin_sums(confidence: FloatArray, correct: BoolArray, bins: int, precision: np.dtype[Any]) -> FloatArray:
    """In each bin: how many inputs, how many right ones, the sum of their confidences; shape (3, bins).

    The edges are m / bins rounded to ``precision``. ``np.linspace`` would not do: it multiplies, and misses the float
    nearest to m / bins for many m.
    """
    upper = (np.arange(1, bins + 1) / bins).astype(precision).astype(np.float64)
    where = np.searchsorted(upper, confidence, side="left")
    return np.stack([np.bincount(where, weights, minlength=bins) for weights in (None, correct, confidence)])
