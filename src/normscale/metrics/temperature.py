"""Temperature scaling: the divisor of the logits that makes their softmax most likely, and ECE against it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from normscale._validate import (
    FloatArray,
    IntArray,
    Rows,
    as_class_indices,
    as_finite_vector,
    as_rows,
    at_least,
    invalid_row_error,
    positive,
    require_rows,
)
from normscale.errors import InvalidInput, NumericalWarning
from normscale.metrics.calibration import bin_sums
from normscale.metrics.record import Record

_BLOCK_ELEMENTS = 1 << 16
_LARGEST = 1e150
"""Logits beyond this cannot be squared in float64."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EceCurve(Record):
    """ECE against temperature: two arrays of shape (k,), and the temperature with the smallest ECE."""

    temperatures: FloatArray
    ece: FloatArray
    best_temperature: float
    best_ece: float


def nll(logits: ArrayLike, labels: ArrayLike, temperature: float = 1.0) -> float:
    """Mean negative log-likelihood of the labels under ``softmax(logits / temperature)``, in nats.

    Examples
    --------
    >>> round(nll([[0.0, 0.0], [0.0, 0.0]], [0, 1]), 6)  # log 2
    0.693147
    """
    rows, classes = _checked(logits, labels)
    temperature = positive(temperature, "temperature")
    parts: list[float] = []
    with np.errstate(over="ignore"):  # a tiny temperature: exp(-inf) is the right 0
        for below, wanted in _blocks(rows, classes):
            scaled = below / temperature
            true = scaled[np.arange(wanted.size), wanted]
            parts.append(float(np.sum(np.log(np.exp(scaled).sum(axis=1)) - true)))
    return math.fsum(parts) / len(classes)


def fit_temperature(logits: ArrayLike, labels: ArrayLike, *, bounds: tuple[float, float] = (1e-2, 1e2)) -> float:
    """Find the temperature T that minimises the negative log-likelihood of ``softmax(logits / T)``.

    In ``b = 1 / T`` the likelihood is convex, with slope ``mean_i (E_p[z_i] - z_i,label)`` and curvature
    ``mean_i Var_p[z_i]``, p the softmax of ``b * z_i``. Newton's method inside a shrinking bracket finds its zero to
    1e-12 relative. A warning tells where the optimum is at a bound, or no temperature is better than another.

    Parameters
    ----------
    logits : array of shape (n, n_classes)
        Logits of held-out inputs, raw or norm-scaled.
    labels : integer array of shape (n,)
    bounds : (float, float)
        Smallest and largest temperature allowed.

    References
    ----------
    Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks", ICML 2017.

    Examples
    --------
    Three right and one wrong, always by a margin of 2: the probability should be 3/4, so ``2 / T = log 3``.

    >>> temperature = fit_temperature([[2, 0], [2, 0], [0, 2], [0, 2]], [0, 0, 1, 0])
    >>> round(temperature * math.log(3), 12)
    2.0
    """
    rows, classes = _checked(logits, labels)
    search = TemperatureSearch(bounds)
    while search.temperature is None:
        search.tell(slopes(rows, classes, search.asks))
    return search.temperature


class TemperatureSearch:
    """The search of :func:`fit_temperature`, given the slopes it asks for: rows may be anywhere.

    ``asks`` are the inverse temperatures at which slope and curvature of all rows are needed next; ``temperature`` is
    the answer, once it is known.
    """

    def __init__(self, bounds: tuple[float, float] = (1e-2, 1e2)) -> None:
        self._coldest, self._hottest = (positive(bound, "bounds") for bound in bounds)
        if self._coldest >= self._hottest:
            raise InvalidInput(f"bounds must be (smallest, largest) temperature; got {bounds!r}.")
        self._low, self._high = 1 / self._hottest, 1 / self._coldest
        self._step = math.inf
        self._n_steps = 0
        self.asks: tuple[float, ...] = (self._low, self._high, min(max(1.0, self._low), self._high))
        self.temperature: float | None = None

    def tell(self, sums: Slopes) -> None:
        """Take in the sums over all rows at :attr:`asks`, and ask again or know the answer."""
        if not sums.n:
            raise InvalidInput("no row has a label; at least one is needed to fit a temperature.")
        slopes, curvatures = sums.slopes / sums.n, sums.curvatures / sums.n
        if len(self.asks) > 1 and self._at_a_bound(slopes[0], slopes[1], curvatures[0]):
            return
        slope, curvature, inverse = float(slopes[-1]), float(curvatures[-1]), self.asks[-1]
        if slope < 0:
            self._low = inverse
        else:
            self._high = inverse
        following = inverse - slope / curvature if curvature > 0 else math.nan
        if not (self._low <= following <= self._high and abs(following - inverse) < 0.5 * self._step):
            following = math.sqrt(self._low * self._high)
        self._step = abs(following - inverse)
        self._n_steps += 1
        self.asks = (following,)
        if self._step <= 1e-13 * following or self._n_steps == 200:  # ten are enough; the bracket alone needs fifty
            self.temperature = 1 / following

    def _at_a_bound(self, slope_low: float, slope_high: float, curvature: float) -> bool:
        if slope_low == 0 and curvature == 0:
            _warn("every row of logits is constant, so the likelihood is the same at every temperature")
            self.temperature = min(max(1.0, self._coldest), self._hottest)
        elif slope_high <= 0:
            _warn(f"the likelihood still rises at the lower bound {self._coldest:g}: perhaps every row is right")
            self.temperature = self._coldest
        elif slope_low >= 0:
            _warn(f"the likelihood still rises at the upper bound {self._hottest:g}: are the logits worse than chance?")
            self.temperature = self._hottest
        return self.temperature is not None


