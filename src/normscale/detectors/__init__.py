"""Detectors: one per file, all with the contract of :class:`~normscale.detectors.base.Detector`."""

from normscale.detectors.base import Detector
from normscale.detectors.decision import Threshold
from normscale.detectors.logit_scores import MSP, ODIN, Energy, MaxLogit
from normscale.detectors.mahalanobis import Mahalanobis
from normscale.detectors.multi_threshold import MultiThreshold
from normscale.detectors.norm_scaling import NormScaling
from normscale.detectors.registry import list_detectors, load_detector, make_detector
from normscale.detectors.robust_norm_scaling import RobustNormScaling
from normscale.detectors.temperature_scaling import TemperatureScaling

__all__ = [
    "MSP",
    "ODIN",
    "Detector",
    "Energy",
    "Mahalanobis",
    "MaxLogit",
    "MultiThreshold",
    "NormScaling",
    "RobustNormScaling",
    "TemperatureScaling",
    "Threshold",
    "list_detectors",
    "load_detector",
    "make_detector",
]
