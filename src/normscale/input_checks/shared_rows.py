"""Rows that two tables have in common, found in bounded memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from normscale._validate import Rows
from normscale.outputs import ModelOutputs

_KEPT, _BLOCK = 1 << 14, 1 << 20
_FEWEST = 10
"""Rows that must be comparable before a share is named."""


class RowSketch:
    """Whether two tables have rows in common, in bounded memory.

    Every row has a number, made of its bits, that is as good as random. A sketch keeps the smallest of these numbers
    (the "k minimum values" of Bar-Yossef et al., 2002): another table's rows whose numbers are as small must be among
    them if they are in the first table.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> train, test = RowSketch(), RowSketch()
    >>> rows = rng.normal(size=(1000, 5))
    >>> train.take_in(rows)
    >>> test.take_in(np.r_[rows[:300], rng.normal(size=(100, 5))])
    >>> train.share_of(test)
    0.75
    """

    def __init__(self) -> None:
        self._smallest: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._is_whole = True

    @classmethod
    def of(cls, outputs: ModelOutputs) -> RowSketch:
        """A sketch of the first array of outputs."""
        sketch = cls()
        sketch.take_in(outputs.array(outputs.names[0]))
        return sketch

    def take_in(self, rows: Rows) -> None:
        """Note some rows; float32 rows and their copy in float64 are the same rows."""
        step = max(1, _BLOCK // rows.shape[1])
        for start in range(0, rows.shape[0], step):
            self._note(_numbers(rows[start : start + step]), True)

    def merge(self, other: RowSketch) -> None:
        """Note the rows that another sketch has noted."""
        self._note(other._smallest, other._is_whole)

    def _note(self, numbers: NDArray[np.uint64], are_all: bool) -> None:
        found = np.unique(np.concatenate([self._smallest, numbers]))
        self._is_whole = self._is_whole and are_all and found.size <= _KEPT
        self._smallest = found[:_KEPT]

    def share_of(self, other: RowSketch) -> float | None:
        """The share of another table's rows that are also in this one; None where too few can be compared."""
        numbers = other._smallest
        for sketch in (self, other):
            if not sketch._is_whole:
                numbers = numbers[numbers <= sketch._smallest[-1]]
        if numbers.size < _FEWEST:
            return None
        return float(np.isin(numbers, self._smallest, assume_unique=True).mean())


def _numbers(rows: Rows) -> NDArray[np.uint64]:
    """A number for every row, made of its bits in float64; equal rows have equal numbers."""
    values = np.ascontiguousarray(rows, dtype=np.float64) + 0.0  # -0 becomes 0
    odd = np.random.default_rng(0).integers(0, 1 << 63, rows.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    mixed = values.view(np.uint64)
    mixed ^= mixed >> np.uint64(32)
    mixed *= odd
    mixed ^= mixed >> np.uint64(29)
    total: NDArray[np.uint64] = mixed.sum(axis=1, dtype=np.uint64)
    total *= np.uint64(0x9E3779B97F4A7C15)
    total ^= total >> np.uint64(32)
    return total
