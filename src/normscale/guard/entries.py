"""The journal's entries: one for each block of rows that was answered, and one for each decision."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale import _kernels, _validate
from normscale._kernels import BlockState
from normscale._validate import BoolArray, FloatArray, IntArray, Rows

ROWS, ASIDE = "rows", "aside"
"""Rows that the statistics took in; rows that were answered and recorded only."""
FREEZE, THAW, THRESHOLD, RESET, TAKE_IN, DISCARD = "freeze", "thaw", "threshold", "reset", "take-in", "discard"
"""Decisions."""

_SEEN = np.dtype([("score", "<f4"), ("predicted", "<i4"), ("row", "<i4"), ("flagged", "?"), ("sampled", "?")])
_SAMPLE = 48  # rows of a block that are kept for people
_FLAGGED = 8  # of a large block: flagged ones that are kept besides
_LARGEST_SINGLE = 3e38  # what single precision holds
LARGEST = 1e100
"""No logit may be larger: its square, summed over any number of rows, must stay finite."""


class Entry(NamedTuple):
    """One line of the journal. Arrays are little-endian bytes, as the store keeps them; empty where there are none."""

    seq: int
    at: float
    """Seconds since 1970, never going back."""
    kind: str
    client: str = ""
    rows: int = 0
    flagged: int = 0
    predicted: bytes = b""
    """(C,) int64: how many rows were predicted as each class."""
    mean: bytes = b""
    """(C,) float64 mean of the block's logits."""
    m2: bytes = b""
    """(C,) float64 sum of squared deviations from it."""
    learned: bytes = b""
    """The rows themselves, for a detector whose statistics depend on their order."""
    glimpse: bytes = b""
    """A sample of the scores, for people."""
    note: str = ""
    """JSON: the alarms at that time, the cause of setting aside, the reason of a decision."""

    @property
    def block(self) -> BlockState:
        """The block's own moments."""
        return BlockState(float(self.rows), np.frombuffer(self.mean), np.frombuffer(self.m2))


def block_moments(rows: Rows) -> BlockState:
    """Moments of a block of rows by themselves, or :class:`InvalidInput` for numbers not finite, or too large."""
    width = rows.shape[1]
    if rows.shape[0] == 1:
        row = rows[0].astype(np.float64)
        if not np.abs(row).max() <= LARGEST:  # NaN fails too
            raise _validate.invalid_row_error(rows, "logits")
        return BlockState(1.0, row, np.zeros(width))
    state = _kernels.absorb(rows, 0.0, np.zeros(width), np.zeros(width))
    # No number lies farther from the mean than sqrt(M2): only where that is much, the numbers themselves are looked at.
    if state is None or (np.abs(state.mean).max() + np.sqrt(state.m2.max()) > LARGEST and np.abs(rows).max() > LARGEST):
        raise _validate.invalid_row_error(rows, "logits")
    return state


def glimpse(
    scores: FloatArray,
    predicted: IntArray,
    flagged: BoolArray,
    beginnings: IntArray | None,
    places: IntArray | None = None,
) -> bytes:
    """A sample of a block for people: evenly spread rows and the first flagged ones; all rows of a small block.

    ``beginnings`` says where in the block each request begins (None: each is one row), ``places`` which of the block's
    rows these are (None: all).
    """
    n = scores.size
    chosen, even = np.arange(min(n, _SAMPLE)), min(n, _SAMPLE)
    if n > _SAMPLE:
        chosen = np.concatenate([chosen * (n - 1) // (even - 1), np.flatnonzero(flagged)[:_FLAGGED]])
    seen = np.empty(chosen.size, _SEEN)
    seen["score"] = np.clip(scores[chosen], -_LARGEST_SINGLE, _LARGEST_SINGLE)
    seen["predicted"] = predicted[chosen]
    seen["row"] = 0
    if beginnings is not None:
        place = chosen if places is None else places[chosen]
        seen["row"] = place - beginnings[np.searchsorted(beginnings, place, side="right") - 1]
    seen["flagged"] = flagged[chosen]
    seen["sampled"] = False
    seen["sampled"][:even] = True
    return seen.tobytes()


def seen_in(sample: bytes) -> NDArray[np.void]:
    """A glimpse as records of score, predicted, row, flagged, and whether it was chosen without regard to that."""
    return np.frombuffer(sample, _SEEN)
