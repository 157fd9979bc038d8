"""What a guard says about the rows of one request."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from normscale._validate import BoolArray, FloatArray, IntArray
from normscale.state import Kind, pack_state, unpack_state

RUNNING, FROZEN, STATIC = "running", "frozen", "static"
"""Scored by statistics that take the stream in; by those of the guard file; or by a detector that has none."""

STORED = Kind("normscale_verdict", "verdict", "", "it is of no use any more.")


class Verdict(NamedTuple):
    """One answer, row by row in the order of the request."""

    scores: FloatArray
    """(n,) higher = more out-of-distribution."""
    is_ood: BoolArray
    """(n,)"""
    predicted: IntArray
    """(n,) the classifier's answer."""
    mode: str
    """:data:`RUNNING`, :data:`FROZEN` or :data:`STATIC`."""
    taken_in: int
    """How many of the rows are in the running statistics now; the others are set aside."""
    alarms: tuple[str, ...] = ()
    """The kinds of drift that were alarming at that time."""
    rows: int = 0
    """How many rows are in the statistics after this request's group of requests."""
    scaled: FloatArray | None = None
    """(n, C) the scaled logits, for a request that wanted them."""
    repeated: bool = False
    """Whether this was the answer to an earlier request with the same key."""

    def pack(self) -> bytes:
        """The verdict as bytes, for a retry of the same request."""
        header = {"mode": self.mode, "taken_in": self.taken_in, "alarms": self.alarms, "rows": self.rows}
        tensors = {"scores": self.scores, "is_ood": self.is_ood, "predicted": self.predicted}
        if self.scaled is not None:
            tensors["scaled"] = self.scaled
        return pack_state(header, tensors, STORED)

    @classmethod
    def unpack(cls, data: bytes) -> Verdict:
        """The verdict of an earlier request, marked as repeated."""
        header, tensors = unpack_state(data, STORED)
        return cls(
            tensors["scores"],
            tensors["is_ood"].astype(np.bool_, copy=False),
            tensors["predicted"],
            header["mode"],
            header["taken_in"],
            tuple(header["alarms"]),
            header["rows"],
            tensors.get("scaled"),
            repeated=True,
        )
