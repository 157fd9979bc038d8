"""Columns among the logits that are none: labels, row numbers; and rows and columns that changed places."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from normscale._validate import Rows

_FEWEST = 20
"""Rows below which whole numbers may be chance."""
_FEWEST_TO_COMPARE, _MORE_SPREAD = 50, 0.12
"""Of honest tables of noise with so many rows the columns never had so much more of the largest numbers."""


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


def looks_transposed(n_rows: int, n_columns: int, some_rows: Rows | None = None) -> bool:
    """Whether logits for training look as if rows and columns changed places.

    That is so where there are few rows and very many columns. Where there are only more columns than rows, the numbers
    must say so too. Every input has one large logit, while some classes have several inputs and others none: of the
    n largest numbers of n inputs nearly each is another input's, and of the C largest several are one class's.

    Parameters
    ----------
    n_rows, n_columns : int
        Of the whole table.
    some_rows : array of shape (n, n_columns), optional
        Its rows, or many of them; without these only the shape is looked at.

    Examples
    --------
    >>> looks_transposed(10, 50_000), looks_transposed(500, 1000)
    (True, False)
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(200, 60)) + 9 * np.eye(60)[rng.integers(0, 60, 200)]
    >>> looks_transposed(60, 200, logits.T), looks_transposed(50, 60, logits[:50])
    (True, False)
    """
    if n_rows < 2 or n_columns <= n_rows:
        return False
    if n_columns > 4 * n_rows:
        return True
    if some_rows is None or len(some_rows) < _FEWEST_TO_COMPARE:
        return False
    values = np.asarray(some_rows, dtype=np.float64)
    if not np.isfinite(values).all():
        return False
    for axis in (1, 0):  # neither an input nor a class is to have all large numbers
        values = values - values.mean(axis=axis, keepdims=True)
        values /= np.maximum(values.std(axis=axis, keepdims=True), np.finfo(np.float64).tiny)
    return _spread_of_largest(values.T) > _spread_of_largest(values) + _MORE_SPREAD


def _spread_of_largest(rows: Rows) -> float:
    """The share of rows that have some of the n largest numbers, n being the number of rows."""
    n_rows, n_columns = rows.shape
    largest = np.argpartition(rows, rows.size - n_rows, axis=None)[-n_rows:]
    share: float = np.unique(largest // n_columns).size / n_rows
    return share
