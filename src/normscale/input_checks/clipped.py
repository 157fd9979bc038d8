"""Logits that were cut off at a largest or a smallest value."""

from __future__ import annotations

import numpy as np

from normscale._validate import Rows, finite_row_mask

_FEWEST = 100
"""Rows needed to say anything."""
_SHARE = 0.01
"""Of all numbers, that may be equal to the largest or the smallest without suspicion."""
_TIMES = 2
"""So many times more often than the next value: of rounded numbers the outermost are the rarest."""


def clipped(logits: Rows) -> str | None:
    """Say at which value logits were cut off; None if they look whole.

    They were if more than one number in a hundred equals the largest or the smallest, and that many more do than equal
    the next. Columns that never change are left out: they are classes that somebody masked.

    Parameters
    ----------
    logits : array of shape (n, C)

    Examples
    --------
    >>> logits = 5.0 * np.random.default_rng(0).normal(size=(200, 4))
    >>> clipped(np.clip(logits, -30.0, 6.0))
    '11.9 % of the numbers are exactly 6, the largest of all'
    >>> clipped(logits) is None
    True
    """
    rows = logits[finite_row_mask(logits)]
    if len(rows) <= _FEWEST:
        return None
    values = rows[:, (rows != rows[0]).any(axis=0)].ravel()
    for name, extreme in (("largest", np.max), ("smallest", np.min)):
        if not values.size:
            break
        end = extreme(values)
        at_end = values == end
        count, rest = int(at_end.sum()), values[~at_end]
        if count <= _SHARE * values.size:
            continue
        if not rest.size or count > _TIMES * int((rest == extreme(rest)).sum()):
            return f"{100 * count / values.size:.1f} % of the numbers are exactly {end:g}, the {name} of all"
    return None
