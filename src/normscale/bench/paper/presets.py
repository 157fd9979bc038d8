"""The benchmarks of the paper's comparison, in several sizes, and the detectors of a leaderboard."""

from __future__ import annotations

from collections.abc import Sequence

from normscale.bench.experiments.network_outputs import is_extracted
from normscale.bench.experiments.plan import Plan
from normscale.detectors.registry import JOIN, list_detectors
from normscale.errors import InvalidInput

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
    """A preset by name.

    Examples
    --------
    >>> plan = find_preset("svhn-small")
    >>> plan.data, plan.width, plan.epochs, plan.seeds
    ('svhn', 16, 8, (0, 1, 2))
    """
    if name not in PRESETS:
        raise InvalidInput(f"unknown preset {name!r}; known: {', '.join(PRESETS)}.")
    return PRESETS[name]


EVERY = "all"
"""Stands for every detector on the command line."""
_WRAPPER = "stream_aware"
_WRAPPED = ("centred", "msp", "knn", "vim", "relative_mahalanobis", "fdbd", "ensemble")
"""One detector of every family, and their sum."""


def every_method() -> tuple[str, ...]:
    """Every registered detector in its main setting, and the stream-aware forms.

    Examples
    --------
    >>> methods = every_method()
    >>> "knn" in methods, "stream_aware+knn" in methods, "stream_aware" in methods
    (True, True, False)
    """
    single = [name for name in list_detectors() if name != _WRAPPER]
    return (*single, *(f"{_WRAPPER}{JOIN}{name}" for name in _WRAPPED))


def with_detectors(plan: Plan, names: Sequence[str]) -> Plan:
    """A plan with further methods.

    ``names`` are detectors as they are spelled, or ``all`` alone: every one whose arrays the plan extracts anyway.

    Examples
    --------
    >>> plan = Plan("mine", "digits", {"gaussian": "gaussian"}, methods=("energy",))
    >>> with_detectors(plan, ["knn", "vim"]).further
    ('knn', 'vim')
    >>> "odin" in with_detectors(plan, ["all"]).further  # nobody else reads perturbed logits
    False
    """
    chosen = list(names)
    if not chosen or (EVERY in chosen and len(chosen) > 1):
        raise InvalidInput(f"detectors are {EVERY!r} alone, or one or more others; got {', '.join(chosen) or 'none'}.")
    if chosen == [EVERY]:
        chosen = [name for name in every_method() if is_extracted(plan, name)]
    return plan._replace(further=tuple(name for name in chosen if name not in plan.methods))
