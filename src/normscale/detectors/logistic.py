"""A small logistic regression, for the weights of a few layers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normscale import _validate
from normscale._validate import FloatArray


def logistic_weights(features: ArrayLike, positive: ArrayLike, *, ridge: float = 1.0) -> FloatArray:
    """Weights (d,) of a logistic regression of ``positive`` (n,) on ``features`` (n, d); the constant is left out.

    Minimises sum_i log(1 + exp(-t_i (b + w^T x_i))) + ridge / 2 |w|^2 on standardised features by Newton's method (with
    halved steps where a full one would not help), and gives the weights back for the features as they are. A feature
    that does not vary gets weight 0.

    Examples
    --------
    >>> logistic_weights([[0.0, 5.0], [1.0, 5.0], [2.0, 5.0], [3.0, 5.0]], [0, 1, 0, 1]).round(4).tolist()
    [0.4055, 0.0]
    """
    rows: NDArray[Any] = np.asarray(features, dtype=np.float64)
    target = _validate.as_outcomes(positive, "positive", length=len(rows))
    if not np.isfinite(rows).all():
        raise _validate.invalid_row_error(rows, "features")
    penalty = _validate.positive(ridge, "ridge")
    std = rows.std(axis=0)
    used = std > 1e-12 * np.abs(rows).max(axis=0, initial=0.0)
    design = np.ones((len(rows), 1 + int(used.sum())))
    design[:, 1:] = (rows[:, used] - rows[:, used].mean(axis=0)) / std[used]
    penalties = np.full(design.shape[1], penalty)
    penalties[0] = 1e-9  # the constant is free, but must stay finite when one side is missing
    sign = np.where(target, 1.0, -1.0)

    def loss(w: FloatArray) -> float:
        return float(np.logaddexp(0.0, -sign * (design @ w)).sum() + 0.5 * penalties @ (w * w))

    w = np.zeros(design.shape[1])
    for _ in range(100):
        p = 0.5 * (1.0 + np.tanh(0.5 * (design @ w)))
        gradient = design.T @ (p - target) + penalties * w
        hessian = (design * (p * (1.0 - p))[:, None]).T @ design + np.diag(penalties)
        direction = np.linalg.solve(hessian, gradient)
        length, before = 1.0, loss(w)
        while loss(w - length * direction) > before and length > 1e-10:
            length /= 2.0
        w = w - length * direction
        if np.abs(length * direction).max() <= 1e-10 * (1.0 + np.abs(w).max()):
            break
    weights = np.zeros(rows.shape[1])
    weights[used] = w[1:] / std[used]
    return weights
