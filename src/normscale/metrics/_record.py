"""The base of the frozen records that the metrics return.

It does what a frozen dataclass does, at a tenth of the import time: eight dataclasses take about 10 ms to be
built, which is the whole of the 10 % that ``import normscale`` may cost on top of ``import numpy``.
"""

from __future__ import annotations

from typing import Any, ClassVar, dataclass_transform

import numpy as np


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Record:
    """Named, read-only results: the annotations of the subclass are the fields; arrays become read-only.

    Examples
    --------
    >>> class Point(Record):
    ...     x: float
    ...     y: float = 0.0
    >>> Point(x=1.5)
    Point(x=1.5, y=0.0)
    >>> Point(x=1.5).to_dict()
    {'x': 1.5, 'y': 0.0}
    """

    _fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        """Take the field names from the annotations, in order."""
        cls._fields = tuple(name for name in cls.__annotations__ if not name.startswith("_"))

    def __init__(self, **values: Any) -> None:
        """Store every field; a missing or an unknown one is a ``TypeError``."""
        defaults = {name: getattr(type(self), name) for name in self._fields if hasattr(type(self), name)}
        if unknown := values.keys() - set(self._fields):
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(unknown))}")
        if missing := [name for name in self._fields if name not in values and name not in defaults]:
            raise TypeError(f"{type(self).__name__} needs {', '.join(missing)}")
        for name, value in (defaults | values).items():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)
            self.__dict__[name] = value

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: records are frozen."""
        raise AttributeError(f"{type(self).__name__} is frozen; {name} cannot be set")

    def __delattr__(self, name: str) -> None:
        """Refuse: records are frozen."""
        raise AttributeError(f"{type(self).__name__} is frozen; {name} cannot be deleted")

    def __repr__(self) -> str:
        """Show every field by name."""
        return f"{type(self).__name__}({', '.join(f'{k}={getattr(self, k)!r}' for k in self._fields)})"

    def __eq__(self, other: object) -> bool:
        """Compare field by field; arrays by their values, NaN equal to NaN."""
        if type(other) is not type(self):
            return NotImplemented
        return all(_equal(getattr(self, name), getattr(other, name)) for name in self._fields)

    def __hash__(self) -> int:
        """Hash the fields; a record that holds arrays or dicts has no hash, as with a dataclass."""
        return hash((type(self), *(getattr(self, name) for name in self._fields)))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain Python values (arrays as lists, records as dicts), ready for JSON."""
        return {name: _plain(getattr(self, name)) for name in self._fields}


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