def ece_curve(logits: ArrayLike, labels: ArrayLike, temperatures: ArrayLike, bins: int = 15) -> EceCurve:
    """Sweep the temperature: the ECE of ``softmax(logits / T)`` for every T given, and the first of the best.

    Examples
    --------
    >>> curve = ece_curve([[2, 0], [2, 0], [0, 2], [0, 2]], [0, 0, 1, 0], [1.0, 1.82, 3.0])
    >>> curve.ece.round(3).tolist(), curve.best_temperature
    ([0.131, 0.0, 0.089], 1.82)
    """
    rows, classes = _checked(logits, labels)
    sweep = as_finite_vector(temperatures, "temperatures")
    if sweep.min() <= 0:
        index = int(np.argmin(sweep))
        raise InvalidInput(f"temperatures[{index}] is {sweep[index]:g}; every one must be greater than 0.")
    bins = at_least(bins, "bins", 1)
    sums = np.zeros((sweep.size, 3, bins))
    for below, wanted in _blocks(rows, classes):
        correct = below.argmax(axis=1) == wanted
        for temperature, total in zip(sweep, sums, strict=True):
            with np.errstate(over="ignore"):
                confidence = 1 / np.exp(below / temperature).sum(axis=1)
            total += bin_sums(confidence, correct, bins, np.dtype(np.float64))
    ece = np.abs(sums[:, 1] - sums[:, 2]).sum(axis=1) / rows.shape[0]
    best = int(np.argmin(ece))
    return EceCurve(temperatures=sweep.copy(), ece=ece, best_temperature=float(sweep[best]), best_ece=float(ece[best]))


def _checked(logits: ArrayLike, labels: ArrayLike) -> tuple[Rows, IntArray]:
    """Logits (n, n_classes) with n >= 1, finite, and labels (n,) that fit them."""
    rows = as_rows(logits)
    require_rows(rows, "logits")
    classes = as_class_indices(labels, "labels", length=rows.shape[0], n_classes=rows.shape[1])
    if not -_LARGEST <= float(rows.min()) <= float(rows.max()) <= _LARGEST:  # NaN fails too
        raise invalid_row_error(rows, "logits")
    return rows, classes


def _blocks(rows: Rows, classes: IntArray) -> Iterator[tuple[FloatArray, IntArray]]:
    """Some rows at a time in float64, less their maximum, and the labels of those rows."""
    n_rows = max(1, _BLOCK_ELEMENTS // rows.shape[1])
    for start in range(0, rows.shape[0], n_rows):
        block = rows[start : start + n_rows].astype(np.float64)
        block -= block.max(axis=1, keepdims=True)
        yield block, classes[start : start + n_rows]


class Slopes(NamedTuple):
    """First and second derivatives (k,) of the negative log-likelihood in the inverse temperature, summed over rows."""

    n: int
    slopes: FloatArray
    curvatures: FloatArray

    def merge(self, other: Slopes) -> Slopes:
        """The sums over both sets of rows."""
        return Slopes(self.n + other.n, self.slopes + other.slopes, self.curvatures + other.curvatures)


def slopes(logits: ArrayLike, labels: ArrayLike, inverses: Sequence[float]) -> Slopes:
    """What rows tell :class:`TemperatureSearch`; without any, zeros."""
    if not np.size(labels):
        return Slopes(0, np.zeros(len(inverses)), np.zeros(len(inverses)))
    rows, classes = _checked(logits, labels)
    sums = np.zeros((2, len(inverses)))
    for below, wanted in _blocks(rows, classes):
        true = below[np.arange(wanted.size), wanted]
        for k, inverse in enumerate(inverses):
            weights = np.exp(inverse * below)
            weights /= weights.sum(axis=1, keepdims=True)
            mean = np.einsum("ij,ij->i", weights, below)
            deviation = below - mean[:, None]
            sums[:, k] += np.sum(mean - true), np.einsum("ij,ij,ij->", weights, deviation, deviation)
    return Slopes(rows.shape[0], *sums)


def _warn(reason: str) -> None:
    warnings.warn(f"fit_temperature: {reason}.", NumericalWarning, stacklevel=5)
