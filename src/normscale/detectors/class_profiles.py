"""What in-distribution rows look like, class by class: the part of a stream-aware detector that training fixes."""

from __future__ import annotations

import numpy as np

from normscale._kernels.members import members_of_each
from normscale._kernels.mixture import SOFTNESS, ClassProfiles, MixtureRows
from normscale._kernels.mixture_reference import coordinates, distances, soft_step
from normscale._validate import FloatArray, IntArray
from normscale.detectors.common_scale import spread_within
from normscale.moments import RunningMoments
from normscale.outputs import LOGITS
from normscale.state import Numbers

_BORROWED = 5.0
"""How many rows of the average class each class's variances borrow: a class of one row has none of its own."""
PROFILES = {
    **dict.fromkeys(ClassProfiles._fields, Numbers(LOGITS)),
    **dict.fromkeys(("mean", "inverse_deviation"), Numbers(LOGITS, "coordinates")),
    "likeness_weights": Numbers(2),
}
"""What the parts of profiles in a record must be."""
_LARGEST_EXPONENT = 600.0
_SMALLEST = 1e-6
"""Share of the average variance that a variance never falls below: a constant logit is not infinitely exact."""


def class_profiles(rows: MixtureRows) -> ClassProfiles:
    """The in-distribution group of every predicted class, from training rows.

    A class that no training row is predicted as is described by all rows together.
    """
    n_classes = rows.logits.shape[1]
    predicted: IntArray = rows.logits.argmax(axis=1)
    counts = np.bincount(predicted, minlength=n_classes).astype(np.float64)
    median, count_scale, top_odds, top_scale = _levels(rows.confidence, predicted, n_classes)
    mean, deviation = _positions(rows, predicted, counts)
    unknown = np.empty(0)
    profiles = ClassProfiles(
        likeness_weights=unknown,
        likeness_median=unknown,
        likeness_scale=unknown,
        median=median,
        count_scale=count_scale,
        top_odds=top_odds,
        top_scale=top_scale,
        share=counts / counts.sum(),
        mean=mean,
        inverse_deviation=1.0 / deviation,
    )
    distance = distances(rows, predicted, profiles)
    weights = np.array([1.0, 1.0 / spread_within(distance, predicted)])
    weights /= spread_within(rows.confidence - weights[1] * distance, predicted)
    median, scale, _, _ = _levels(weights[0] * rows.confidence - weights[1] * distance, predicted, n_classes)
    return profiles._replace(likeness_weights=weights, likeness_median=median, likeness_scale=scale)


def _levels(values: FloatArray, predicted: IntArray, n_classes: int) -> FloatArray:
    """Median, what a row far above it counts as, odds that lead to the upper quartile, the count there; (4, C)."""
    levels = np.empty((4, n_classes))
    members = dict(members_of_each(predicted))
    for c in range(n_classes):
        own = values[members.get(c, slice(None))]
        median, upper = np.quantile(own, (0.5, 0.75))
        odds = np.exp(min((upper - median) / SOFTNESS, _LARGEST_EXPONENT))
        levels[:, c] = median, 1.0 / soft_step(own - median).mean(), odds, 1.0 / soft_step(own - upper).mean()
    return levels


def _positions(rows: MixtureRows, predicted: IntArray, counts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and deviation of the coordinates of the rows of each predicted class; both (C, D)."""
    width = counts.size + rows.further.shape[1]
    every = RunningMoments(width)
    mean, squares = np.empty((counts.size, width)), np.zeros((counts.size, width))
    for c, members in members_of_each(predicted):
        own = RunningMoments(width).update(coordinates(rows.at(members)))
        mean[c], squares[c] = own.mean, own.m2
        every += own
    mean[counts == 0] = every.mean
    average = squares.sum(axis=0) / counts.sum()
    variance = (squares + _BORROWED * average) / (counts + _BORROWED)[:, None]
    floor = _SMALLEST * float(average.mean()) or 1.0
    return mean, np.sqrt(np.maximum(variance, floor))
