"""SHE: the inner product of features with the pattern stored for the predicted class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import numpy as np

from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.detectors.class_sums import class_totals
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import paired_blocks
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, LOGITS, ModelOutputs
from normscale.state import Numbers


@register
class SHE(Detector):
    """Simplified Hopfield energy: minus the inner product of the features with the predicted class's pattern.

        score = -f' s_c

    with c the class of the largest logit and s_c the mean features of the training rows of class c that were predicted
    right. A class that no training row was predicted right as has nothing stored: its pattern is 0, and so is the
    score of every row predicted so. NoRecord is chosen, by OoD data or otherwise.

    Attributes
    ----------
    patterns_ : array (n_classes, d)

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
        """The pattern of every class."""

        patterns: Annotated[FloatArray, Numbers(LOGITS, FEATURES)]

    fitted_: Fitted

    def _partial(self, chunks: Iterator[ModelOutputs], turn: int) -> tuple[FloatArray, FloatArray] | None:
        """Sums and counts of the rows of every class that are predicted right."""
        sums: FloatArray | None = None
        for chunk in chunks:
            assert chunk.labels is not None  # the contract checked it
            if sums is None:
                sums, counts = np.zeros((chunk.logits.shape[1], chunk.features.shape[1])), np.zeros(chunk.n_classes)
            for where, logits, features in paired_blocks(chunk.logits, LOGITS, chunk.features, FEATURES, fitting=True):
                predicted = logits.argmax(axis=1)
                right = predicted == chunk.labels[where]
                classes, own_counts, own_sums = class_totals(features[right], predicted[right])
                counts[classes] += own_counts
                sums[classes] += own_sums
        return None if sums is None else (sums, counts)

    def _merge(self, first: Any, second: Any) -> tuple[FloatArray, FloatArray]:
        return first[0] + second[0], first[1] + second[1]

    def _finish(self, total: Any, turn: int) -> bool:
        if total is None:
            return True
        sums, counts = total
        if not counts.any():
            raise InvalidInput(
                "no training row is predicted as its label, so there is no pattern to store. Do the labels belong to "
                "these logits?"
            )
        self._learn(self.Fitted(sums / np.maximum(counts, 1.0)[:, None]))
        return True

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        scores = np.empty(len(outputs))
        for where, logits, features in paired_blocks(outputs.logits, LOGITS, outputs.features, FEATURES):
            scores[where] = -np.einsum("ij,ij->i", features, self.fitted_.patterns[logits.argmax(axis=1)])
        return scores
