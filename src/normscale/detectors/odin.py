"""ODIN: maximum softmax probability of perturbed inputs at a high temperature."""

from __future__ import annotations

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.detectors.formula import LogitFormula, plain_formula
from normscale.detectors.registry import register
from normscale.outputs import PERTURBED_LOGITS, ModelOutputs
from normscale.scores import scaled_scores


@register
class ODIN(Detector):
    """Maximum softmax probability at a high temperature, in log-odds, of inputs that were perturbed before.

    The perturbation needs the network's gradient: :func:`normscale.extraction.perturbed_logits` makes it, and
    ``normscale bench`` does so by itself.

    Parameters
    ----------
    temperature : float
        Divides the logits.

    References
    ----------
    Liang, Li & Srikant, "Enhancing the Reliability of Out-of-distribution Image Detection in Neural Networks", 2018.

    Examples
    --------
    >>> from normscale import ModelOutputs
    >>> ODIN(temperature=1000.0).score(ModelOutputs(perturbed_logits=[[20.0, 0.0]])).round(12).tolist()
    [-0.02]
    """

    name = "odin"
    title = "ODIN"
    paper = "Liang, Li & Srikant 2018"
    cost = "one pass over the perturbed logits, which cost a gradient and a second forward pass"
    reads = (PERTURBED_LOGITS,)
    needs_fit = False
    parameters = {"temperature": "divides the logits"}

    def __init__(self, temperature: float = 1000.0) -> None:
        self.temperature = _validate.positive(temperature, "temperature")

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        rows = outputs.array(PERTURBED_LOGITS)
        factor = np.full(rows.shape[1], 1.0 / self.temperature)
        return scaled_scores(rows, np.zeros(rows.shape[1]), factor, "log_odds", threads, name=PERTURBED_LOGITS)

    def formula(self) -> LogitFormula:
        return plain_formula("log_odds", self.temperature)
