"""DICE: the last layer's weights that contribute little in training are removed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale._validate import FloatArray
from normscale.detectors.head_step import HeadStep, percentile_of
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import float_blocks
from normscale.detectors.wrapper import Score
from normscale.errors import InvalidInput
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

    Attributes
    ----------
    sparse_head_ : Head
        The last layer with fewer weights.

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

    sparse_head_: Head

    def __init__(self, score: Score = "energy", percentile: float = 90.0) -> None:
        self._score_by(score)
        self.percentile = percentile_of(percentile)

    def _learn(self, chunks: Iterator[ModelOutputs]) -> None:
        total, n = np.zeros(self.head_.weight.shape[1]), 0
        for chunk in chunks:
            for _, block in float_blocks(chunk.features, FEATURES):
                total += block.sum(axis=0)
                n += len(block)
        weight = self.head_.weight.astype(np.float64)
        contributions = weight * (total / n)
        weight[contributions <= np.percentile(contributions, self.percentile)] = 0.0
        self.sparse_head_ = Head(weight, self.head_.bias.astype(np.float64))

    def _logits(self, features: FloatArray) -> FloatArray:
        return self.sparse_head_.logits(features)

    def _own_tensors(self) -> dict[str, NDArray[Any]]:
        return {**super()._own_tensors(), "sparse.weight": self.sparse_head_.weight}

    def _restore_own(self, tensors: dict[str, NDArray[Any]]) -> None:
        super()._restore_own(tensors)
        self.sparse_head_ = Head.checked((tensors["sparse.weight"], self.head_.bias.astype(np.float64)))
        if self.sparse_head_.weight.shape != self.head_.weight.shape:
            raise InvalidInput("sparse.weight must have the shape of head.weight.")
