"""A fitted detector as plain arrays: what anyone needs who computes its scores elsewhere, in an ONNX graph or in torch.

Every detector that reads logits is one formula. For a row z predicted c (its largest logit, the first of equals)

    score = times * kind((z - shift) * factor) - size * z_c - less_c + position_c(z)

with ``kind`` as in :mod:`normscale._kernels.kinds`; most detectors need only a few of the terms.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from normscale._kernels.mixture_reference import inside_share
from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.detectors.logit_scores import MSP, ODIN, Energy, MaxLogit
from normscale.detectors.mahalanobis import Mahalanobis
from normscale.detectors.multi_threshold import MultiThreshold
from normscale.detectors.norm_scaling import NormScaling
from normscale.detectors.robust_norm_scaling import RobustNormScaling
from normscale.detectors.temperature_scaling import TemperatureScaling
from normscale.errors import InvalidInput, NotFitted
from normscale.scaling import scale_factor

TIE = 1e-12
"""Scores this much above a threshold, relative to it, are equal to it: elsewhere exp and log round differently."""

_CARRIED = (
    NormScaling,
    RobustNormScaling,
    Mahalanobis,
    MultiThreshold,
    TemperatureScaling,
    ODIN,
    Energy,
    MaxLogit,
    MSP,
)


class Position(NamedTuple):
    """Whether a row lies where recent OoD rows of its predicted class c lay.

    With x = (z - mean_c) * inverse_deviation_c it is

        max(0, trust_c * (mean_j(x_j^2 - (x_j - outside_mean_cj)^2 * inverse_variance_cj) - log_variance_c))
    """

    mean: FloatArray
    """(C, C)"""
    inverse_deviation: FloatArray
    """(C, C)"""
    outside_mean: FloatArray
    """(C, C)"""
    inverse_variance: FloatArray
    """(C, C)"""
    log_variance: FloatArray
    """(C,)"""
    trust: FloatArray
    """(C,) 0 for a class without OoD rows."""


class LogitFormula(NamedTuple):
    """The terms of the formula above; ``shift`` and ``factor`` have the shape (C,), or (1,) where all are the same."""

    kind: str
    shift: FloatArray
    factor: FloatArray
    times: float = 1.0
    size: float = 0.0
    less: FloatArray | None = None
    position: Position | None = None


class FeatureFormula(NamedTuple):
    """Squared distance of (f - centre) @ whitening to the nearest of ``means``, never below 0."""

    centre: FloatArray
    """(d,)"""
    whitening: FloatArray
    """(d, r)"""
    means: FloatArray
    """(k, r) of the classes, centred and whitened."""


def formula_of(detector: Detector) -> LogitFormula | FeatureFormula:
    """The formula that gives ``detector.score``, with the statistics as they are now.

    Examples
    --------
    >>> formula_of(Energy(temperature=2.0))
    LogitFormula(kind='energy', shift=array([0.]), factor=array([0.5]), times=2.0, size=0.0, less=None, position=None)
    """
    if not detector.is_fitted:
        raise NotFitted(f"{type(detector).__name__} is not fitted; call fit(outputs) or load_detector(path) first.")
    if type(detector) not in _CARRIED:  # a subclass may score otherwise
        raise InvalidInput(
            f"{detector.name} ({type(detector).__name__}) has no formula that a graph could carry; only the detectors "
            "that come with normscale have one. Score its logits in Python, by detector.score."
        )
    if isinstance(detector, NormScaling):
        running = detector.running_
        return LogitFormula(detector.score_kind, running.mean, scale_factor(running, detector.temperature))
    if isinstance(detector, RobustNormScaling):
        return _two_groups(detector)
    if isinstance(detector, Mahalanobis):
        centre = detector.means_.mean(axis=0)
        return FeatureFormula(centre, detector.whitening_, (detector.means_ - centre) @ detector.whitening_)
    if isinstance(detector, MultiThreshold):
        return _plain("msp")._replace(less=detector.thresholds_)
    if isinstance(detector, TemperatureScaling):
        return _plain("msp", detector.temperature_)
    if isinstance(detector, ODIN):
        return _plain("msp", detector.temperature)
    if isinstance(detector, Energy):
        return _plain("energy", detector.temperature)._replace(times=detector.temperature)
    return _plain("max" if isinstance(detector, MaxLogit) else "msp")


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
    if isinstance(detector, MultiThreshold):  # its score is a difference of two larger numbers
        size = np.maximum(size, np.abs(detector.thresholds_).max())
    raised: FloatArray = limits + TIE * np.maximum(1.0, size)
    return raised


def _plain(kind: str, temperature: float = 1.0) -> LogitFormula:
    return LogitFormula(kind, np.zeros(1), np.array([1.0 / temperature]))


def _two_groups(detector: RobustNormScaling) -> LogitFormula:
    """Robust norm-scaling as its stream has left it; see :mod:`normscale._kernels.mixture_reference`."""
    inside, mixture, settings = detector.inside_, detector.mixture_, detector._settings
    shares = np.array([inside_share(c, inside, settings, mixture) for c in range(inside.shift.size)])
    position = None
    if mixture.outside.any():
        trust = mixture.outside / (mixture.outside + settings.prior)
        variance = 1.0 + trust[:, None] * (mixture.outside_variance - 1.0)
        position = Position(
            mean=inside.mean,
            inverse_deviation=inside.inverse_deviation,
            outside_mean=trust[:, None] * mixture.outside_mean,
            inverse_variance=1.0 / variance,
            log_variance=np.log(variance).mean(axis=1),
            trust=trust,
        )
    return LogitFormula(
        "msp",
        inside.shift,
        inside.factor,
        times=float(inside.weights[0]),
        size=float(inside.weights[1]),
        less=np.log(shares) - inside.centre[0],
        position=position,
    )
