"""The methods of a benchmark: a registered detector, the setting it is measured in, and the logits it reads."""

from __future__ import annotations

from typing import NamedTuple

from normscale.detectors.base import Detector
from normscale.detectors.registry import make_detector
from normscale.errors import InvalidInput
from normscale.experiments.protocol import FROZEN, PER_CLASS, STREAM

PAPER_METHODS = ("msp", "multi_threshold", "odin", "mahalanobis", "energy", "norm_scaling")
"""In the order of the paper's tables."""

_FROZEN_SUFFIX = "_frozen"
_TITLES = {
    "msp": "MSP",
    "multi_threshold": "Multi-Threshold",
    "odin": "ODIN",
    "mahalanobis": "Mahalanobis",
    "energy": "Energy",
    "max_logit": "MaxLogit",
    "temperature_scaling": "Temperature Scaling",
    "norm_scaling": "Norm-Scaling",
    "robust_norm_scaling": "Robust Norm-Scaling",
}


class Method(NamedTuple):
    """A line of the comparison."""

    name: str
    detector: str
    setting: str
    perturbed: bool = False
    """Whether it reads the logits of perturbed images: ODIN."""

    @property
    def title(self) -> str:
        """The name in tables and figures."""
        return title_of(self.name)

    def make(self) -> Detector:
        """A new detector."""
        return make_detector(self.detector)


def title_of(method: str) -> str:
    """The name of a method in tables and figures.

    Examples
    --------
    >>> title_of("norm_scaling"), title_of("norm_scaling_frozen"), title_of("my_own")
    ('Norm-Scaling', 'Norm-Scaling, frozen', 'my_own')
    """
    base = method.removesuffix(_FROZEN_SUFFIX)
    return _TITLES.get(base, base) + (", frozen" if base != method else "")


def find_method(name: str) -> Method:
    """A method by name: a registered detector, or ``NAME_frozen`` for one whose statistics could run.

    Detectors with running statistics are measured on the shuffled stream, as in the paper; ``multi_threshold`` per
    predicted class.

    Examples
    --------
    >>> find_method("norm_scaling").setting, find_method("norm_scaling_frozen").setting, find_method("energy").setting
    ('stream', 'frozen', 'frozen')
    """
    base = name.removesuffix(_FROZEN_SUFFIX)
    detector = make_detector(base)
    running = detector.has_running_statistics
    if base != name and not running:
        raise InvalidInput(f"{base} has no running statistics, so there is no method {name!r}; use {base!r}.")
    if base == "multi_threshold":
        return Method(name, base, PER_CLASS)
    return Method(name, base, STREAM if running and base == name else FROZEN, perturbed=base == "odin")
