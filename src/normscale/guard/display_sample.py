"""A few rows of every block, kept in the journal so that people can see scores on the page."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from normscale._validate import BoolArray, FloatArray, IntArray

_RECORD = np.dtype([("score", "<f4"), ("predicted", "<i4"), ("row", "<i4"), ("flagged", "?"), ("sampled", "?")])
_MOST_ROWS = 48
_MOST_FLAGGED = 8  # of a large block: flagged rows that are kept besides
_LARGEST_SINGLE = 3e38  # what single precision holds


def sample_for_display(
    scores: FloatArray, predicted: IntArray, flagged: BoolArray, request_starts: IntArray, places: IntArray
) -> bytes:
    """Choose evenly spread rows and the first flagged ones; all rows of a small block.

    ``request_starts`` says where in the block each request begins, ``places`` which of the block's rows these are.
    """
    n = scores.size
    chosen, even = np.arange(min(n, _MOST_ROWS)), min(n, _MOST_ROWS)
    if n > _MOST_ROWS:
        chosen = np.concatenate([chosen * (n - 1) // (even - 1), np.flatnonzero(flagged)[:_MOST_FLAGGED]])
    records = np.empty(chosen.size, _RECORD)
    records["score"] = np.clip(scores[chosen], -_LARGEST_SINGLE, _LARGEST_SINGLE)
    records["predicted"] = predicted[chosen]
    place = places[chosen]
    records["row"] = place - request_starts[np.searchsorted(request_starts, place, side="right") - 1]
    records["flagged"] = flagged[chosen]
    records["sampled"] = False
    records["sampled"][:even] = True
    return records.tobytes()


def displayed_rows(sample: bytes) -> NDArray[np.void]:
    """Read a sample back: score, predicted, row, flagged, and whether it was chosen without regard to that."""
    return np.frombuffer(sample, _RECORD)
