"""Detectors: one per file, all with the contract of :class:`~normscale.detectors.base.Detector`.

The names below are loaded when first used (PEP 562), so that ``import normscale`` stays light.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normscale.detectors.base import Detector, Setting
    from normscale.detectors.centred import Centred
    from normscale.detectors.energy import Energy
    from normscale.detectors.ensemble import Ensemble
    from normscale.detectors.entropy import Entropy
    from normscale.detectors.gen import GEN
    from normscale.detectors.mahalanobis import Mahalanobis, MahalanobisLayers
    from normscale.detectors.max_logit import MaxLogit
    from normscale.detectors.msp import MSP
    from normscale.detectors.multi_threshold import MultiThreshold
    from normscale.detectors.norm_scaling import NormScaling
    from normscale.detectors.odin import ODIN
    from normscale.detectors.react import ReAct
    from normscale.detectors.registry import list_detectors, load_detector, make_detector, register
    from normscale.detectors.robust_norm_scaling import RobustNormScaling
    from normscale.detectors.step import Step
    from normscale.detectors.stream_aware import StreamAware
    from normscale.detectors.temperature_scaling import TemperatureScaling
    from normscale.detectors.threshold import Threshold

_HOMES = {  # module -> the public names it holds; a test compares this with the imports above
    "base": "Detector Setting",
    "centred": "Centred",
    "energy": "Energy",
    "ensemble": "Ensemble",
    "entropy": "Entropy",
    "gen": "GEN",
    "mahalanobis": "Mahalanobis MahalanobisLayers",
    "max_logit": "MaxLogit",
    "msp": "MSP",
    "multi_threshold": "MultiThreshold",
    "norm_scaling": "NormScaling",
    "odin": "ODIN",
    "react": "ReAct",
    "registry": "list_detectors load_detector make_detector register",
    "robust_norm_scaling": "RobustNormScaling",
    "step": "Step",
    "stream_aware": "StreamAware",
    "temperature_scaling": "TemperatureScaling",
    "threshold": "Threshold",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "GEN",
    "MSP",
    "ODIN",
    "Centred",
    "Detector",
    "Energy",
    "Ensemble",
    "Entropy",
    "Mahalanobis",
    "MahalanobisLayers",
    "MaxLogit",
    "MultiThreshold",
    "NormScaling",
    "ReAct",
    "RobustNormScaling",
    "Setting",
    "Step",
    "StreamAware",
    "TemperatureScaling",
    "Threshold",
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
