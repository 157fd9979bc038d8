"""SHE: the inner product of features with the pattern stored for the predicted class."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.detectors.class_sums import PredictedSums
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import by_blocks
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, LOGITS, ModelOutputs
from normscale.state import Numbers


@register
class SHE(Detector):
    """Simplified Hopfield energy: minus the inner product of the features with the predicted class's pattern.

        score = -f' s_c

    with c the class of the largest logit and s_c the mean features of the training rows of class c that were predicted
    right. A class that no training row was predicted right as has nothing stored: its pattern is 0, and so is the
    score of every row predicted so.

    References
    ----------
    Zhang et al., "Out-of-Distribution Detection based on In-Distribution Data Patterns Memorization with Modern
    Hopfield Energy", 2023.

    Examples
    --------
    >>> train = ModelOutputs([[1.0, 0.0], [0.0, 1.0]], features=[[4.0, 0.0], [0.0, 2.0]], labels=[0, 1])
    >>> SHE().fit(train).score(ModelOutputs([[9.0, 0.0]], features=[[3.0, 5.0]])).tolist()
    [-12.0]
    """

    name = "she"
    title = "SHE"
    paper = "Zhang et al. 2023"
    cost = "one pass over the features"
    reads = (LOGITS, FEATURES)
    needs_labels = True

    class Fitted(NamedTuple):
        patterns: Annotated[FloatArray, Numbers(LOGITS, FEATURES)]

    fitted_: Fitted

    def _partial(self, rows: ModelOutputs, turn: int) -> PredictedSums:
        return PredictedSums.of(rows, only_right=True)

    def _finish(self, total: PredictedSums, turn: int) -> Fitted:
        if not total.counts.any():
            raise InvalidInput(
                "no training row is predicted as its label, so there is no pattern to store. Do the labels belong to "
                "these logits?"
            )
        return self.Fitted(total.sums / np.maximum(total.counts, 1.0)[:, None])

    @by_blocks
    def _score(self, logits: FloatArray, features: FloatArray) -> FloatArray:
        products: FloatArray = np.einsum("ij,ij->i", features, self.fitted_.patterns[logits.argmax(axis=1)])
        return -products
