"""The journal's entries: one for each block of rows that was answered, and one for each decision."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import numpy as np

from normscale import _kernels, _validate
from normscale._kernels import BlockState
from normscale._validate import Rows

LARGEST = 1e100
"""No number may be larger: its square, summed over any number of rows, must stay finite."""


class Event(StrEnum):
    """What an entry tells of."""

    ROWS = "rows"
    """Rows that the statistics took in."""
    QUARANTINE = "quarantine"
    """Rows that were answered and kept out of the statistics."""
    FREEZE = "freeze"
    THAW = "thaw"
    THRESHOLD = "threshold"
    RESET = "reset"
    ACCEPT = "accept"
    """Quarantined rows were taken in."""
    DISCARD = "discard"
    """Quarantined rows were dropped."""


class Entry(NamedTuple):
    """One line of the journal. Arrays are little-endian bytes, as the store keeps them; empty where there are none."""

    seq: int
    at: float
    """Seconds since 1970, never going back."""
    event: str
    client: str = ""
    rows: int = 0
    flagged: int = 0
    predicted: bytes = b""
    """(C,) int64: how many rows were predicted as each class."""
    mean: bytes = b""
    """(C,) float64 mean of the block's logits."""
    m2: bytes = b""
    """(C,) float64 sum of squared deviations from it."""
    replay_rows: bytes = b""
    """The rows themselves, for a detector whose statistics depend on their order."""
    display_sample: bytes = b""
    """A sample of the scores, for people."""
    note: str = ""
    """JSON: the alarms at that time, the cause of a quarantine, the reason of a decision."""

    @property
    def block(self) -> BlockState:
        """Moments of the block's logits alone."""
        return BlockState(float(self.rows), np.frombuffer(self.mean), np.frombuffer(self.m2))


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
