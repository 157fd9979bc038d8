"""The benchmarks of the paper's comparison in several sizes, and which detectors grids and leaderboards measure."""

from __future__ import annotations

import math

from normscale._validate import named
from normscale.bench.experiments.methods import DEFAULT
from normscale.bench.experiments.plan import Plan
from normscale.detectors.base import Detector
from normscale.detectors.norm_scaling import NormScaling
from normscale.detectors.registry import JOIN, list_detectors, make_detector
from normscale.outputs import FEATURES, ModelOutputs

PAPER_METHODS = ("msp", "multi_threshold", "odin", "mahalanobis", "energy", "norm_scaling")
"""In the order of the paper's tables."""
SUBJECT = "norm_scaling"
"""The paper's own method."""

_COMPARED = (*PAPER_METHODS, "norm_scaling_frozen", "robust_norm_scaling", "max_logit", "mahalanobis_layers")
_NOISE = {"gaussian": "gaussian", "uniform": "uniform"}
_IMAGES = ("tinyimagenet", "lsun", "places365", "textures", "svhn")


def _plan(name: str, *ood: str) -> Plan:
    sets = {one: one for one in (*ood, *_IMAGES) if one != name}
    return Plan(name, name, {**sets, **_NOISE}, recipe="paper", methods=_COMPARED, subject=SUBJECT)


def _small(name: str, epochs: int, *ood: str, seeds: int = 3) -> Plan:
    return _plan(name, *ood)._replace(
        name=f"{name}-small", width=16, recipe="fast", epochs=epochs, seeds=tuple(range(seeds))
    )


PRESETS: dict[str, Plan] = {
    "digits": Plan(
        "digits",
        "digits",
        {**{one: one for one in ("letters", "fashion", "photos", "surfaces")}, **_NOISE},
        width=8,
        recipe="fast",
        epochs=12,
        methods=_COMPARED,
        subject=SUBJECT,
    ),
    "cifar10-small": _small("cifar10", 18, "cifar100", seeds=5),
    "cifar100-small": _small("cifar100", 18),
    "svhn-small": _small("svhn", 8, "cifar100"),
    "tinyimagenet-small": _small("tinyimagenet", 12, "cifar100")._replace(image_size=(32, 32)),
    "cifar10-wide": _small("cifar10", 18, "cifar100", seeds=1)._replace(name="cifar10-wide", width=32),
    "cifar10": _plan("cifar10"),
    "cifar100": _plan("cifar100"),
    "svhn": _plan("svhn", "cifar100"),
    "tinyimagenet": _plan("tinyimagenet", "cifar100"),
}
"""``digits`` needs nothing, the small ones and ``cifar10-wide`` two cores and a few hours, the paper's four a GPU."""


def find_preset(name: str) -> Plan:
    """A preset by name."""
    return named(name, PRESETS, "preset")


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
    """The default, every registered detector, and the stream-aware forms of some."""
    single = [name for name in list_detectors() if name != _WRAPPER]
    return (DEFAULT, *single, *(f"{_WRAPPER}{JOIN}{name}" for name in _WRAPPED))
