"""Which rows belong to each class, with one sort for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray


def members_of_each(classes: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Every class that occurs in ``classes`` (n,), in order, with its rows, in order.

    Examples
    --------
    >>> [(c, rows.tolist()) for c, rows in members_of_each(np.array([2, 0, 2]))]
    [(0, [1]), (2, [0, 2])]
    """
    order = np.argsort(classes, kind="stable")
    found, starts = np.unique(classes[order], return_index=True)
    return zip(found.tolist(), np.split(order, starts[1:]), strict=False)  # no rows: no class, and one empty part
