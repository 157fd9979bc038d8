"""Scores of the logits alone that learn nothing: MSP, MaxLogit, Energy, entropy, GEN, ODIN."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.detectors.formula import LogitFormula, plain_formula
from normscale.detectors.registry import register
from normscale.outputs import PERTURBED_LOGITS, ModelOutputs
from normscale.scores import entropy_score, gen_score, scaled_scores


class PlainScore(Detector):
    """Base class: ``weight * kind(z / temperature)``, one kernel for all of them."""

    kind: ClassVar[str] = "log_odds"
    cost = "one pass over the logits"
    needs_fit = False
    parameters = {"temperature": "divides the logits"}

    def __init__(self, temperature: float = 1.0) -> None:
        self.temperature = _validate.positive(temperature, "temperature")

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        (name,), formula = self.reads, self.formula()
        rows = outputs.array(name)
        factor = np.full(rows.shape[1], formula.factor[0])
        scores = scaled_scores(rows, np.zeros(rows.shape[1]), factor, self.kind, threads, name=name)
        return scores if formula.weight == 1.0 else formula.weight * scores

    def formula(self) -> LogitFormula:
        return plain_formula(self.kind, self.temperature)


@register
class MSP(PlainScore):
    """Maximum softmax probability, as the log-odds of the prediction being wrong.

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


@register
class ODIN(PlainScore):
    """Maximum softmax probability at a high temperature, in log-odds, of inputs that were perturbed before.

    The perturbation needs the network's gradient: :func:`normscale.extraction.perturbed_logits` makes it, and
    ``normscale bench`` does so by itself.

    References
    ----------
    Liang, Li & Srikant, "Enhancing the Reliability of Out-of-distribution Image Detection in Neural Networks", 2018.

    Examples
    --------
    >>> ODIN(temperature=1000.0).score(ModelOutputs(perturbed_logits=[[20.0, 0.0]])).round(12).tolist()
    [-0.02]
    """

    name = "odin"
    title = "ODIN"
    paper = "Liang, Li & Srikant 2018"
    cost = "one pass over the perturbed logits, which cost a gradient and a second forward pass"
    reads = (PERTURBED_LOGITS,)

    def __init__(self, temperature: float = 1000.0) -> None:
        super().__init__(temperature)


@register
class MaxLogit(PlainScore):
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
    kind = "max"
    parameters = {}

    def __init__(self) -> None:
        super().__init__()


@register
class Energy(PlainScore):
    """The free energy of the logits, -T log sum exp(z / T).

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
    kind = "log_sum_exp"

    def formula(self) -> LogitFormula:
        return plain_formula(self.kind, self.temperature, self.temperature)


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


@register
class GEN(Detector):
    """Generalised entropy of the softmax: a small power makes small deviations from certainty count.

    With p the softmax of the logits and the sum over its ``top`` largest values,

        score = sum_j (p_j (1 - p_j)) ** gamma

    Both parameters are the paper's for ImageNet, chosen there; no OoD data chooses them here.

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
        "gamma": "the power, above 0 and at most 1; small ones make the tail of the softmax count",
        "top": "how many of the largest probabilities count; all where there are fewer classes",
    }

    def __init__(self, gamma: float = 0.1, top: int = 100) -> None:
        self.gamma = _validate.fraction(gamma, "gamma", allow_one=True)
        self.top = _validate.at_least(top, "top", 1)

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        return gen_score(outputs.logits, self.gamma, self.top, threads=threads)
