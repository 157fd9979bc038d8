"""ASH: all but a row's largest features are removed before the last layer, the rest is shaped."""

from __future__ import annotations

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray
from normscale.detectors.head_step import HeadStep, percentile_of
from normscale.detectors.largest_features import growth, largest, n_kept
from normscale.detectors.registry import register
from normscale.detectors.wrapper import Score
from normscale.outputs import Head

PUBLISHED = {"p": 60.0, "b": 65.0, "s": 90.0}
"""The paper's percentile for each variant, on ImageNet."""


@register
class ASH(HeadStep):
    """Activation shaping: logits of a row's largest features alone, scored by another detector.

    Of each row's features f, those below its own percentile become 0. With ``sum f`` over all features and ``kept f``
    over the k that stay, these become

        p (prune):     f
        b (binarise):  sum f / k
        s (scale):     f * exp(sum f / sum kept f)

    Of equal features the first stay. Nothing is learned but the last layer; the percentiles are the paper's, chosen
    there on ImageNet, and no OoD data chooses them here. Features are shaped
    where the authors' code does it, behind the average over space.

    Parameters
    ----------
    score : str or Detector
        What scores the new logits; the paper uses Energy.
    variant : "p", "b" or "s"
        What becomes of the features that stay.
    percentile : float in (0, 100), optional
        Of each row's features: what lies below becomes 0. By default the paper's: 60 for p, 65 for b, 90 for s.

    References
    ----------
    Djurisic, Bozanic, Ashok & Liu, "Extremely Simple Activation Shaping for Out-of-Distribution Detection", 2023.

    Examples
    --------
    >>> from normscale import ModelOutputs
    >>> train = ModelOutputs(features=np.ones((2, 4)), head=(np.eye(2, 4), np.zeros(2)))
    >>> detector = ASH("max_logit", variant="b", percentile=50.0).fit(train)
    >>> detector.name, detector.score(np.array([[4.0, 1.0, 2.0, 1.0]])).tolist()
    ('ash+max_logit', [-4.0])
    """

    name = "ash"
    title = "ASH"
    paper = "Djurisic et al. 2023"
    cost = "a partial sort of each row's features, the last layer, and the score"
    parameters = {
        "score": "the detector that scores the new logits",
        "variant": "what becomes of the features that stay: p (nothing), b (one number), s (scaled)",
        "percentile": "of each row's features; what lies below becomes 0; by default 60 (p), 65 (b), 90 (s)",
    }

    def __init__(self, score: Score = "energy", variant: str = "s", percentile: float | None = None) -> None:
        self._score_by(score)
        self.variant = _validate.one_of(variant, "variant", PUBLISHED)
        self.percentile = PUBLISHED[variant] if percentile is None else percentile_of(percentile)

    def _logits(self, features: FloatArray) -> FloatArray:
        k = n_kept(features.shape[1], self.percentile)
        kept = largest(features, k)
        every = features.sum(axis=1, keepdims=True)
        shaped = np.where(kept, every / k if self.variant == "b" else features, 0.0)
        if self.variant == "s":
            shaped *= growth(every, shaped.sum(axis=1, keepdims=True), features.shape[1] / k)
        head: Head = self.fitted_.head
        return head.logits(shaped)
