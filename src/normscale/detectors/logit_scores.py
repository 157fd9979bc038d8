"""Simple functions of the logits: MSP, ODIN, MaxLogit, Energy, entropy, GEN, GradNorm, a fitted temperature."""

from __future__ import annotations

from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray
from normscale.detectors.base import About, ByFormula, Detector
from normscale.detectors.formula import LogitFormula, plain_formula
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import by_blocks
from normscale.metrics.temperature import Slopes, TemperatureSearch, slopes
from normscale.outputs import FEATURES, LABELS, LOGITS, PERTURBED_LOGITS, ModelOutputs
from normscale.scores import entropy_score, gen_score
from normscale.state import Numbers


class PlainScore(ByFormula):
    """Base class: ``weight * kind(z / temperature)``, one kernel for all of them."""

    kind: ClassVar[str] = "log_odds"
    about = About(cost="one pass over the logits", parameters={"temperature": "divides the logits"})
    reads_in_fit = None

    def __init__(self, temperature: float = 1.0) -> None:
        self.temperature = _validate.positive(temperature, "temperature")

    def _formula(self) -> LogitFormula:
        return plain_formula(self.kind, self.temperature)


@register
class MSP(PlainScore):
    """Maximum softmax probability, as the log-odds of the prediction being wrong.

    Examples
    --------
    >>> MSP().score([[2.0, 0.0], [0.5, 0.0]]).round(12).tolist()
    [-2.0, -0.5]
    """

    name = "msp"
    about = About(
        "MSP", 'Hendrycks & Gimpel 2017: "A Baseline for Detecting Misclassified and Out-of-Distribution Examples"'
    )


@register
class ODIN(PlainScore):
    """Maximum softmax probability at a high temperature, in log-odds, of inputs that were perturbed before.

    The perturbation needs the network's gradient: :func:`normscale.extraction.perturbing.perturbed_logits` makes it,
    and ``normscale bench`` does so by itself.
    """

    name = "odin"
    about = About(
        "ODIN",
        'Liang, Li & Srikant 2018: "Enhancing the Reliability of Out-of-distribution Image Detection in Neural '
        'Networks"',
        cost="one pass over the perturbed logits, which cost a gradient and a second forward pass",
    )
    reads = (PERTURBED_LOGITS,)

    def __init__(self, temperature: float = 1000.0) -> None:
        super().__init__(temperature)


@register
class MaxLogit(PlainScore):
    """Minus the largest logit."""

    name = "max_logit"
    about = About(
        "MaxLogit",
        'Hendrycks et al. 2022: "Scaling Out-of-Distribution Detection for Real-World Settings"',
        parameters={},
    )
    kind = "max"

    def __init__(self) -> None:
        super().__init__()


@register
class Energy(PlainScore):
    """The free energy of the logits, -T log sum exp(z / T).

    Examples
    --------
    >>> Energy().score([[0.0, 0.0]]).round(6).tolist()
    [-0.693147]
    """

    name = "energy"
    about = About("Energy", 'Liu et al. 2020: "Energy-based Out-of-distribution Detection"')
    kind = "log_sum_exp"

    def _formula(self) -> LogitFormula:
        return plain_formula(self.kind, self.temperature, self.temperature)


@register
class Entropy(Detector):
    """The entropy of the softmax: how far the classifier is from naming one class.

    With p the softmax of the logits z,

        score = -sum_j p_j log p_j
    """

    name = "entropy"
    about = About(
        "Entropy",
        'Chan, Rottmann & Gottschalk 2021: "Entropy Maximization and Meta Classification for Out-of-Distribution '
        'Detection in Semantic Segmentation"',
        cost="one pass over the logits",
    )
    reads_in_fit = None

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        return entropy_score(outputs.logits, threads=threads)


@register
class GEN(Detector):
    """Generalised entropy of the softmax: a small power makes small deviations from certainty count.

    With p the softmax of the logits and the sum over its ``top`` largest values,

        score = sum_j (p_j (1 - p_j)) ** gamma

    Both parameters are the paper's for ImageNet, chosen there; no OoD data chooses them here.
    """

    name = "gen"
    about = About(
        "GEN",
        'Liu, Lochman & Zach 2023: "GEN: Pushing the Limits of Softmax-Based Out-of-Distribution Detection"',
        cost="one pass over the logits, two powers per class",
        parameters={
            "gamma": "the power, above 0 and at most 1; small ones make the tail of the softmax count",
            "top": "how many of the largest probabilities count; all where there are fewer classes",
        },
    )
    reads_in_fit = None

    def __init__(self, gamma: float = 0.1, top: int = 100) -> None:
        self.gamma = _validate.fraction(gamma, "gamma", allow_one=True)
        self.top = _validate.at_least(top, "top", 1)

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        return gen_score(outputs.logits, self.gamma, self.top, threads=threads)


@register
class GradNorm(Detector):
    """Minus the L1 norm of the last layer's gradient of the divergence between a uniform and the predicted softmax.

    For the divergence KL(u | softmax(z / T)) and logits z = W f + b the gradient by W is the outer product of
    ``(p - u) / T`` and f, with p the softmax and u = 1 / n_classes, so that

        score = -|p - u|_1 |f|_1 / T

    which is what a backward pass would find.
    """

    name = "gradnorm"
    about = About(
        "GradNorm",
        'Huang, Geng & Li 2021: "On the Importance of Gradients for Detecting Distributional Shifts in the Wild"',
        cost="one pass over logits and features",
        parameters={"temperature": "divides the logits"},
    )
    reads = (LOGITS, FEATURES)
    reads_in_fit = None

    def __init__(self, temperature: float = 1.0) -> None:
        self.temperature = _validate.positive(temperature, "temperature")

    @by_blocks
    def _score(self, logits: FloatArray, features: FloatArray) -> FloatArray:
        logits -= logits.max(axis=1, keepdims=True)
        logits /= self.temperature
        p = np.exp(logits, out=logits)
        p /= p.sum(axis=1, keepdims=True)
        p -= 1.0 / p.shape[1]
        size: FloatArray = np.abs(p, out=p).sum(axis=1) * np.abs(features, out=features).sum(axis=1)
        return -size / self.temperature


@register
class TemperatureScaling(ByFormula):
    """The temperature that minimises the negative log-likelihood, then the log-odds of being wrong.

    Fit it on labelled rows that the classifier was not trained on; on its training rows it comes out too low.
    """

    name = "temperature_scaling"
    about = About(
        "Temperature Scaling",
        'Guo et al. 2017: "On Calibration of Modern Neural Networks"',
        cost="one pass over the logits",
        fitted_on="validation",
    )
    reads_in_fit = (LABELS,)

    class Fitted(NamedTuple):
        temperature: Annotated[float, Numbers(above=0.0)]

    fitted_: Fitted
    _reads_again = True

    def _begin(self) -> TemperatureSearch:
        return TemperatureSearch()

    def _partial(self, rows: ModelOutputs, turn: int) -> Slopes:
        assert rows.labels is not None  # the contract checked it
        known = rows.labels >= 0
        return slopes(rows.logits[known], rows.labels[known], self._fitting.asks)

    def _finish(self, total: Slopes, turn: int) -> Fitted | None:
        self._fitting.tell(total)
        return None if self._fitting.temperature is None else self.Fitted(self._fitting.temperature)

    def _formula(self) -> LogitFormula:
        return plain_formula("log_odds", self.fitted_.temperature)
