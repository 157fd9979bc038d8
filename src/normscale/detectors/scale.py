"""SCALE: features are scaled by how much of their sum lies in the largest ones."""

from __future__ import annotations

from normscale._validate import FloatArray
from normscale.detectors.head_step import HeadStep, percentile_of
from normscale.detectors.largest_features import growth, n_kept, sum_of_largest
from normscale.detectors.registry import register
from normscale.detectors.wrapper import Score
from normscale.outputs import Head


@register
class SCALE(HeadStep):
    """Logits of features times exp(sum of all / sum of the largest), scored by another detector.

    The largest features f of a row are those above its own percentile; none is removed. As the last layer is linear,
    with W and b its weight and bias,

        logits = exp(sum f / sum largest f) * (W f) + b

    Nothing is learned but the last layer; the percentile is the paper's, and no OoD data chooses it here.

    Parameters
    ----------
    score : str or Detector
        What scores the new logits; the paper uses Energy.
    percentile : float in (0, 100)
        Of each row's features: those above are its largest. The paper's is 85.

    References
    ----------
    Xu, Chen, Franchi & Yao, "Scaling for Training Time and Post-hoc Out-of-distribution Detection Enhancement", 2024.

    Examples
    --------
    >>> import numpy as np
    >>> from normscale import ModelOutputs
    >>> train = ModelOutputs(features=np.ones((2, 4)), head=(np.eye(2, 4), np.zeros(2)))
    >>> detector = SCALE("max_logit", percentile=75.0).fit(train)
    >>> detector.name, detector.score(np.array([[4.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])).round(2).tolist()
    ('scale+max_logit', [-10.87, -54.6])
    """

    name = "scale"
    title = "SCALE"
    paper = "Xu et al. 2024"
    cost = "a partial sort of each row's features, the last layer, and the score"
    parameters = {
        "score": "the detector that scores the new logits",
        "percentile": "of each row's features; those above are its largest",
    }

    def __init__(self, score: Score = "energy", percentile: float = 85.0) -> None:
        self._score_by(score)
        self.percentile = percentile_of(percentile)

    def _logits(self, features: FloatArray) -> FloatArray:
        n_features = features.shape[1]
        k = n_kept(n_features, self.percentile)
        every = features.sum(axis=1, keepdims=True)
        features *= growth(every, sum_of_largest(features, k), n_features / k)
        head: Head = self.fitted_.head
        return head.logits(features)
