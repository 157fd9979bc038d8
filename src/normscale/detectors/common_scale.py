"""One detector's scores on a scale that others share, learned on in-distribution rows alone."""

from __future__ import annotations

from typing import Annotated, NamedTuple, Self

import numpy as np

from normscale._validate import FloatArray, IntArray
from normscale.errors import InvalidInput
from normscale.state import Numbers

ROUNDING = 1e-13
"""Relative to the largest number, what rounding makes of deviations of equal ones."""


class CommonScale(NamedTuple):
    """What a score is worth."""

    centre: float
    """Median of the training scores."""
    spread: Annotated[float, Numbers(above=0.0)]
    """Root mean square deviation of the training scores from the mean of their predicted class; 1 where it is 0."""
    ordered: Annotated[FloatArray, Numbers(finite=False)]
    """The training scores in order; empty for ``"sum"``."""

    @classmethod
    def of(cls, scores: FloatArray, predicted: IntArray, how: str = "sum") -> Self:
        """Learn it from held-out scores (n,) and predicted classes (n,)."""
        ordered = np.sort(scores) if how != "sum" else np.empty(0)
        return cls(float(np.median(scores)), spread_within(scores, predicted), ordered)

    def __call__(self, scores: FloatArray, how: str = "sum") -> FloatArray:
        """Scores (n,) on the common scale; higher = more OoD.

        ``how`` is ``"sum"``: deviations within predicted classes; ``"ranks"``: the share of training rows below, ties
        half; ``"p_values"``: -log of the conformal p-value.
        """
        if how == "sum":
            return (scores - self.centre) / self.spread
        n = self.ordered.size
        below = np.searchsorted(self.ordered, scores, side="left")
        if how == "p_values":
            surprise: FloatArray = -np.log((n - below + 1) / (n + 1))
            return surprise
        not_above = np.searchsorted(self.ordered, scores, side="right")
        rank: FloatArray = (below + not_above) / (2.0 * n)
        return rank

    def check(self) -> None:
        """Raise where the training scores are not in order."""
        if np.isnan(self.ordered).any() or (np.diff(self.ordered) < 0.0).any():
            raise InvalidInput("the training scores of a scale must be in order.")


def spread_within(scores: FloatArray, predicted: IntArray) -> float:
    """Root mean square deviation of scores (n,) from the mean of their predicted class; 1 when there is none."""
    counts = np.bincount(predicted)
    means = np.bincount(predicted, scores) / np.maximum(counts, 1)
    spread = float(np.sqrt(np.mean((scores - means[predicted]) ** 2)))
    return spread if beyond_rounding(spread, scores) else 1.0


def beyond_rounding(deviation: float, values: FloatArray) -> bool:
    """Whether a deviation of values is more than what rounding makes of equal ones."""
    return bool(deviation > ROUNDING * np.abs(values).max(initial=0.0))
