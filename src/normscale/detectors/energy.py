"""The free energy of the logits."""

from __future__ import annotations

from normscale import _validate
from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.detectors.formula import LogitFormula, plain_formula
from normscale.detectors.registry import register
from normscale.outputs import ModelOutputs
from normscale.scores import energy_score


@register
class Energy(Detector):
    """The free energy of the logits, -T log sum exp(z / T).

    Parameters
    ----------
    temperature : float
        T.

    References
    ----------
    Liu et al., "Energy-based Out-of-distribution Detection", 2020.

    Examples
    --------
    >>> Energy().score([[0.0, 0.0]]).round(6).tolist()
    [-0.693147]
    """

    name = "energy"
    title = "Energy"
    paper = "Liu et al. 2020"
    cost = "one pass over the logits"
    needs_fit = False
    parameters = {"temperature": "divides the logits"}

    def __init__(self, temperature: float = 1.0) -> None:
        self.temperature = _validate.positive(temperature, "temperature")

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        return energy_score(outputs.logits, self.temperature, threads=threads)

    def formula(self) -> LogitFormula:
        return plain_formula("log_sum_exp", self.temperature, self.temperature)
