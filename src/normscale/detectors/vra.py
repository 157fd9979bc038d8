"""VRA: small features become 0 and large ones are cut off before the last layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NamedTuple

import numpy as np

from normscale._validate import FloatArray
from normscale.detectors.head_step import HEAD, HeadStep, all_features, percentile_of
from normscale.detectors.registry import register
from normscale.detectors.wrapper import Score
from normscale.errors import InvalidInput
from normscale.outputs import Head, ModelOutputs


@register
class VRA(HeadStep):
    """Variational rectified activations: logits of features between two limits, scored by another detector.

    Features below the lower limit become 0, those above the upper one become it. Both are percentiles of all training
    activations together:

        f -> 0 where f < lower,    min(f, upper) elsewhere

    The default percentiles are ours to vary: check them against the paper before you compare with its figures.

    Parameters
    ----------
    score : str or Detector
        What scores the new logits; the paper uses Energy.
    lower, upper : float in (0, 100)
        Percentiles of the training activations.

    References
    ----------
    Xu, Lian, Liu & Tao, "VRA: Variational Rectified Activation for Out-of-distribution Detection", 2023.

    Examples
    --------
    >>> train = ModelOutputs(features=np.arange(11.0).repeat(2).reshape(11, 2), head=(np.eye(2), np.zeros(2)))
    >>> VRA("max_logit", lower=30.0, upper=80.0).fit(train).score(np.array([[9.0, 1.0], [2.0, 1.0]])).tolist()
    [-8.0, -0.0]
    """

    name = "vra"
    title = "VRA"
    paper = "Xu et al. 2023"
    cost = "the last layer, and the score"
    parameters = {
        "score": "the detector that scores the new logits",
        "lower": "percentile of the training activations; what lies below becomes 0",
        "upper": "percentile of the training activations; what lies above is cut off",
    }

    class Fitted(NamedTuple):
        """The last layer, and the limits of the features."""

        head: Annotated[Head, HEAD]
        lower: float
        upper: float

        def check(self) -> None:
            """Raise where the limits are in the wrong order."""
            if self.lower > self.upper:
                raise InvalidInput("lower must not lie above upper.")

    fitted_: Fitted

    def __init__(self, score: Score = "energy", lower: float = 60.0, upper: float = 95.0) -> None:
        self._score_by(score)
        self.lower, self.upper = percentile_of(lower), percentile_of(upper)
        if self.lower >= self.upper:
            raise InvalidInput(f"lower must be below upper; got {lower!r} and {upper!r}.")

    def _partial_features(self, chunks: Iterator[ModelOutputs]) -> FloatArray:
        return all_features(chunks)

    def _finish_features(self, head: Head, total: FloatArray) -> Fitted:
        return self.Fitted(head, *np.percentile(total, [self.lower, self.upper]).tolist())

    def why_all_rows(self) -> str:
        return "its limits are percentiles of all training activations"

    def _logits(self, features: FloatArray) -> FloatArray:
        head, lower, upper = self.fitted_
        return head.logits(np.where(features < lower, 0.0, np.minimum(features, upper)))
