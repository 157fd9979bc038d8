"""Maximum softmax probability."""

from __future__ import annotations

from normscale import _validate
from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.detectors.formula import LogitFormula, plain_formula
from normscale.detectors.registry import register
from normscale.outputs import ModelOutputs
from normscale.scores import msp_score


@register
class MSP(Detector):
    """Maximum softmax probability, as the log-odds of the prediction being wrong.

    Parameters
    ----------
    temperature : float
        Divides the logits.

    References
    ----------
    Hendrycks & Gimpel, "A Baseline for Detecting Misclassified and Out-of-Distribution Examples", 2017.

    Examples
    --------
    >>> MSP().score([[2.0, 0.0], [0.5, 0.0]]).round(12).tolist()
    [-2.0, -0.5]
    """

    name = "msp"
    title = "MSP"
    paper = "Hendrycks & Gimpel 2017"
    cost = "one pass over the logits"
    needs_fit = False

    parameters = {"temperature": "divides the logits"}

    def __init__(self, temperature: float = 1.0) -> None:
        self.temperature = _validate.positive(temperature, "temperature")

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        return msp_score(outputs.logits, self.temperature, threads=threads)

    def formula(self) -> LogitFormula:
        return plain_formula("log_odds", self.temperature)
