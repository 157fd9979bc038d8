"""Entropy of the softmax."""

from __future__ import annotations

from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.detectors.registry import register
from normscale.outputs import ModelOutputs
from normscale.scores import entropy_score


@register
class Entropy(Detector):
    """The entropy of the softmax: how far the classifier is from naming one class.

    With p the softmax of the logits z,

        score = -sum_j p_j log p_j

    References
    ----------
    Chan, Rottmann & Gottschalk, "Entropy Maximization and Meta Classification for Out-of-Distribution Detection in
    Semantic Segmentation", 2021.

    Examples
    --------
    >>> Entropy().score([[0.0, 0.0], [5.0, 0.0]]).round(6).tolist()
    [0.693147, 0.04018]
    """

    name = "entropy"
    title = "Entropy"
    paper = "Chan, Rottmann & Gottschalk 2021"
    cost = "one pass over the logits"
    needs_fit = False

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        return entropy_score(outputs.logits, threads=threads)
