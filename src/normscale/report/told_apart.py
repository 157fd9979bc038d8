"""Titles that tell runs apart."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path


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


def folder_names(folders: Sequence[str | os.PathLike[str]]) -> tuple[list[str], list[str]]:
    """What folders are called, and for those of one name in different places where they are."""
    return [Path(folder).resolve().name for folder in folders], [os.fspath(folder) for folder in folders]
