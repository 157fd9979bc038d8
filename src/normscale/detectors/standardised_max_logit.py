"""The largest logit, standardised within its predicted class."""

from __future__ import annotations

import math
from functools import reduce
from typing import Annotated, NamedTuple

import numpy as np

from normscale._kernels.members import members_of_each
from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.detectors.partial_fit import ROUNDING
from normscale.detectors.registry import register
from normscale.outputs import LOGITS, ModelOutputs
from normscale.scores import max_logit_score
from normscale.state import Numbers


class LargestLogits(NamedTuple):
    """Moments of the largest logits of some rows."""

    n: int
    mean: float
    m2: float
    """Sum of squared deviations from the mean."""
    size: float
    """The largest number, without its sign."""

    @classmethod
    def of(cls, values: FloatArray) -> LargestLogits:
        """Of values (n,), n >= 1."""
        mean = float(values.mean())
        return cls(values.size, mean, float(np.square(values - mean).sum()), float(np.abs(values).max()))

    def merge(self, other: LargestLogits) -> LargestLogits:
        """Of both sets of rows."""
        n, apart = self.n + other.n, other.mean - self.mean
        m2 = self.m2 + other.m2 + apart * apart * (self.n * (other.n / n))
        return LargestLogits(n, self.mean + apart * (other.n / n), m2, max(self.size, other.size))

    @property
    def deviation(self) -> float:
        """The sample deviation; 0 for one value, and for equal ones."""
        deviation = math.sqrt(self.m2 / (self.n - 1)) if self.n > 1 else 0.0
        return deviation if deviation > ROUNDING * self.size else 0.0


@register
class StandardisedMaxLogit(Detector):
    """How many deviations the largest logit lies below what is usual for its predicted class.

    With c the predicted class, and mu_c and sigma_c mean and deviation (n - 1 in the denominator) of the largest logit
    over the training rows predicted as c,

        score = -(max_j z_j - mu_c) / sigma_c

    A class with fewer than two such rows, or with equal ones, takes mean and deviation of all rows.

    References
    ----------
    Jung et al., "Standardized Max Logits: A Simple yet Effective Approach for Identifying Unexpected Road Obstacles in
    Urban-Scene Segmentation", 2021.

    Examples
    --------
    >>> detector = StandardisedMaxLogit().fit([[2.0, 0.0], [4.0, 0.0], [0.0, 10.0], [0.0, 30.0]])
    >>> detector.means_.tolist()
    [3.0, 20.0]
    >>> detector.score([[3.0, 0.0], [0.0, 3.0]]).round(4).tolist()
    [0.0, 1.2021]
    """

    name = "standardised_max_logit"
    title = "Standardised MaxLogit"
    paper = "Jung et al. 2021"
    cost = "two passes over the logits"

    class Fitted(NamedTuple):
        means: Annotated[FloatArray, Numbers(LOGITS)]
        deviations: Annotated[FloatArray, Numbers(LOGITS, above=0.0)]

    fitted_: Fitted

    def _partial(self, rows: ModelOutputs, turn: int) -> dict[int, LargestLogits]:
        """Moments of the largest logit of the rows predicted as each class."""
        top = -max_logit_score(rows.logits)
        return {c: LargestLogits.of(top[own]) for c, own in members_of_each(rows.predicted)}

    def _finish(self, total: dict[int, LargestLogits], turn: int) -> Fitted:
        every = reduce(LargestLogits.merge, (total[c] for c in sorted(total)))
        width = (self.widths_ or {})[LOGITS]
        means, deviations = np.full(width, every.mean), np.full(width, every.deviation or 1.0)
        for c, own in total.items():
            if own.deviation > 0.0:
                means[c], deviations[c] = own.mean, own.deviation
        return self.Fitted(means, deviations)

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        score: FloatArray = max_logit_score(outputs.logits, threads=threads)
        predicted = outputs.predicted
        score += self.fitted_.means[predicted]
        score /= self.fitted_.deviations[predicted]
        return score
