"""Titles that tell runs apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def told_apart(titles: Sequence[str], *further: Sequence[str]) -> list[str]:
    """Titles, those that stand more than once with the first of further names that tells them apart.

    Examples
    --------
    >>> told_apart(["SVHN", "SVHN", "CIFAR-10"], ["small", "wide", "small"])
    ['SVHN (small)', 'SVHN (wide)', 'CIFAR-10']
    """
    found = list(titles)
    for names in further:
        often = Counter(found)
        found = [
            one if often[one] == 1 else f"{title} ({name})"
            for one, title, name in zip(found, titles, names, strict=True)
        ]
    return found
