"""Which detectors stress grids and leaderboards measure."""

from __future__ import annotations

import math

from normscale.bench.experiments.methods import DEFAULT
from normscale.detectors.base import Detector
from normscale.detectors.norm_scaling import NormScaling
from normscale.detectors.registry import JOIN, list_detectors, make_detector
from normscale.outputs import FEATURES, ModelOutputs

RUNNING, FROZEN = "norm_scaling", "norm_scaling_frozen"
RIVALS = ("msp", "max_logit", "energy")
"""One formula on raw logits; nothing is fitted and nothing runs."""
STATICS = (*RIVALS, FROZEN)
"""What a method with running statistics must not lose against."""
PREFERRED = "energy"
"""The static method that is advised where several are as good."""
_WRAPPER = "stream_aware"
_WRAPPED = ("centred", "msp", "knn", "vim", "relative_mahalanobis", "fdbd")
"""One detector of every family."""


def own_methods(train: ModelOutputs) -> dict[str, Detector]:
    """Detectors that say what to use for a stream, fitted, by name.

    Norm-scaling as the paper runs it, with a calm start and frozen; stream-aware detectors, the default's sum among
    them where there are features and a head; the rivals.
    """
    names = [RUNNING, f"{RUNNING}:prior_weight=1000", "robust_norm_scaling", "stream_aware+energy", *RIVALS]
    if FEATURES in train.names and train.head is not None:
        names += ["ensemble", "stream_aware+ensemble"]
    frozen: dict[str, Detector] = {FROZEN: NormScaling(prior_weight=math.inf).fit(train)}
    return frozen | {name: make_detector(name).fit(train) for name in names}


def every_detector() -> tuple[str, ...]:
    """The default, every registered detector, and the stream-aware forms of some.

    Examples
    --------
    >>> names = every_detector()
    >>> names[0], "knn" in names, "stream_aware+knn" in names, "stream_aware" in names
    ('default', True, True, False)
    """
    single = [name for name in list_detectors() if name != _WRAPPER]
    return (DEFAULT, *single, *(f"{_WRAPPER}{JOIN}{name}" for name in _WRAPPED))
