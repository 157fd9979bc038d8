"""Rows that hold NaN or infinity: refused with file and row, or skipped, counted and listed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from normscale._validate import BoolArray
from normscale.engines.pieces import Layout, Piece, read_piece
from normscale.errors import InvalidInput
from normscale.outputs import ModelOutputs, finite_rows

LISTED = 1000
"""How many skipped rows of a piece are named; all are counted."""

Result = TypeVar("Result")


class Skipped(NamedTuple):
    """Rows that were left out."""

    n: int = 0
    rows: tuple[tuple[str, int], ...] = ()
    """File and number of the row in it, from 0; of every piece at most :data:`LISTED`."""

    def __add__(self, other: object) -> Skipped:
        """Both; in the order of their rows."""
        assert isinstance(other, Skipped)
        return Skipped(self.n + other.n, self.rows + other.rows)


class GoodRows:
    """The finite rows of a piece, chunk by chunk; what was left out is in :attr:`skipped` afterwards."""

    def __init__(self, piece: Piece, layout: Layout, names: Sequence[str]) -> None:
        """Read a piece; a row must be finite in the arrays ``names``."""
        self._piece, self._layout, self._names = piece, layout, names
        self.skipped = Skipped()

    def __iter__(self) -> Iterator[ModelOutputs]:
        """Iterate over chunks without their bad rows."""
        for chunk, good in self.with_masks():
            yield chunk if good.all() else chunk[good]

    def with_masks(self) -> Iterator[tuple[ModelOutputs, BoolArray]]:
        """Iterate over whole chunks and which of their rows are good."""
        first_row = self._piece.first_row
        for chunk in read_piece(self._piece, self._layout):
            good = finite_rows(chunk, self._names)
            if not good.all():
                bad = np.flatnonzero(~good)
                room = max(0, LISTED - len(self.skipped.rows))
                listed = tuple((self._piece.file.path, first_row + int(row)) for row in bad[:room])
                self.skipped += Skipped(bad.size, listed)
            first_row += len(chunk)
            yield chunk, good


def naming_the_row(piece: Piece, layout: Layout, names: Sequence[str], work: Callable[[], Result]) -> Result:
    """Do ``work`` on a piece; an error about a bad row says which row of which file it is."""
    try:
        return work()
    except InvalidInput as error:
        row = piece.first_row
        for chunk in read_piece(piece, layout):
            good = finite_rows(chunk, names)
            if not good.all():
                first = int(np.argmin(good))
                array = next(name for name in names if not np.isfinite(chunk.array(name)[first]).all())
                raise InvalidInput(
                    f"{piece.file.path}: row {row + first} holds NaN or infinity in {array}. Drop the row or pass "
                    'on_invalid="skip".'
                ) from None
            row += len(chunk)
        if piece.file.path in str(error):
            raise
        raise InvalidInput(f"{piece.file.path}: {error}") from None
