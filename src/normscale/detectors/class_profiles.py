"""What in-distribution rows look like, class by class: the part of a stream-aware detector that training fixes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from normscale._kernels.mixture import SOFTNESS, ClassProfiles
from normscale._kernels.mixture_reference import soft_step
from normscale._validate import FloatArray
from normscale.detectors.partial_fit import RowSample
from normscale.outputs import LOGITS, ModelOutputs
from normscale.state import Numbers

_BORROWED = 5.0
"""How many rows of the average class each class's variances borrow: a class of one row has none of its own."""
PROFILES = {
    **dict.fromkeys(ClassProfiles._fields, Numbers(LOGITS)),
    **dict.fromkeys(("mean", "inverse_deviation"), Numbers(LOGITS, LOGITS)),
    "likeness_weights": Numbers(2),
}
"""What the parts of profiles in a record must be."""
_LARGEST_EXPONENT = 600.0
_SMALLEST = 1e-6
"""Share of the average variance that a variance never falls below: a constant logit is not infinitely exact."""


class ClassMoments(NamedTuple):
    """Moments of numbers of the rows of each predicted class; those of parts merge."""

    counts: FloatArray  # (C, 1)
    mean: FloatArray  # (C, k)
    m2: FloatArray  # (C, k) sums of squared deviations

    @classmethod
    def of(cls, rows: ModelOutputs, values: FloatArray | None = None) -> ClassMoments:
        """Of values (n, k) of rows, at least one; by default of their logits, less the mean of each row."""
        if values is None:
            values = rows.logits.astype(np.float64)
            values -= values.mean(axis=1, keepdims=True)
        predicted = rows.predicted
        order = np.argsort(predicted, kind="stable")
        found, starts, sizes = np.unique(predicted[order], return_index=True, return_counts=True)
        ordered = values[order]
        means = np.add.reduceat(ordered, starts) / sizes[:, None]
        ordered -= np.repeat(means, sizes, axis=0)
        moments = cls(np.zeros((rows.n_classes, 1)), *(np.zeros((rows.n_classes, values.shape[1])) for _ in range(2)))
        moments.counts[found, 0], moments.mean[found] = sizes, means
        moments.m2[found] = np.add.reduceat(np.square(ordered, out=ordered), starts)
        return moments

    def merge(self, other: ClassMoments) -> ClassMoments:
        """The moments of both sets of rows."""
        counts = self.counts + other.counts
        share, apart = other.counts / np.maximum(counts, 1.0), other.mean - self.mean
        m2 = self.m2 + other.m2 + apart * apart * (self.counts * share)
        return ClassMoments(counts, self.mean + apart * share, m2)

    def profiles(self) -> ClassProfiles:
        """The parts of profiles that need no scores; the others are empty.

        A class that no training row is predicted as is described by all rows together.
        """
        counts, n = self.counts, self.counts.sum()
        everywhere = (counts * self.mean).sum(axis=0) / n
        average = self.m2.sum(axis=0) / n
        variance = (self.m2 + _BORROWED * average) / (counts + _BORROWED)
        floor = _SMALLEST * float(average.mean()) or 1.0
        later = ClassProfiles(*[np.empty(0)] * len(ClassProfiles._fields))
        return later._replace(
            share=counts[:, 0] / n,
            mean=np.where(counts > 0.0, self.mean, everywhere),
            inverse_deviation=1.0 / np.sqrt(np.maximum(variance, floor)),
        )


def finished_profiles(
    profiles: ClassProfiles, sample: RowSample, confidence: FloatArray, distance: FloatArray
) -> ClassProfiles:
    """The profiles with what a sample of training rows tells, by confidence and distance (m,) of each."""
    median, count_scale, top_odds, top_scale = _levels(confidence, sample)
    weights = np.array([1.0, 1.0 / sample.spread_within(distance)])
    weights /= sample.spread_within(confidence - weights[1] * distance)
    likeness_median, likeness_scale, _, _ = _levels(weights[0] * confidence - weights[1] * distance, sample)
    return profiles._replace(
        likeness_weights=weights,
        likeness_median=likeness_median,
        likeness_scale=likeness_scale,
        median=median,
        count_scale=count_scale,
        top_odds=top_odds,
        top_scale=top_scale,
    )


def _levels(values: FloatArray, sample: RowSample) -> FloatArray:
    """Median, what a row far above it counts as, odds that lead to the upper quartile, the count there; (4, C)."""
    levels = np.empty((4, sample.counts.size))
    edges = np.searchsorted(sample.classes, np.arange(sample.counts.size + 1))
    for c in range(sample.counts.size):
        own = values[edges[c] : edges[c + 1]] if edges[c] < edges[c + 1] else values
        median, upper = np.quantile(own, (0.5, 0.75))
        odds = np.exp(min((upper - median) / SOFTNESS, _LARGEST_EXPONENT))
        levels[:, c] = median, 1.0 / soft_step(own - median).mean(), odds, 1.0 / soft_step(own - upper).mean()
    return levels
