"""Two tables beside each other: columns matched by the names of their classes, and rows that both have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from normscale._validate import IntArray, Rows
from normscale.errors import InvalidInput
from normscale.outputs import LOGITS, Head, ModelOutputs

_SHOWN = 6
_KEPT, _BLOCK = 1 << 14, 1 << 20
_FEWEST = 10
"""Rows that must be comparable before a share is named."""


def class_order(expected: Sequence[str] | None, found: Sequence[str] | None, source: str) -> IntArray | None:
    """Which columns to take, in which order; None where the columns are right as they are or nothing names them.

    ``found`` are the names of the columns of the table ``source``. Columns whose class nobody expects are left out; a
    class without a column raises. ``expected`` of None counts as 0, 1, ... where ``found`` has the same numbers.

    Examples
    --------
    >>> class_order(["cat", "dog"], ["dog", "owl", "cat"], "a.csv")
    array([2, 0])
    >>> class_order(["cat", "dog"], ["cat", "dog"], "a.csv") is None
    True
    """
    if found is None:
        return None
    if expected is None:
        expected = [str(i) for i in range(len(found))]
        if sorted(found) != sorted(expected):
            return None  # names that nobody else has
    if list(expected) == list(found):
        return None
    place = {name: i for i, name in enumerate(found)}
    missing = [name for name in expected if name not in place]
    if missing:
        unknown = [name for name in found if name not in set(expected)]
        raise InvalidInput(
            f"{source} has no column of logits for {_listed(missing)}; columns are matched by the names of the "
            f"classes, and it has {_listed(unknown or found)} instead. Rename the columns, or name all of them "
            "logit_0, logit_1, ... where they are the same classes in the same order."
        )
    return np.array([place[name] for name in expected], dtype=np.int64)


def shared_names(named: Iterable[tuple[str, Sequence[str] | None]]) -> tuple[str, ...] | None:
    """The names of the classes that several detectors have, each given with what to call it; None where none has any.

    Two orders raise: columns can be matched to one of them only.

    Examples
    --------
    >>> shared_names([("a", None), ("b", ["cat", "dog"]), ("c", ["cat", "dog"])])
    ('cat', 'dog')
    """
    found: tuple[str, tuple[str, ...]] | None = None
    for who, names in named:
        if names is None:
            continue
        if found is not None and found[1] != tuple(names):
            raise InvalidInput(
                f"the classes of {found[0]} are {_listed(found[1])}, and those of {who} {_listed(tuple(names))}: the "
                "columns of logits cannot be in both orders. Compare them one after the other."
            )
        found = who, tuple(names)
    return None if found is None else found[1]


def in_class_order(outputs: ModelOutputs, order: IntArray) -> ModelOutputs:
    """The same outputs with other columns of logits, and labels and head that go with them; unknown labels are -1.

    Examples
    --------
    >>> turned = in_class_order(ModelOutputs([[1.0, 2.0, 3.0]], labels=[2]), np.array([2, 0]))
    >>> turned.logits.tolist(), turned.labels.tolist()
    ([[3.0, 1.0]], [0])
    """
    changes: dict[str, object] = {}
    if outputs.get(LOGITS) is not None:
        changes[LOGITS] = np.take(outputs.logits, order, axis=1)  # a row stays in one place in memory
    if outputs.labels is not None:
        places = np.full(max(outputs.n_classes, int(order.max()) + 1), -1, np.int64)
        places[order] = np.arange(order.size)
        changes["labels"] = np.where(outputs.labels >= 0, places[outputs.labels], -1)
    if outputs.head is not None:
        changes["head"] = Head(outputs.head.weight[order], outputs.head.bias[order])
    return outputs.replace(**changes)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


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
