"""What a benchmark runs: the in-distribution set, the networks, the OoD sets and the methods."""

from __future__ import annotations

from typing import Any, NamedTuple

from normscale.bench.data.sources import short_name
from normscale.errors import InvalidInput


class Plan(NamedTuple):
    """A benchmark; ``ood`` maps the name of a set to where it comes from, as ``normscale data`` understands it."""

    name: str
    data: str
    ood: dict[str, str]
    network: str = "resnet18"
    width: int = 64
    recipe: str = "fast"
    epochs: int | None = None
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    methods: tuple[str, ...] = ()
    subject: str | None = None
    """The method that a report compares with every other one, row by row; None: the first whose statistics run."""
    trained_on: str = ""
    """The name of the in-distribution set, if it is not that of its source."""
    image_size: tuple[int, int] | None = None
    """Height and width that all pictures are made; None: as they are in the in-distribution set."""

    @property
    def in_set(self) -> str:
        """The name of the in-distribution set."""
        return self.trained_on or short_name(self.data)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Plan:
        """Read back what :meth:`_asdict` gave, after it was JSON; fields of another version are passed over."""
        known = {name: value for name, value in values.items() if name in Plan._fields}
        fields: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}
        return Plan(**fields)


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
