"""Slow and obvious versions of what the library does fast; nothing here is shared with it."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def exact_moments(rows: FloatArray) -> tuple[list[Fraction], list[Fraction]]:
    """Mean and sum of squared deviations of each column, in exact rational arithmetic."""
    n, width = rows.shape
    columns = [[Fraction(float(value)) for value in rows[:, j]] for j in range(width)]
    means = [sum(column, Fraction(0)) / n for column in columns]
    squares = [sum(((v - m) ** 2 for v in c), Fraction(0)) for c, m in zip(columns, means, strict=True)]
    return means, squares


def streamed(
    rows: FloatArray, weight: float, mean: FloatArray, m2: FloatArray, kind: str, temperature: float = 1.0
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Update-then-score, one row at a time, by the textbook: scores, final mean, final M2."""
    mean, m2 = mean.astype(np.float64).copy(), m2.astype(np.float64).copy()
    scores = np.empty(len(rows))
    for i, row in enumerate(rows.astype(np.float64)):
        weight += 1.0
        before = row - mean
        mean += before / weight
        m2 += before * (row - mean)
        sigma = np.sqrt(m2 / weight)
        z = np.where(sigma > 0, (row - mean) / np.where(sigma > 0, sigma, 1.0), 0.0) / temperature
        scores[i] = row_score(z, kind)
    return scores, mean, m2


def row_score(z: FloatArray, kind: str) -> float:
    """The score of one row of scaled logits, with fifty digits."""
    with mpmath.workdps(50):
        values = sorted(mpmath.mpf(float(v)) for v in z)
        if kind == "max":
            return float(-values[-1])
        if kind == "log_sum_exp":
            return float(-mpmath.log(mpmath.fsum(mpmath.exp(v) for v in values)))
        return float(mpmath.log(mpmath.fsum(mpmath.exp(v - values[-1]) for v in values[:-1])))


def mahalanobis(features: FloatArray, labels: NDArray[np.int64], queries: FloatArray) -> FloatArray:
    """Squared distance to the nearest class mean, by solving one linear system per pair."""
    classes = np.unique(labels)
    means = {c: features[labels == c].mean(axis=0) for c in classes}
    centred = np.concatenate([features[labels == c] - means[c] for c in classes])
    covariance = centred.T @ centred / len(features)
    return np.array([min(float((q - m) @ np.linalg.solve(covariance, q - m)) for m in means.values()) for q in queries])


def ceil_share(share: str, n: int) -> int:
    """ceil(share * n) for a share written as a decimal."""
    return math.ceil(Fraction(share) * n)
