"""What a benchmark runs: the in-distribution set, the networks, the OoD sets and the methods."""

from __future__ import annotations

from typing import Any, NamedTuple

from normscale.data.sources import short_name
from normscale.errors import InvalidInput
from normscale.experiments.methods import PAPER_METHODS

_NOISE = {"gaussian": "gaussian", "uniform": "uniform"}
_COMPARED = (*PAPER_METHODS, "norm_scaling_frozen", "robust_norm_scaling", "max_logit")


class Plan(NamedTuple):
    """A benchmark; ``ood`` maps the name of a set to where it comes from, as ``normscale data`` understands it."""

    name: str
    data: str
    ood: dict[str, str]
    network: str = "resnet18"
    width: int = 64
    recipe: str = "paper"
    epochs: int | None = None
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    methods: tuple[str, ...] = _COMPARED

    @property
    def in_set(self) -> str:
        """The name of the in-distribution set."""
        return short_name(self.data)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON keeps them."""
        return {**self._asdict(), "seeds": list(self.seeds), "methods": list(self.methods)}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Plan:
        """Read back what :meth:`to_dict` gave."""
        return Plan(**{**values, "seeds": tuple(values["seeds"]), "methods": tuple(values["methods"])})


def _paper(name: str, *ood: str) -> Plan:
    names = (*ood, "tinyimagenet", "lsun", "places365", "textures", "svhn")
    return Plan(name, name, {**{one: one for one in names if one != name}, **_NOISE})


PRESETS: dict[str, Plan] = {
    "digits": Plan(
        "digits",
        "digits",
        {**{one: one for one in ("letters", "fashion", "photos", "surfaces")}, **_NOISE},
        width=8,
        recipe="fast",
        epochs=12,
    ),
    "cifar10-small": _paper("cifar10", "cifar100")._replace(name="cifar10-small", width=16, recipe="fast", epochs=18),
    "cifar10": _paper("cifar10"),
    "cifar100": _paper("cifar100"),
    "svhn": _paper("svhn", "cifar100"),
    "tinyimagenet": _paper("tinyimagenet", "cifar100"),
}
"""``digits`` needs nothing, ``cifar10-small`` two cores and a few hours, the paper's four a GPU."""


def find_preset(name: str) -> Plan:
    """A preset by name."""
    if name not in PRESETS:
        raise InvalidInput(f"unknown preset {name!r}; known: {', '.join(PRESETS)}.")
    return PRESETS[name]


def named_source(item: str) -> tuple[str, str]:
    """``NAME=SOURCE``, or a source that names itself.

    Examples
    --------
    >>> named_source("svhn=npz:packs/svhn_test.npz")
    ('svhn', 'npz:packs/svhn_test.npz')
    >>> named_source("gaussian")
    ('gaussian', 'gaussian')
    """
    name, equals, source = item.partition("=")
    if not equals:
        name, source = short_name(item), item
    if not name or not source or name in (".", "..") or "/" in name or "\\" in name:
        raise InvalidInput(f"an OoD set is NAME=SOURCE or SOURCE, and a name holds no slash; got {item!r}.")
    return name, source
