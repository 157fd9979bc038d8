"""Norm-scaling itself, as pure functions on logits and running moments.

z'_ij = (z_ij - mu_j) / (tau * sigma_j) for class j, then a score of the scaled row. A class whose logit never
varied (sigma_j = 0) tells nothing and scales to 0.

References
----------
Ravikumar & Roy, "Norm-Scaling for Out-of-Distribution Detection".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from normscale import _validate
from normscale._validate import FloatArray
from normscale.moments import RunningMoments, scale_factor

_BLOCK_ELEMENTS = 1 << 16


def norm_scale(logits: ArrayLike, moments: RunningMoments, temperature: float = 1.0) -> FloatArray:
    """The scaled logits themselves; shape (n, C), float64.

    Examples
    --------
    >>> moments = RunningMoments(2).update([[0.0, 5.0], [2.0, 5.0]])
    >>> norm_scale([[3.0, 7.0]], moments).tolist()
    [[2.0, 0.0]]
    """
    rows = _validate.as_rows(logits, width=moments.mean.size)
    if not np.isfinite(rows).all():
        raise _validate.invalid_row_error(rows, "logits")
    temperature = _validate.positive(temperature, "temperature")
    moments = RunningMoments.wrap(moments.state)
    scaled: FloatArray = (rows.astype(np.float64) - moments.mean) * scale_factor(moments, temperature)
    return scaled


def norm_scale_stream(logits: ArrayLike, moments: RunningMoments, temperature: float = 1.0) -> FloatArray:
    """The logits (n, C), each row scaled by the moments after that row was taken in; ``moments`` stay as they are."""
    rows = _validate.as_rows(logits, width=moments.mean.size)
    scaled, moments = np.zeros(rows.shape), moments.copy()
    size = max(16, _BLOCK_ELEMENTS // rows.shape[1])
    for a in range(0, rows.shape[0], size):
        block = rows[a : a + size]
        _, means, variances = moments.prefix(block)
        deviations = temperature * np.sqrt(variances)
        np.divide(block - means, deviations, out=scaled[a : a + size], where=deviations > 0.0)
        moments.update(block)
    return scaled


def norm_scale_as_printed(
    logits: ArrayLike, moments: RunningMoments, temperature: float = 1.0
) -> tuple[FloatArray, RunningMoments]:
    """The logits scaled along equations 4 to 7 of the paper as printed, and the moments that they leave.

    ``mu_t = (mu_{t-1} + z_t) / (t + 1)`` and ``var_t = (var_{t-1} + (z_t - mu_t)^2) / (t + 1)`` forget training and
    depend on the order of the rows. The weight of the moments is t + 1.
    """
    rows = _validate.as_rows(logits, width=moments.mean.size)
    if not np.isfinite(rows).all():
        raise _validate.invalid_row_error(rows, "logits")
    weight, mean, m2 = moments.state
    variance, scaled = m2 / weight, np.zeros(rows.shape)
    for row, out in zip(rows.astype(np.float64), scaled, strict=True):
        weight += 1.0
        mean = (mean + row) / weight
        away = row - mean
        variance = (variance + away * away) / weight
        np.divide(away, temperature * np.sqrt(variance), out=out, where=variance > 0.0)
    return scaled, RunningMoments.wrap(moments.state._replace(weight=weight, mean=mean, m2=weight * variance))
