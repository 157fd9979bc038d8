"""Scores of raw logits, as pure functions: higher means more out-of-distribution.

Softmax scores are returned in log space. The probability 1 - 1e-9 and the probability 1 - 1e-12 are both 1.0 in
float32, but their log-odds are -20.7 and -27.6: nothing saturates, no false ties appear.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from normscale import _kernels, _validate

if TYPE_CHECKING:
    from normscale._validate import FloatArray, Rows


def scaled_scores(
    rows: Rows, shift: FloatArray, factor: FloatArray, kind: str, threads: int = 1, *, name: str = "logits"
) -> FloatArray:
    """Scores of ``(rows - shift) * factor`` without ever holding that array; shape (n,).

    ``kind`` is ``"log_odds"``, ``"max"`` or ``"log_sum_exp"``; ``name`` is what the rows are called in an error.
    """
    return _scores("frozen_scores", rows, shift, factor, _kernels.KINDS[kind], threads=threads, name=name)


def _scores(kernel: str, rows: Rows, *arguments: Any, threads: int, name: str = "logits") -> FloatArray:
    scores = _kernels.scores_of(kernel, rows, *arguments, threads=threads)
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
    return _scores("softmax_entropy", _validate.as_rows(logits), threads=threads)


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
    return _scores("generalised_entropy", rows, gamma, top, threads=threads)


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
