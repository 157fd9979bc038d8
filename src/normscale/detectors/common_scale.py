"""One detector's scores on a scale that others share, learned on in-distribution rows alone."""

from __future__ import annotations

from typing import Annotated, NamedTuple, Self

import numpy as np

from normscale._validate import FloatArray
from normscale.detectors.held_out import RowSample
from normscale.state import Numbers

ROUNDING = 1e-13
"""Relative to the largest number, what rounding makes of deviations of equal ones."""


class CommonScale(NamedTuple):
    """What a score is worth: deviations within predicted classes."""

    centre: float
    """Mean of the training scores; 0 where it is rounding alone."""
    spread: Annotated[float, Numbers(above=0.0)]
    """Root mean square deviation of the training scores from the mean of their predicted class; 1 where it is 0."""

    @classmethod
    def of(cls, scores: FloatArray, sample: RowSample) -> Self:
        """Learn it from held-out scores (m,) of a sample of the training rows."""
        centre = float(np.average(scores, weights=sample.weights))
        largest = np.abs(scores).max(initial=0.0)
        return cls(centre if abs(centre) > ROUNDING * largest else 0.0, spread_within(scores, sample))

    def __call__(self, scores: FloatArray) -> FloatArray:
        """Scores (n,) on the common scale; higher = more OoD."""
        return (scores - self.centre) / self.spread


def spread_within(values: FloatArray, sample: RowSample) -> float:
    """Root mean square deviation of values (m,) from the mean of their predicted class; 1 when there is none."""
    classes = sample.classes
    means = np.bincount(classes, values) / np.maximum(np.bincount(classes), 1)
    spread = float(np.sqrt(np.average((values - means[classes]) ** 2, weights=sample.weights)))
    return spread if spread > ROUNDING * np.abs(values).max(initial=0.0) else 1.0
