"""One detector's scores on a scale that others share, learned on in-distribution rows alone."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from normscale import _validate
from normscale._validate import FloatArray, IntArray
from normscale.errors import InvalidInput


class CommonScale(NamedTuple):
    """What a score is worth."""

    how: str
    """``"sum"``: deviations within predicted classes; ``"ranks"``: the share of training rows below, ties half;
    ``"p_values"``: -log of the conformal p-value."""
    centre: float
    """Median of the training scores."""
    spread: float
    """Root mean square deviation of the training scores from the mean of their predicted class; 1 where it is 0."""
    ordered: FloatArray
    """The training scores in order; empty for ``"sum"``."""

    @classmethod
    def of(cls, scores: FloatArray, predicted: IntArray, how: str = "sum") -> Self:
        """Learn it from held-out scores (n,) and predicted classes (n,)."""
        ordered = np.sort(scores) if how != "sum" else np.empty(0)
        return cls(how, float(np.median(scores)), spread_within(scores, predicted), ordered)

    def __call__(self, scores: FloatArray) -> FloatArray:
        """Scores (n,) on the common scale; higher = more OoD."""
        if self.how == "sum":
            return (scores - self.centre) / self.spread
        n = self.ordered.size
        below = np.searchsorted(self.ordered, scores, side="left")
        if self.how == "p_values":
            surprise: FloatArray = -np.log((n - below + 1) / (n + 1))
            return surprise
        not_above = np.searchsorted(self.ordered, scores, side="right")
        rank: FloatArray = (below + not_above) / (2.0 * n)
        return rank

    def tensors(self, prefix: str) -> dict[str, NDArray[Any]]:
        """What a detector file stores."""
        return {f"{prefix}scale": np.array([self.centre, self.spread]), f"{prefix}ordered": self.ordered}

    @classmethod
    def from_tensors(cls, tensors: dict[str, NDArray[Any]], prefix: str, how: str) -> Self:
        """Read it back."""
        centre, spread = _validate.as_finite_vector(tensors[f"{prefix}scale"], f"{prefix}scale")
        ordered = tensors[f"{prefix}ordered"]
        if not spread > 0.0 or np.isnan(ordered).any() or (np.diff(ordered) < 0.0).any():
            raise InvalidInput(f"{prefix}scale must be a centre and a positive spread, {prefix}ordered in order.")
        return cls(how, float(centre), float(spread), ordered)


def spread_within(scores: FloatArray, predicted: IntArray) -> float:
    """Root mean square deviation of scores (n,) from the mean of their predicted class; 1 when there is none."""
    counts = np.bincount(predicted)
    means = np.bincount(predicted, scores) / np.maximum(counts, 1)
    spread = float(np.sqrt(np.mean((scores - means[predicted]) ** 2)))
    return spread if beyond_rounding(spread, scores) else 1.0


def beyond_rounding(deviation: float, values: FloatArray) -> bool:
    """Whether a deviation of values is more than what rounding makes of equal ones."""
    return bool(deviation > 1e-13 * np.abs(values).max(initial=0.0))
