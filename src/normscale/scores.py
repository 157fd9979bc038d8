"""Scores of raw logits, as pure functions: higher means more out-of-distribution.

Softmax scores are returned in log space. The probability 1 - 1e-9 and the probability 1 - 1e-12 are both 1.0 in
float32, but their log-odds are -20.7 and -27.6: nothing saturates, no false ties appear.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from normscale import _kernels, _validate

if TYPE_CHECKING:
    from normscale._validate import FloatArray, Rows

_BLOCK_ELEMENTS = 1 << 16


def scaled_scores(
    rows: Rows, shift: FloatArray, factor: FloatArray, kind: str, threads: int = 1, *, name: str = "logits"
) -> FloatArray:
    """Scores of ``(rows - shift) * factor`` without ever holding that array; shape (n,).

    ``kind`` is ``"log_odds"``, ``"max"`` or ``"log_sum_exp"``; ``name`` is what the rows are called in an error.
    """
    scores = _kernels.frozen_scores(rows, shift, factor, _kernels.KINDS[kind], threads)
    if scores is None:
        raise _validate.invalid_row_error(rows, name, can_skip=True)
    return scores


def _plain(logits: ArrayLike, temperature: float, kind: str, threads: int) -> FloatArray:
    rows = _validate.as_rows(logits)
    temperature = _validate.positive(temperature, "temperature")
    width = rows.shape[1]
    return scaled_scores(rows, np.zeros(width), np.full(width, 1.0 / temperature), kind, threads)


def msp_score(logits: ArrayLike, temperature: float = 1.0, *, threads: int = 1) -> FloatArray:
    """Log-odds of the prediction being wrong, log((1 - p) / p) with p the maximum softmax probability.

    Computed as ``log sum_{j != max} exp((z_j - z_max) / T)``, exact however confident the classifier is; shape (n,).

    Examples
    --------
    >>> msp_score([[2.0, 0.0], [30.0, 0.0], [60.0, 0.0]]).round(12).tolist()
    [-2.0, -30.0, -60.0]
    """
    return _plain(logits, temperature, "log_odds", threads)


def max_logit_score(logits: ArrayLike, *, threads: int = 1) -> FloatArray:
    """Minus the largest logit; shape (n,).

    Examples
    --------
    >>> max_logit_score([[2.0, 0.0, 1.0]]).tolist()
    [-2.0]
    """
    return _plain(logits, 1.0, "max", threads)


def energy_score(logits: ArrayLike, temperature: float = 1.0, *, threads: int = 1) -> FloatArray:
    """The free energy -T log sum_j exp(z_j / T); shape (n,).

    Examples
    --------
    >>> energy_score([[0.0, 0.0]]).round(6).tolist()
    [-0.693147]
    """
    return _validate.positive(temperature, "temperature") * _plain(logits, temperature, "log_sum_exp", threads)


def entropy_score(logits: ArrayLike, *, threads: int = 1) -> FloatArray:
    """The entropy of the softmax, -sum_j p_j log p_j; shape (n,).

    Its two parts, log sum_j exp(z_j - z_max) and -sum_j p_j (z_j - z_max), are both positive, so that no digits are
    lost in confident rows.

    Examples
    --------
    >>> entropy_score([[0.0, 0.0], [60.0, 0.0]])
    array([6.93147181e-01, 5.34147157e-25])
    """
    rows = _validate.as_rows(logits)
    scores = np.exp(msp_score(rows, threads=threads))  # the odds
    for where, below in _less_largest(rows):
        total = 1.0 + scores[where]
        below *= np.exp(below)
        scores[where] = np.log1p(scores[where]) - below.sum(axis=1) / total
    return scores


def gen_score(logits: ArrayLike, gamma: float = 0.1, top: int = 100, *, threads: int = 1) -> FloatArray:
    """The generalised entropy of the softmax, sum_j (p_j (1 - p_j))^gamma over the largest p_j; shape (n,).

    ``top`` is how many of the largest probabilities count; all where there are fewer classes. gamma lies in (0, 1].

    Examples
    --------
    >>> gen_score([[0.0, 0.0], [60.0, 0.0]]).round(6).tolist()
    [1.741101, 0.004958]
    """
    rows = _validate.as_rows(logits)
    gamma = _validate.fraction(gamma, "gamma", allow_one=True)
    top = min(_validate.at_least(top, "top", 1), rows.shape[1])
    scores = msp_score(rows, threads=threads)
    for where, below in _less_largest(rows):
        log_odds, n_less = scores[where], rows.shape[1] - top
        log_total = np.logaddexp(0.0, log_odds)
        below[np.arange(len(below)), below.argmax(axis=1)] = -np.inf  # it enters by the sum over the others, exactly
        log_p = np.partition(below, n_less, axis=1)[:, n_less + 1 :] - log_total[:, None]
        terms = np.exp(gamma * (log_p + np.log1p(-np.exp(log_p)))).sum(axis=1)
        scores[where] = terms + np.exp(gamma * (log_odds - 2.0 * log_total))
    return scores


def _less_largest(rows: Rows) -> Iterator[tuple[slice, FloatArray]]:
    """Blocks of finite rows, as (where they are, each row less its largest number in float64)."""
    step = max(16, _BLOCK_ELEMENTS // rows.shape[1])
    for a in range(0, rows.shape[0], step):
        block = rows[a : a + step].astype(np.float64)
        block -= block.max(axis=1, keepdims=True)
        yield slice(a, a + step), block


def confidence(scores: ArrayLike) -> FloatArray:
    """The maximum softmax probability that a log-odds score stands for, 1 / (1 + exp(score)); for people.

    Examples
    --------
    >>> confidence([0.0, -4.0]).round(4).tolist()
    [0.5, 0.982]
    """
    log_odds = _validate.as_finite_vector(scores, "scores", allow_empty=True)
    with np.errstate(over="ignore"):
        result: FloatArray = 1.0 / (1.0 + np.exp(log_odds))
    return result
