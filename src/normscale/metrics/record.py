"""What the frozen records have in common that the metrics return."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np


class Record:
    """Base of ``@dataclass(frozen=True, kw_only=True, eq=False)`` classes whose fields may be arrays.

    Arrays become read-only, are compared by their values, and become lists in :meth:`to_dict`.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, kw_only=True, eq=False)
    ... class Point(Record):
    ...     x: float
    ...     y: float = 0.0
    >>> Point(x=1.5)
    Point(x=1.5, y=0.0)
    >>> Point(x=1.5).to_dict()
    {'x': 1.5, 'y': 0.0}
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


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return bool(np.array_equal(a, b, equal_nan=True))
    return bool(a == b)


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
