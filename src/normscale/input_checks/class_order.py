"""Columns of logits matched by the names of their classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from normscale._validate import IntArray
from normscale.errors import InvalidInput
from normscale.outputs import LOGITS, Head, ModelOutputs

_SHOWN = 6


def class_order(expected: Sequence[str] | None, found: Sequence[str] | None, source: str) -> IntArray | None:
    """Which columns to take, in which order; None where the columns are right as they are or nothing names them.

    Columns whose class nobody expects are left out.

    Parameters
    ----------
    expected : sequence of str, optional
        Names of the classes of the detector, or of the first table. None counts as 0, 1, ... where ``found`` has the
        same numbers in another order.
    found : sequence of str, optional
        Names of the columns of the table ``source``.

    Raises
    ------
    InvalidInput
        When a class that is expected has no column.

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
        numbers = [str(i) for i in range(len(found))]
        if sorted(found) != sorted(numbers):
            return None  # names that nobody else has
        expected = numbers
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

    Raises
    ------
    InvalidInput
        When two have other classes, or the same in another order: columns can be matched to one of them only.

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
