"""The only table of detector names."""

from __future__ import annotations

import os
from typing import Any

from normscale.detectors.base import Detector
from normscale.detectors.logit_scores import MSP, ODIN, Energy, MaxLogit
from normscale.detectors.mahalanobis import Mahalanobis
from normscale.detectors.multi_threshold import MultiThreshold
from normscale.detectors.norm_scaling import NormScaling
from normscale.detectors.robust_norm_scaling import RobustNormScaling
from normscale.detectors.temperature_scaling import TemperatureScaling
from normscale.errors import FileFormatError, InvalidInput, UnknownDetector
from normscale.state import load_state

_DETECTORS: dict[str, type[Detector]] = {
    detector.name: detector
    for detector in (
        NormScaling,
        RobustNormScaling,
        MSP,
        MaxLogit,
        Energy,
        MultiThreshold,
        TemperatureScaling,
        ODIN,
        Mahalanobis,
    )
}


def list_detectors() -> list[str]:
    """Names of all detectors, in alphabetical order."""
    return sorted(_DETECTORS)


def detector_class(name: str) -> type[Detector]:
    """The class registered under a name; hyphens and capitals do not matter."""
    key = str(name).strip().lower().replace("-", "_")
    if key in _DETECTORS:
        return _DETECTORS[key]
    from difflib import get_close_matches

    close = get_close_matches(key, _DETECTORS, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise UnknownDetector(f"unknown detector {name!r}; known: {', '.join(list_detectors())}.{hint}")


def make_detector(name: str, **parameters: Any) -> Detector:
    """Make a detector by name.

    Examples
    --------
    >>> make_detector("energy", temperature=2.0)
    Energy(temperature=2.0)
    """
    cls = detector_class(name)
    unknown = sorted(set(parameters) - set(cls.parameters))
    if unknown:
        known = ", ".join(cls.parameters) or "none"
        raise InvalidInput(f"{cls.name} has no parameter {unknown[0]!r}; its parameters: {known}.")
    return cls(**parameters)


def load_detector(path: str | os.PathLike[str]) -> Detector:
    """Read a detector that :meth:`Detector.save` wrote, with its statistics and threshold."""
    header, tensors = load_state(path)
    try:
        cls = detector_class(header["detector"])
    except (KeyError, UnknownDetector) as error:
        raise FileFormatError(f"{os.fspath(path)!r} holds a detector this version does not know: {error}") from error
    return cls.from_state(header, tensors)
