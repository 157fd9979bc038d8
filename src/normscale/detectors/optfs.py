"""OptFS: features are weighted by how much features of their size add to the predicted logit in training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NamedTuple

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray
from normscale.detectors.head_step import HEAD, HeadStep, all_features
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import float_blocks
from normscale.detectors.wrapper import Score
from normscale.outputs import FEATURES, Head, ModelOutputs
from normscale.state import Numbers

_TAIL = 1e-3
"""Share of the training activations on either side that has no bin."""


@register
class OptFS(HeadStep):
    """Optimal feature shaping: logits of features times a weight for their size, scored by another detector.

    The range of the training activations, less a thousandth on either side, is cut into bins of equal width. The
    weight of a bin is the mean over the training rows of what their features in it add to the predicted logit,

        weight_b ~ mean sum_{i: f_i in b} w_ci f_i

    scaled to a mean square of 1 over the bins. Features outside of all bins become 0. Nothing is chosen on OoD data.

    Parameters
    ----------
    score : str or Detector
        What scores the new logits; the paper takes the new logit of the predicted class.
    bins : int
        How many bins there are.

    References
    ----------
    Zhao et al., "Towards Optimal Feature-Shaping Methods for Out-of-Distribution Detection", 2024.

    Examples
    --------
    >>> features = np.linspace(0.0, 4.0, 64).reshape(32, 2)
    >>> detector = OptFS(bins=4).fit(ModelOutputs(features=features, head=([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0])))
    >>> detector.fitted_.weights.round(2).tolist()
    [0.24, 0.71, 1.19, 1.43]
    """

    name = "optfs"
    title = "OptFS"
    paper = "Zhao et al. 2024"
    cost = "the last layer, and the score"
    default_score = "max_logit"
    parameters = {
        "score": "the detector that scores the new logits",
        "bins": "how many sizes of features have a weight of their own",
    }

    class Fitted(NamedTuple):
        """The last layer, the smallest number with a bin, the width of a bin, and the weight of each."""

        head: Annotated[Head, HEAD]
        low: float
        width: Annotated[float, Numbers(above=0.0)]
        weights: Annotated[FloatArray, Numbers("bins")]

    fitted_: Fitted

    def __init__(self, score: Score = "max_logit", bins: int = 100) -> None:
        self._score_by(score)
        self.bins = _validate.at_least(bins, "bins", 2)

    def _partial_features(self, chunks: Iterator[ModelOutputs]) -> FloatArray:
        return all_features(chunks)

    def _finish_features(self, head: Head, total: FloatArray) -> Fitted:
        low, high = np.quantile(total, [_TAIL, 1.0 - _TAIL]).tolist()
        width = (high - low) / self.bins if high > low else 1.0
        weight, sums = head.weight.astype(np.float64), np.zeros(self.bins + 1)
        for _, block in float_blocks(total, FEATURES, head.n_classes, fitting=True):
            added = weight[head.logits(block).argmax(axis=1)] * block
            sums += np.bincount(self._bin(block, low, width).ravel(), added.ravel(), self.bins + 1)
        size = float(np.sqrt(np.square(sums[:-1]).mean()))
        return self.Fitted(head, low, width, sums[:-1] / size if size > 0.0 else np.ones(self.bins))

    def why_all_rows(self) -> str:
        return "its bins lie between quantiles of all training activations"

    def _bin(self, features: FloatArray, low: float, width: float) -> FloatArray:
        """The bin of every feature; ``bins`` where it has none."""
        place = np.floor((features - low) / width)
        return np.where((place >= 0) & (place < self.bins), place, self.bins).astype(np.intp)

    def _logits(self, features: FloatArray) -> FloatArray:
        head, low, width, weights = self.fitted_
        features *= np.append(weights, 0.0)[self._bin(features, low, width)]
        return head.logits(features)
