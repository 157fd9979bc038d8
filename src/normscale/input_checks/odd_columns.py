"""Columns among the logits that are none: labels, row numbers; and rows and columns that changed places."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from normscale._validate import Rows

_FEWEST = 20
"""Rows below which whole numbers may be chance."""


def odd_column(logits: Rows, names: Sequence[str] | None = None) -> str | None:
    """Say which column of the logits is a label or a row number; None if every column may be a logit.

    A column is one if it holds nothing but whole numbers while others do not: numbers of classes, or numbers that
    count the rows.

    Parameters
    ----------
    logits : array of shape (n, C)
    names : sequence of str, optional
        Of the columns.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> odd_column(np.c_[rng.normal(size=(50, 3)), rng.integers(0, 3, 50)])
    'column 3 holds nothing but the whole numbers 0 to 2, and the others do not, so it looks like the label'
    >>> odd_column(rng.normal(size=(50, 3))) is None
    True
    """
    n_rows, n_columns = logits.shape
    if n_rows < _FEWEST or n_columns < 3 or logits.dtype.kind != "f":
        return None
    head = np.asarray(logits[:_FEWEST])
    with np.errstate(invalid="ignore"):
        whole = (head == np.floor(head)).all(axis=0)
    if not whole.any() or whole.all():
        return None
    for column in np.flatnonzero(whole).tolist():
        values = np.asarray(logits[:, column], dtype=np.float64)
        if not np.isfinite(values).all() or (values != np.floor(values)).any():
            continue
        shown = f"column {column}" + (f" ({names[column]!r})" if names is not None else "")
        if (np.diff(values) == 1.0).all():
            return f"{shown} counts the rows from {values[0]:g} to {values[-1]:g}, so it looks like a row number"
        low, high = values.min(), values.max()
        if low >= -1.0 and low < high <= n_columns - 1 and np.unique(values[:1000]).size > 1:
            return (
                f"{shown} holds nothing but the whole numbers {low:g} to {high:g}, and the others do not, so it looks "
                "like the label"
            )
    return None


def looks_transposed(n_rows: int, n_columns: int) -> bool:
    """Whether logits for training have so few rows and so many columns that the two probably changed places.

    Examples
    --------
    >>> looks_transposed(10, 50_000), looks_transposed(500, 1000)
    (True, False)
    """
    return n_columns > 4 * n_rows and n_rows >= 2
