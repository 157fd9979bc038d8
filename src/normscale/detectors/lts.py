"""LTS: logits are scaled by how much of the features' sum lies in the largest ones."""

from __future__ import annotations

import numpy as np

from normscale.detectors.head_step import percentile_of
from normscale.detectors.largest_features import n_kept, ratio_to_largest, sum_of_largest
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import blocks_of
from normscale.detectors.step import Step
from normscale.detectors.wrapper import Score
from normscale.outputs import FEATURES, LOGITS, ModelOutputs


@register
class LTS(Step):
    """Logit scaling: logits times (sum of all features / sum of the largest) squared, scored by another detector.

    The largest features f of a row are those above its own percentile. With z the logits,

        logits = (sum f / sum largest f)^2 * z

    It needs neither training rows nor the last layer. Features are meant to be positive, as behind a ReLU; a negative
    sum counts as 0.

    Parameters
    ----------
    score : str or Detector
        What scores the new logits; the paper uses Energy.
    percentile : float in (0, 100)
        Of each row's features: those above are its largest. 95 keeps the largest 5 %. It was not checked
        against the authors' code.

    References
    ----------
    Djurisic, Liu & Nikolic, "Logit Scaling for Out-of-Distribution Detection", 2024.

    Examples
    --------
    >>> rows = ModelOutputs([[2.0, 0.0], [2.0, 0.0]], features=[[4.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    >>> LTS("max_logit").score(rows).tolist()
    [-2.0, -32.0]
    """

    name = "lts"
    title = "LTS"
    paper = "Djurisic, Liu & Nikolic 2024"
    cost = "a partial sort of each row's features, and the score"
    default_score = "energy"
    own_reads = (LOGITS, FEATURES)
    parameters = {
        "score": "the detector that scores the scaled logits",
        "percentile": "of each row's features; those above are its largest",
    }

    def __init__(self, score: Score = "energy", percentile: float = 95.0) -> None:
        self._score_by(score)
        self.percentile = percentile_of(percentile)
        self.needs_fit = self.scorer.needs_fit

    def _transform(self, outputs: ModelOutputs, threads: int) -> ModelOutputs:
        scaled = np.empty(outputs.logits.shape)
        n_features = outputs.features.shape[1]
        k = n_kept(n_features, self.percentile)
        for where, logits, features in blocks_of(outputs, (LOGITS, FEATURES)):
            every = features.sum(axis=1, keepdims=True)
            ratio = ratio_to_largest(every, sum_of_largest(features, k), n_features / k)
            scaled[where] = np.square(np.maximum(ratio, 0.0)) * logits
        arrays = {name: scaled if name == LOGITS else outputs.array(name) for name in outputs.names}
        return ModelOutputs._trusted(arrays, outputs.labels, outputs.head)
