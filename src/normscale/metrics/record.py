"""What the frozen records have in common that the metrics return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

import numpy as np

Value = TypeVar("Value")


class Record:
    """Base of ``@dataclass(frozen=True, kw_only=True, eq=False)`` classes whose fields may be arrays.

    Arrays become read-only, are compared by their values, and become lists in :meth:`to_dict`.
    """

    def __post_init__(self) -> None:
        for value in self.__dict__.values():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(_equal(value, other.__dict__[name]) for name, value in self.__dict__.items())

    def __hash__(self) -> int:
        values = (tuple(one.items()) if isinstance(one, dict) else one for one in self.__dict__.values())
        return hash((type(self), *values))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain Python values (arrays as lists, records as dicts), ready for JSON."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True, eq=False)
class MetricRecord(Record, Generic[Value]):
    """A record with something for each metric, which is an attribute of the metric's name, too."""

    metrics: dict[str, Value]
    """By the name of the metric."""

    def __getattr__(self, name: str) -> Value:
        found: Value = number_of(self.__dict__.get("metrics", {}), name, type(self).__name__)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return plain values ready for JSON, a key for each metric; what is None is left out."""
        values = super().to_dict()
        metrics: dict[str, Any] = values.pop("metrics")
        return metrics | {name: value for name, value in values.items() if value is not None}


def number_of(values: Mapping[str, Any], name: str, owner: str) -> Any:
    """Look up the metric that an attribute names; raises AttributeError as Python does for unknown attributes."""
    if name not in values:
        raise AttributeError(f"{owner} has no attribute {name!r}")
    return values[name]


def _equal(a: Any, b: Any) -> bool:
    return bool(np.array_equal(a, b, equal_nan=True) if isinstance(a, np.ndarray) else a == b)


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value
