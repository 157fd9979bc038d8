"""Detectors: one per file, all with the contract of :class:`~normscale.detectors.base.Detector`.

The names below are loaded when first used (PEP 562), so that ``import normscale`` stays light.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normscale.detectors.ash import ASH
    from normscale.detectors.base import Detector, Setting
    from normscale.detectors.centred import Centred
    from normscale.detectors.dice import DICE
    from normscale.detectors.energy import Energy
    from normscale.detectors.ensemble import Ensemble
    from normscale.detectors.entropy import Entropy
    from normscale.detectors.fdbd import FDBD
    from normscale.detectors.gen import GEN
    from normscale.detectors.gradnorm import GradNorm
    from normscale.detectors.gram import Gram
    from normscale.detectors.kl_matching import KLMatching
    from normscale.detectors.knn import KNN
    from normscale.detectors.mahalanobis import Mahalanobis, MahalanobisLayers
    from normscale.detectors.max_logit import MaxLogit
    from normscale.detectors.msp import MSP
    from normscale.detectors.multi_threshold import MultiThreshold
    from normscale.detectors.nci import NCI
    from normscale.detectors.nnguide import NNGuide
    from normscale.detectors.norm_scaling import NormScaling
    from normscale.detectors.odin import ODIN
    from normscale.detectors.oodd import OODD
    from normscale.detectors.openmax import OpenMax
    from normscale.detectors.present_classes import PresentClasses
    from normscale.detectors.react import ReAct
    from normscale.detectors.registry import list_detectors, load_detector, make_detector, register
    from normscale.detectors.relative_mahalanobis import RelativeMahalanobis
    from normscale.detectors.residual import Residual
    from normscale.detectors.robust_norm_scaling import RobustNormScaling
    from normscale.detectors.rtl import RTL
    from normscale.detectors.scale import SCALE
    from normscale.detectors.she import SHE
    from normscale.detectors.standardised_max_logit import StandardisedMaxLogit
    from normscale.detectors.step import Step
    from normscale.detectors.stream_aware import StreamAware
    from normscale.detectors.temperature_scaling import TemperatureScaling
    from normscale.detectors.tempered import Tempered
    from normscale.detectors.threshold import Threshold
    from normscale.detectors.vim import ViM
    from normscale.detectors.weiper import WeiPer
    from normscale.detectors.wrapper import Wrapper

_HOMES = {  # module -> the public names it holds; a test compares this with the imports above
    "ash": "ASH",
    "base": "Detector Setting",
    "centred": "Centred",
    "present_classes": "PresentClasses",
    "dice": "DICE",
    "energy": "Energy",
    "ensemble": "Ensemble",
    "entropy": "Entropy",
    "fdbd": "FDBD",
    "gen": "GEN",
    "gradnorm": "GradNorm",
    "gram": "Gram",
    "kl_matching": "KLMatching",
    "knn": "KNN",
    "mahalanobis": "Mahalanobis MahalanobisLayers",
    "max_logit": "MaxLogit",
    "msp": "MSP",
    "multi_threshold": "MultiThreshold",
    "nci": "NCI",
    "nnguide": "NNGuide",
    "norm_scaling": "NormScaling",
    "odin": "ODIN",
    "oodd": "OODD",
    "openmax": "OpenMax",
    "react": "ReAct",
    "registry": "list_detectors load_detector make_detector register",
    "relative_mahalanobis": "RelativeMahalanobis",
    "residual": "Residual",
    "robust_norm_scaling": "RobustNormScaling",
    "rtl": "RTL",
    "scale": "SCALE",
    "she": "SHE",
    "standardised_max_logit": "StandardisedMaxLogit",
    "step": "Step",
    "stream_aware": "StreamAware",
    "temperature_scaling": "TemperatureScaling",
    "tempered": "Tempered",
    "threshold": "Threshold",
    "vim": "ViM",
    "weiper": "WeiPer",
    "wrapper": "Wrapper",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "ASH",
    "DICE",
    "FDBD",
    "GEN",
    "KNN",
    "MSP",
    "NCI",
    "ODIN",
    "OODD",
    "RTL",
    "SCALE",
    "SHE",
    "Centred",
    "Detector",
    "Energy",
    "Ensemble",
    "Entropy",
    "GradNorm",
    "Gram",
    "KLMatching",
    "Mahalanobis",
    "MahalanobisLayers",
    "MaxLogit",
    "MultiThreshold",
    "NNGuide",
    "NormScaling",
    "OpenMax",
    "PresentClasses",
    "ReAct",
    "RelativeMahalanobis",
    "Residual",
    "RobustNormScaling",
    "Setting",
    "StandardisedMaxLogit",
    "Step",
    "StreamAware",
    "TemperatureScaling",
    "Tempered",
    "Threshold",
    "ViM",
    "WeiPer",
    "Wrapper",
    "list_detectors",
    "load_detector",
    "make_detector",
    "register",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its module the first time it is asked for."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'normscale.detectors' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"normscale.detectors.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value
