"""The detectors that are one formula on raw logits: MSP, MaxLogit, Energy, and ODIN's score."""

from __future__ import annotations

from typing import ClassVar

from normscale import _validate
from normscale._validate import FloatArray, Rows
from normscale.detectors.base import Detector
from normscale.scores import energy_score, max_logit_score, msp_score


class MSP(Detector):
    """Maximum softmax probability, as the log-odds of the prediction being wrong.

    References
    ----------
    Hendrycks & Gimpel, "A Baseline for Detecting Misclassified and Out-of-Distribution Examples", 2017.

    Examples
    --------
    >>> MSP().score([[2.0, 0.0], [0.5, 0.0]]).tolist()
    [-2.0, -0.5]
    """

    name: ClassVar[str] = "msp"
    needs_fit: ClassVar[bool] = False

    def _score(self, rows: Rows, threads: int) -> FloatArray:
        return msp_score(rows, threads=threads)


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

    name: ClassVar[str] = "max_logit"
    needs_fit: ClassVar[bool] = False

    def _score(self, rows: Rows, threads: int) -> FloatArray:
        return max_logit_score(rows, threads=threads)


class Energy(Detector):
    """The free energy of the logits, -T log sum exp(z / T).

    References
    ----------
    Liu et al., "Energy-based Out-of-distribution Detection", 2020.

    Examples
    --------
    >>> Energy().score([[0.0, 0.0]]).round(6).tolist()
    [-0.693147]
    """

    name: ClassVar[str] = "energy"
    parameters: ClassVar[tuple[str, ...]] = ("temperature",)
    needs_fit: ClassVar[bool] = False

    def __init__(self, temperature: float = 1.0) -> None:
        """Store the temperature."""
        self.temperature = _validate.positive(temperature, "temperature")

    def _score(self, rows: Rows, threads: int) -> FloatArray:
        return energy_score(rows, self.temperature, threads=threads)


class ODIN(Detector):
    """ODIN's score: maximum softmax probability at a high temperature, in log-odds.

    The input perturbation needs the network's gradient; give this detector the logits of inputs that are already
    perturbed, or plain logits for ODIN without perturbation.

    References
    ----------
    Liang, Li & Srikant, "Enhancing the Reliability of Out-of-distribution Image Detection in Neural Networks", 2018.

    Examples
    --------
    >>> ODIN(temperature=1000.0).score([[20.0, 0.0]]).tolist()
    [-0.02]
    """

    name: ClassVar[str] = "odin"
    parameters: ClassVar[tuple[str, ...]] = ("temperature",)
    needs_fit: ClassVar[bool] = False

    def __init__(self, temperature: float = 1000.0) -> None:
        """Store the temperature."""
        self.temperature = _validate.positive(temperature, "temperature")

    def _score(self, rows: Rows, threads: int) -> FloatArray:
        return msp_score(rows, self.temperature, threads=threads)
