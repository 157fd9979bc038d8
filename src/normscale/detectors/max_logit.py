"""The largest logit."""

from __future__ import annotations

from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.detectors.formula import LogitFormula, plain_formula
from normscale.detectors.registry import register
from normscale.outputs import ModelOutputs
from normscale.scores import max_logit_score


@register
class MaxLogit(Detector):
    """Minus the largest logit.

    References
    ----------
    Hendrycks et al., "Scaling Out-of-Distribution Detection for Real-World Settings", 2022.

    Examples
    --------
    >>> MaxLogit().score([[2.0, 0.0], [0.5, 0.0]]).tolist()
    [-2.0, -0.5]
    """

    name = "max_logit"
    title = "MaxLogit"
    paper = "Hendrycks et al. 2022"
    cost = "one pass over the logits"
    needs_fit = False

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        return max_logit_score(outputs.logits, threads=threads)

    def formula(self) -> LogitFormula:
        return plain_formula("max")
