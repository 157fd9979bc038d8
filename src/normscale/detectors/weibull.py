"""Weibull distributions of tails, by maximum likelihood."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from normscale._validate import FloatArray

TRANSLATION = 10_000.0
"""What the tail's smallest value is moved to before a Weibull distribution is fitted, as libMR does."""
_STEPS = 200


class WeibullTail(NamedTuple):
    """P(X <= x) = 1 - exp(-(y / scale)^shape) with y = x - smallest + 10000, for a few distributions at once.

    Kept are ``shape`` and ``log_scale = log(scale / 10000)``: y and scale agree in so many digits that their quotient
    is only exact as a difference of such logarithms.
    """

    smallest: FloatArray
    shape: FloatArray
    log_scale: FloatArray

    def probability(self, values: FloatArray) -> FloatArray:
        """Of a smaller value, for each distribution; (n, k) to (n, k)."""
        with np.errstate(over="ignore", divide="ignore"):
            moved = np.maximum((values - self.smallest) / TRANSLATION, -1.0)  # a Weibull variable is not negative
            power = np.exp(self.shape * (np.log1p(moved) - self.log_scale))
        probability: FloatArray = -np.expm1(-power)
        return probability


def fit_weibull(tail: FloatArray) -> tuple[float, float, float]:
    """Smallest value, shape and log-scale of the distribution of largest likelihood for values (n,), n >= 1.

    With l = log(y / 10000), the shape c solves ``sum(e^(c l) l) / sum(e^(c l)) - 1 / c = mean(l)``, whose left side
    grows with c: bisection cannot miss it. Equal values have no largest likelihood; their shape is one under which
    the probability jumps from 0 to 1 within a billionth of them.

    Examples
    --------
    >>> smallest, shape, log_scale = fit_weibull(np.array([1.0, 2.0, 4.0, 5.0]))
    >>> smallest, round(shape, 1), round(float(np.exp(log_scale)), 6)
    (1.0, 7291.4, 1.000278)
    """
    smallest = float(tail.min())
    logs = np.log1p((tail - smallest) / TRANSLATION)
    largest, mean = float(logs.max()), float(logs.mean())
    steepest = TRANSLATION / (1e-9 * max(1.0, abs(smallest)))

    def excess(shape: float) -> float:
        weights = np.exp(shape * (logs - largest))
        return float(weights @ logs / weights.sum()) - 1.0 / shape - mean

    shape = steepest
    if excess(steepest) > 0.0:
        low, high = 0.0, steepest
        for _ in range(_STEPS):
            shape = np.sqrt(low * high) if low > 0.0 else high / 1024.0
            low, high = (low, shape) if excess(shape) > 0.0 else (shape, high)
            if high - low <= 1e-14 * high:
                break
    log_scale = largest + float(np.log(np.mean(np.exp(shape * (logs - largest))))) / shape
    return smallest, float(shape), log_scale
