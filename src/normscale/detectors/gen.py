"""GEN: a generalised entropy of the softmax that looks at its tail."""

from __future__ import annotations

from normscale import _validate
from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.detectors.registry import register
from normscale.outputs import ModelOutputs
from normscale.scores import gen_score


@register
class GEN(Detector):
    """Generalised entropy of the softmax: a small power makes small deviations from certainty count.

    With p the softmax of the logits and the sum over its ``top`` largest values,

        score = sum_j (p_j (1 - p_j)) ** gamma

    Both parameters are the paper's for ImageNet, chosen there; no OoD data chooses them here.

    Parameters
    ----------
    gamma : float in (0, 1]
        The power.
    top : int
        How many of the largest probabilities count; all where there are fewer classes.

    References
    ----------
    Liu, Lochman & Zach, "GEN: Pushing the Limits of Softmax-Based Out-of-Distribution Detection", 2023.

    Examples
    --------
    >>> GEN().score([[0.0, 0.0], [5.0, 0.0]]).round(6).tolist()
    [1.741101, 1.211433]
    """

    name = "gen"
    title = "GEN"
    paper = "Liu, Lochman & Zach 2023"
    cost = "one pass over the logits, two powers per class"
    needs_fit = False
    parameters = {
        "gamma": "the power; small ones make the tail of the softmax count",
        "top": "how many of the largest probabilities count",
    }

    def __init__(self, gamma: float = 0.1, top: int = 100) -> None:
        self.gamma = _validate.fraction(gamma, "gamma", allow_one=True)
        self.top = _validate.at_least(top, "top", 1)

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        return gen_score(outputs.logits, self.gamma, self.top, threads=threads)
