"""The benchmarks of the paper's comparison, in several sizes."""

from __future__ import annotations

from normscale.bench.experiments.plan import Plan
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
