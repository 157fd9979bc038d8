"""A fitted detector as plain arrays: what anyone needs who computes its scores elsewhere, in an ONNX graph or in torch.

A detector offers its formula by :meth:`Detector.formula`. There is one for logits, one for features, one for both, and
the sum of others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from normscale._kernels import BlockState
from normscale._kernels.mixture import REACH as REACH
from normscale._validate import FloatArray
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, LOGITS

if TYPE_CHECKING:
    from normscale.detectors.base import Detector

TIE = 1e-12
"""Scores this much above a threshold, relative to it, are equal to it: elsewhere exp and log round differently."""


class OodPosition(NamedTuple):
    """Whether a row lies where recent OoD rows of its predicted class c lay.

    With x = (z - mean(z) - mean_c) * inverse_deviation_c, cut off at -REACH and REACH, it is

        max(0, trust_c * (mean_j(x_j^2 - (x_j - ood_mean_cj)^2 * inverse_variance_cj) - log_variance_c))
    """

    mean: FloatArray  # (C, C)
    inverse_deviation: FloatArray  # (C, C)
    ood_mean: FloatArray  # (C, C)
    inverse_variance: FloatArray  # (C, C)
    log_variance: FloatArray  # (C,)
    trust: FloatArray  # (C,) 0 for a class without OoD rows


class LogitFormula(NamedTuple):
    """``weight * kind((z - shift) * factor)`` with ``kind`` as in :mod:`normscale._kernels.kinds`.

    ``shift`` and ``factor`` have the shape (C,), or (1,) where all are the same.
    """

    kind: str
    shift: FloatArray
    factor: FloatArray
    weight: float = 1.0
    centred: bool = False
    """Whether z is the row of logits less its mean."""

    @property
    def is_plain(self) -> bool:
        """Whether it is ``weight * kind(factor * z)`` with one factor for all classes."""
        return not self.centred and not self.shift.any() and self.factor.size == 1


class FeatureFormula(NamedTuple):
    """Squared distance of (f - centre) @ whitening to the nearest of ``means``, never below 0."""

    centre: FloatArray  # (d,)
    whitening: FloatArray  # (d, r)
    means: FloatArray  # (k, r) of the classes, centred and whitened
    unit: bool = False
    """Whether f is a row of features divided by its length; a row of zeros stays one."""


class BoundaryFormula(NamedTuple):
    """``sum_k (z_k - z_c) closeness_ck / |f - mean|`` for a row predicted as class c."""

    closeness: FloatArray  # (C, C)
    mean: FloatArray  # (d,)
    shortest: float
    """Length that |f - mean| never falls below."""


class SumFormula(NamedTuple):
    """``sum_i weight_i formula_i - class_offset_c + ood_position_c(z)`` for a row predicted as class c."""

    terms: tuple[tuple[float, Formula], ...]
    class_offset: FloatArray  # (C,), or (1,) where all are the same
    ood_position: OodPosition | None = None


class RectifiedFormula(NamedTuple):
    """A formula of the logits that the last layer makes of features cut off above: min(f, limit) @ weight.T + bias."""

    limit: float
    weight: FloatArray  # (C, d)
    bias: FloatArray  # (C,)
    then: LogitFormula | SumFormula


Formula = LogitFormula | FeatureFormula | BoundaryFormula | RectifiedFormula | SumFormula
"""How a graph can compute scores."""


def arrays_of(formula: Formula) -> set[str]:
    """Which of logits and features a formula reads.

    Examples
    --------
    >>> arrays_of(plain_formula("max"))
    {'logits'}
    """
    if isinstance(formula, SumFormula):
        by_class = formula.class_offset.size > 1 or formula.ood_position is not None
        return set().union({LOGITS} if by_class else (), *(arrays_of(term) for _, term in formula.terms))
    if isinstance(formula, LogitFormula):
        return {LOGITS}
    return {LOGITS, FEATURES} if isinstance(formula, BoundaryFormula) else {FEATURES}


class MomentFormula(NamedTuple):
    """Running statistics that are nothing but moments of the logits, which take a row in before it is scored.

    With mean mu and deviation sigma of every logit, score = weight * kind((z - mu) / (temperature * sigma)).
    """

    kind: str
    temperature: float
    weight: float
    state: BlockState
    """The moments as they are now."""


def plain_formula(kind: str, temperature: float = 1.0, weight: float = 1.0) -> LogitFormula:
    """The formula ``weight * kind(z / temperature)``."""
    return LogitFormula(kind, np.zeros(1), np.array([1.0 / temperature]), weight)


def formula_of(detector: Detector) -> Formula:
    """The formula that gives ``detector.score``, with the statistics as they are now."""
    detector._require_fitted()
    formula = offered_formula(detector)
    if formula is None:
        raise InvalidInput(
            f"{detector.name} ({type(detector).__name__}) has no formula that a graph could carry: its class offers "
            "none for these parameters. Score its outputs in Python, by detector.score."
        )
    return formula


def offered_formula(detector: Detector) -> Formula | None:
    """The formula that a fitted detector offers; None where it inherits one and scores otherwise."""
    return detector._formula() if _works_as_its_formula(type(detector), "_formula", "_score", "_score_at") else None


def offered_moments(detector: Detector) -> MomentFormula | None:
    """The moments that a fitted detector offers; None where it inherits them and streams otherwise."""
    works = _works_as_its_formula(type(detector), "_moment_formula", "_step", "_prepare")
    return detector._moment_formula() if works else None


def moment_formula_of(detector: Detector) -> MomentFormula:
    """The moments that a graph can carry from batch to batch, and how it scores by them as ``detector.stream`` does."""
    detector._require_fitted()
    why = "it has no running statistics"
    if detector._runs:
        formula = offered_moments(detector)
        if formula is not None:
            return formula
        why = "its running statistics are not just moments of the logits, and no fixed graph can move them"
    raise InvalidInput(
        f"stateful needs statistics that are moments of the logits and move; got {detector.name}: {why}. "
        "Leave stateful out (statistics are then frozen as they are), or stream in Python."
    )


def _works_as_its_formula(cls: type[Detector], offer: str, *ways: str) -> bool:
    """False for a subclass that scores in a way of its own and inherits the formula that it ``offers``."""
    for ancestor in cls.__mro__:
        if offer in vars(ancestor):
            return True
        if any(way in vars(ancestor) for way in (*ways, "_transform")):
            return False
    return False


def logit_limits_of(detector: Detector) -> tuple[float, float] | None:
    """The logits beyond which a row is flagged whatever its score is; None where there are no such limits."""
    low, high = detector._logit_limits
    return (low, high) if np.isfinite(low) else None


def limits_of(detector: Detector) -> FloatArray | None:
    """The scores above which a row is flagged, (1,) or one for each predicted class (C,); None without a threshold.

    They lie a rounding error (:data:`TIE`) above the threshold: it is itself the score of some row, and that row must
    be accepted also where its last bit comes out differently.
    """
    if detector.threshold_ is None:
        return None
    values = detector.threshold_.per_class
    limits = np.array([detector.threshold_.value] if values is None else values, dtype=np.float64)
    size = np.abs(np.where(np.isfinite(limits), limits, 0.0))
    formula = detector._formula()
    if isinstance(formula, RectifiedFormula):
        formula = formula.then
    if isinstance(formula, SumFormula):
        size = np.maximum(size, np.abs(formula.class_offset).max())  # the score is a difference of larger numbers
    return limits + TIE * np.maximum(1.0, size)
