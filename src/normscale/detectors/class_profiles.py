"""What in-distribution rows look like, class by class: the part of robust norm-scaling that training fixes."""

from __future__ import annotations

import numpy as np

from normscale._kernels.mixture import SOFTNESS, ClassProfiles
from normscale._validate import FloatArray, IntArray, Rows
from normscale.errors import InvalidInput
from normscale.moments import RunningMoments
from normscale.scaling import norm_scaled_scores, scale_factor

_BORROWED = 5.0
"""How many rows of the average class each class's variances borrow: a class of one row has none of its own."""
_LARGEST_EXPONENT = 600.0
_SIZE = 2.0
"""Weight of the largest logit beside the log-odds in the confidence, each in deviations."""
_SMALLEST = 1e-6
"""Share of the average variance that a variance never falls below: a constant logit is not infinitely exact."""


def class_profiles(logits: Rows, moments: RunningMoments) -> ClassProfiles:
    """The in-distribution group of every predicted class, from training logits (n, C) and their moments.

    A class that no training row is predicted as is described by all rows together.
    """
    predicted: IntArray = logits.argmax(axis=1)
    counts = np.bincount(predicted, minlength=logits.shape[1]).astype(np.float64)
    log_odds = -norm_scaled_scores(logits, moments, "log_odds", 1.0)
    size = logits.max(axis=1).astype(np.float64)
    weights = np.array([1.0, _SIZE]) / [_spread_within(part, predicted, counts) for part in (log_odds, size)]
    weights /= _spread_within(weights[0] * log_odds + weights[1] * size, predicted, counts)
    confidence = weights[0] * log_odds + weights[1] * size
    centre = float(np.median(confidence))
    confidence -= centre
    median, top_odds, count_scale, top_scale = _levels(confidence, predicted, logits.shape[1])
    mean, deviation = _positions(logits, predicted, counts, moments)
    return ClassProfiles(
        shift=moments.mean,
        factor=scale_factor(moments),
        weights=weights,
        centre=np.array([centre]),
        median=median,
        count_scale=count_scale,
        top_odds=top_odds,
        top_scale=top_scale,
        share=counts / counts.sum(),
        mean=mean,
        inverse_deviation=1.0 / deviation,
    )


def _spread_within(confidence: FloatArray, predicted: IntArray, counts: FloatArray) -> float:
    """Root mean square deviation of the confidence from the mean of its predicted class; 1 when there is none."""
    means = np.bincount(predicted, confidence, counts.size) / np.maximum(counts, 1.0)
    spread = float(np.sqrt(np.mean((confidence - means[predicted]) ** 2)))
    return spread if spread > 0.0 else 1.0


def _levels(confidence: FloatArray, predicted: IntArray, n_classes: int) -> FloatArray:
    """Median, odds that lead to the upper quartile, and what a row far above each counts as; shape (4, C)."""
    levels = np.empty((4, n_classes))
    for c in range(n_classes):
        own = confidence[predicted == c]
        own = own if own.size else confidence
        median, upper = np.quantile(own, (0.5, 0.75))
        odds = np.exp(min((upper - median) / SOFTNESS, _LARGEST_EXPONENT))
        levels[:, c] = median, odds, 1.0 / _soft_count(own - median), 1.0 / _soft_count(own - upper)
    return levels


def _soft_count(distances: FloatArray) -> float:
    """Mean of the soft counts above a bound."""
    return float(np.mean(0.5 + 0.5 * np.tanh(distances / (2.0 * SOFTNESS))))


def _positions(
    logits: Rows, predicted: IntArray, counts: FloatArray, overall: RunningMoments
) -> tuple[FloatArray, FloatArray]:
    """Mean and deviation of the logits of the rows of each predicted class; both (C, C)."""
    n_classes = counts.size
    mean = np.tile(overall.mean, (n_classes, 1))
    squares = np.zeros((n_classes, n_classes))
    for c in np.flatnonzero(counts):
        own = RunningMoments(n_classes).update(logits[predicted == c])
        mean[c], squares[c] = own.mean, own.m2
    average = squares.sum(axis=0) / counts.sum()
    variance = (squares + _BORROWED * average) / (counts + _BORROWED)[:, None]
    floor = _SMALLEST * float(average.mean()) or 1.0
    return mean, np.sqrt(np.maximum(variance, floor))


def checked(profiles: ClassProfiles) -> ClassProfiles:
    """The same description, or an error that names what cannot be."""
    n_classes = profiles.shift.size
    for name, part in profiles._asdict().items():
        wanted = {"weights": (2,), "centre": (1,), "mean": (n_classes,) * 2, "inverse_deviation": (n_classes,) * 2}
        if part.shape != wanted.get(name, (n_classes,)):
            raise InvalidInput(f"profiles.{name} must have shape {wanted.get(name, (n_classes,))}; got {part.shape}.")
        if not np.isfinite(part).all():
            raise InvalidInput(f"profiles.{name} must be finite.")
    return profiles
