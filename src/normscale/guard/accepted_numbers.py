"""Which numbers a guard accepts, and the moments of a block of logits."""

from __future__ import annotations

import numpy as np

from normscale import _kernels, _validate
from normscale._kernels import BlockState
from normscale._validate import Rows

LARGEST = 1e100
"""No number may be larger: its square, summed over any number of rows, must stay finite."""


def block_moments(logits: Rows) -> BlockState:
    """Moments of a block of logits, or :class:`InvalidInput` for numbers that are not finite or too large."""
    width = logits.shape[1]
    if logits.shape[0] == 1:
        row = logits[0].astype(np.float64)
        if not np.abs(row).max() <= LARGEST:  # NaN fails too
            raise _validate.invalid_row_error(logits, "logits")
        return BlockState(1.0, row, np.zeros(width))
    state = _kernels.absorb(logits, 0.0, np.zeros(width), np.zeros(width))
    # No number lies farther from the mean than sqrt(M2): only where that is much, the numbers themselves are looked at.
    if state is None or (
        np.abs(state.mean).max() + np.sqrt(state.m2.max()) > LARGEST and np.abs(logits).max() > LARGEST
    ):
        raise _validate.invalid_row_error(logits, "logits")
    return state


def require_numbers(rows: Rows, name: str) -> None:
    """Refuse an array with numbers that are not finite or too large (:class:`InvalidInput`)."""
    if not max(-float(rows.min()), float(rows.max())) <= LARGEST:  # NaN fails too
        raise _validate.invalid_row_error(rows, name)
