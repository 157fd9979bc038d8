"""Merge what pieces tell as a tree whose shape depends on their number alone, so that it always gives the same bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Value = TypeVar("Value")


class MergeTree(Generic[Value]):
    """Values with a place each, merged two neighbours at a time as soon as both are there.

    On level 0 are the values; places 2i and 2i + 1 of a level make place i of the next; the last of an odd number goes
    up as it is.

    Examples
    --------
    >>> tree = MergeTree(5, lambda a, b: f"({a}{b})")
    >>> for place in (4, 0, 3, 2, 1):
    ...     tree.put(place, "abcde"[place])
    >>> tree.total()
    '(((ab)(cd))e)'
    """

    def __init__(self, n: int, merge: Callable[[Value, Value], Value]) -> None:
        """Expect ``n`` values."""
        self._merge = merge
        self._sizes = [n]
        while self._sizes[-1] > 1:
            self._sizes.append((self._sizes[-1] + 1) // 2)
        self._waiting: dict[tuple[int, int], Value] = {}

    def put(self, place: int, value: Value, level: int = 0) -> None:
        """Take a value in; ``level`` is that of a subtree which was merged elsewhere."""
        while level < len(self._sizes) - 1:
            sibling = place ^ 1
            if sibling < self._sizes[level]:
                other = self._waiting.pop((level, sibling), None)
                if other is None:
                    break
                value = self._merge(value, other) if place < sibling else self._merge(other, value)
            place, level = place // 2, level + 1
        self._waiting[level, place] = value

    def total(self) -> Value:
        """All values merged, once every one was put in."""
        return self._waiting[len(self._sizes) - 1, 0]


def merged(values: Sequence[Value], merge: Callable[[Value, Value], Value]) -> Value:
    """Merge values that are all there, at least one."""
    tree = MergeTree(len(values), merge)
    for place, value in enumerate(values):
        tree.put(place, value)
    return tree.total()


def subtree_level(n: int, tasks: int) -> int:
    """How many levels of the tree a task may merge by itself so that there are still about ``tasks`` of them.

    Examples
    --------
    >>> subtree_level(1000, 64), subtree_level(10, 64)
    (3, 0)
    """
    level = 0
    while n >> (level + 1) >= tasks:
        level += 1
    return level
