"""Norm-scaling as a torch layer, with the parameters of the numpy detector and a way there and back."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from normscale.detectors.formula import LogitFormula
from normscale.detectors.norm_scaling import NormScaling
from normscale.errors import InvalidInput, NotFitted
from normscale.nn.moment_scorer import MomentScorer
from normscale.outputs import LOGITS


class NormScalingHead(MomentScorer):
    """What :class:`normscale.NormScaling` does, on a network's own device.

    ``head(logits)`` scores with the statistics as they are; ``head.stream(logits)``, or ``head(logits, update=True)``,
    takes each row in, then scores it:

        z'_ij = (z_ij - mu_ij) / (tau * sigma_ij),   score_i = log sum_{j != max} exp(z'_ij - max_j z'_ij)

    with mean and deviation of class j over the prior and all rows up to and with i. Everything else is as in
    :class:`~normscale.nn.moment_scorer.MomentScorer`.

    Parameters
    ----------
    n_classes : int
    score : str
        What scores the scaled logits: ``"msp"``, ``"max_logit"``, ``"energy"``, or another detector that is one
        formula of the logits and needs no fit.
    prior_weight : float
        How many rows the training statistics count as; ``inf`` never moves.
    temperature : float
        tau.
    check : bool
        Raise on NaN or infinity, which on a GPU waits for the result.

    References
    ----------
    Ravikumar & Roy, "Norm-Scaling for Out-of-Distribution Detection".

    Examples
    --------
    >>> detector = NormScaling().fit([[4.0, 0.0], [0.0, 8.0], [2.0, 4.0]])
    >>> head = NormScalingHead.from_detector(detector)
    >>> head(torch.tensor([[4.0, 0.0], [2.0, 4.0]])).round(decimals=4).tolist()
    [-2.4495, 0.0]
    >>> head.stream(torch.tensor([[4.0, 0.0]])).item() == detector.stream([[4.0, 0.0]]).item()
    True
    """

    training_predicted: Tensor
    training_mean: Tensor
    training_m2: Tensor

    def __init__(
        self,
        n_classes: int,
        score: Any = "msp",
        prior_weight: float = 1.0,
        temperature: float = 1.0,
        *,
        check: bool = True,
    ) -> None:
        """Make an empty head; :meth:`from_detector` or ``load_state_dict`` fills it."""
        plan = NormScaling(score, prior_weight, temperature)
        formula = None if plan.scorer.needs_fit else plan.scorer.formula()
        if not isinstance(formula, LogitFormula) or not formula.is_plain:
            raise InvalidInput(
                f"score must be one formula of the scaled logits, such as msp, max_logit or energy; got "
                f"{plan.scorer.name}."
            )
        moves = not math.isinf(plan.prior_weight)
        inner = plan.temperature / float(formula.factor[0])
        super().__init__(n_classes, formula.kind, inner, formula.weight, moves=moves, check=check)
        self.detector_parameters = plan.get_params()
        for part in ("predicted", "mean", "m2"):  # what fit saw
            self.register_buffer(f"training_{part}", torch.zeros(n_classes, dtype=torch.float64))

    @classmethod
    def from_detector(cls, detector: NormScaling, *, check: bool = True) -> Self:
        """A head with the parameters and statistics of a fitted detector."""
        if type(detector) is not NormScaling:
            raise InvalidInput(f"from_detector takes a NormScaling detector; got {type(detector).__name__}.")
        if not detector.is_fitted:
            raise NotFitted("NormScaling is not fitted; call fit(outputs) or load_detector(path) first.")
        head = cls(detector.running_.mean.size, **detector.get_params(), check=check)
        head._start_at(detector.running_)
        assert detector.baseline_ is not None  # fit reads logits
        baseline = detector.baseline_
        head.training_predicted.copy_(torch.from_numpy(baseline.predicted))
        head.training_mean.copy_(torch.from_numpy(baseline.moments.mean))
        head.training_m2.copy_(torch.from_numpy(baseline.moments.m2))
        return head

    def to_detector(self) -> NormScaling:
        """The numpy detector with these statistics; its threshold is to be set anew."""
        running = self.moments
        tensors = {
            "running.weight": np.array([running.weight]),
            "running.mean": running.mean,
            "running.m2": running.m2,
            "baseline.predicted": self.training_predicted.cpu().numpy(),
            "baseline.mean": self.training_mean.cpu().numpy(),
            "baseline.m2": self.training_m2.cpu().numpy(),
        }
        header = {
            "parameters": self.detector_parameters,
            "widths": {LOGITS: len(self.mean)},
            "threshold": None,
            "class_names": None,
        }
        return NormScaling.from_state(header, tensors)

    def extra_repr(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.detector_parameters.items())
        return f"n_classes={len(self.mean)}, {given}"
