"""Further columns of a table, such as an id or a time, that go with its rows to where the scores are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

KEPT = "keep:"
"""Before the name of such a column in a block of rows; no array can be called so."""
TEXT = np.dtype(object)
"""The dtype of a column of texts."""


def as_column(values: Sequence[Any], dtype: np.dtype[Any] | None = None) -> NDArray[Any]:
    """Values as numbers where all of them are, as texts otherwise; what is missing is an empty text.

    Examples
    --------
    >>> as_column([3, 4]).dtype.kind, as_column(["a", None, 2]).tolist()
    ('i', ['a', '', '2'])
    """
    if dtype is None:
        array = np.array(values) if all(type(value) in (int, float) for value in values) else np.empty(0, object)
        dtype = array.dtype if array.dtype.kind in "if" and array.size else TEXT
    if dtype != TEXT:
        try:
            numbers = np.array(values)
            if numbers.ndim == 1 and numbers.dtype.kind in "iuf" and np.can_cast(numbers.dtype, dtype):
                return numbers.astype(dtype)
            if dtype.kind == "f":
                return np.array([np.nan if value is None else float(value) for value in values], dtype)
        except (ValueError, OverflowError, TypeError):
            pass
        raise ValueError(f"these are not all {'numbers' if dtype.kind == 'f' else 'whole numbers of 64 bits'}")
    texts = np.empty(len(values), object)
    texts[:] = ["" if value is None else value if isinstance(value, str) else str(value) for value in values]
    return texts
