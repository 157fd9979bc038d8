"""Reading flatbuffers, the format of Arrow's metadata, without trusting a byte of it.

A table begins with the distance back to its vtable, which holds for each field where it lies in the table, or 0 when it
has its default value. Everything refers forwards to what it holds, by distances from where the reference stands. A
reference outside raises; how deep to follow is the caller's decision, so nothing here can run in circles.
"""

from __future__ import annotations

from struct import unpack_from


class Table:
    """One table.

    Parameters
    ----------
    data : memoryview
        The whole buffer, and nothing else: whoever reads outside gets ``ValueError`` or ``struct.error``.
    at : int
        Where the table begins; the root's place stands in the first four bytes.
    """

    __slots__ = ("_at", "_data", "_size", "_vtable")

    def __init__(self, data: memoryview, at: int) -> None:
        vtable = at - _number(data, "<i", at)
        self._data, self._at, self._vtable = data, at, vtable
        self._size = _number(data, "<H", vtable)

    @classmethod
    def root(cls, data: memoryview) -> Table:
        """The table that holds all others."""
        return cls(data, _number(data, "<I", 0))

    def number(self, field: int, kind: str, default: int = 0) -> int:
        """A whole number, ``kind`` as in :mod:`struct`."""
        place = self._place(field)
        return default if place is None else _number(self._data, kind, place)

    def has(self, field: int) -> bool:
        """Whether the field is there."""
        return self._place(field) is not None

    def table(self, field: int) -> Table:
        """The table a field refers to, which must be there."""
        return Table(self._data, self._target(field))

    def tables(self, field: int, count: int) -> list[Table]:
        """The first ``count`` tables of a vector; check its length first."""
        start = self._target(field) + 4
        places = range(start, start + 4 * count, 4)
        return [Table(self._data, place + _number(self._data, "<I", place)) for place in places]

    def length(self, field: int) -> int:
        """How long a vector or text says it is; 0 when it is not there."""
        return _number(self._data, "<I", self._target(field)) if self.has(field) else 0

    def pairs(self, field: int, count: int) -> list[tuple[int, int]]:
        """The first ``count`` elements of a vector of pairs of 64-bit numbers; check its length first."""
        numbers = unpack_from(f"<{2 * count}q", self._data, self._target(field) + 4)
        return list(zip(numbers[::2], numbers[1::2], strict=True))

    def text(self, field: int, longest: int) -> bytes:
        """The first ``longest`` bytes of a text."""
        start = self._target(field) + 4
        return bytes(self._data[start : start + min(self.length(field), longest)])

    def _target(self, field: int) -> int:
        place = self._place(field)
        if place is None:
            raise ValueError("a part of its metadata is missing")
        return place + _number(self._data, "<I", place)

    def _place(self, field: int) -> int | None:
        entry = 4 + 2 * field
        if entry + 2 > self._size:
            return None
        offset = _number(self._data, "<H", self._vtable + entry)
        return self._at + offset if offset else None


def _number(data: memoryview, kind: str, place: int) -> int:
    if place < 0:  # struct would count from the end
        raise ValueError("a part of its metadata lies outside")
    value: int = unpack_from(kind, data, place)[0]
    return value
