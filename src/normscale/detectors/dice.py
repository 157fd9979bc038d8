"""DICE: the last layer's weights that contribute little in training are removed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import numpy as np

from normscale._validate import FloatArray
from normscale.detectors.head_step import HEAD, HeadStep, percentile_of
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import float_blocks
from normscale.detectors.wrapper import Score
from normscale.outputs import FEATURES, Head, ModelOutputs


@register
class DICE(HeadStep):
    """Logits by the most contributing weights of the last layer alone, scored by another detector.

    The contribution of a weight is its product with the mean of its feature over the training rows; weights whose
    contribution is not above a percentile of all contributions become 0:

        logits = (W * [W * mean f > limit]) f + b

    The percentile is the authors' for CIFAR, chosen there on noise; no OoD data chooses it here.

    Parameters
    ----------
    score : str or Detector
        What scores the new logits; the paper uses Energy.
    percentile : float in (0, 100)
        Of all contributions: the weights up to it become 0. The authors' is 90 (CIFAR) and 70 (ImageNet).

    References
    ----------
    Sun & Li, "DICE: Leveraging Sparsification for Out-of-Distribution Detection", 2022.

    Examples
    --------
    >>> from normscale import ModelOutputs
    >>> train = ModelOutputs(features=[[1.0, 2.0], [3.0, 2.0]], head=([[1.0, 0.1], [0.2, 2.0]], [0.0, 0.0]))
    >>> detector = DICE("max_logit", percentile=50.0).fit(train)
    >>> detector.sparse_head_.weight.tolist(), detector.score(np.array([[5.0, 1.0]])).tolist()
    ([[1.0, 0.0], [0.0, 2.0]], [-5.0])
    """

    name = "dice"
    title = "DICE"
    paper = "Sun & Li 2022"
    cost = "the last layer, and the score"
    parameters = {
        "score": "the detector that scores the new logits",
        "percentile": "of the weights' contributions in training; weights up to it become 0",
    }

    class Fitted(NamedTuple):
        """The last layer, and the same with fewer weights."""

        head: Annotated[Head, HEAD]
        sparse_head: Annotated[Head, HEAD]

    fitted_: Fitted

    def __init__(self, score: Score = "energy", percentile: float = 90.0) -> None:
        self._score_by(score)
        self.percentile = percentile_of(percentile)

    def _partial_features(self, chunks: Iterator[ModelOutputs]) -> tuple[FloatArray, int]:
        """The sum of the features, and how many rows it is of."""
        total, n = np.zeros(1), 0
        for chunk in chunks:
            for _, block in float_blocks(chunk.features, FEATURES):
                total = total + block.sum(axis=0)
                n += len(block)
        return total, n

    def _merge_features(self, first: Any, second: Any) -> tuple[FloatArray, int]:
        return first[0] + second[0], first[1] + second[1]

    def _finish_features(self, head: Head, total: Any) -> Fitted:
        weight = head.weight.astype(np.float64)
        contributions = weight * (total[0] / total[1])
        weight[contributions <= np.percentile(contributions, self.percentile)] = 0.0
        return self.Fitted(head, Head(weight, head.bias.astype(np.float64)))

    def _logits(self, features: FloatArray) -> FloatArray:
        return self.fitted_.sparse_head.logits(features)
