"""What a guard is asked, and what it says: the rows of one request, and a verdict on them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from normscale._validate import BoolArray, FloatArray, IntArray
from normscale.outputs import ModelOutputs
from normscale.state import Kind, pack_state, unpack_state

STORED = Kind("normscale_verdict", "verdict", "", "it is of no use any more.")


class Mode(StrEnum):
    """By which statistics rows are scored."""

    RUNNING = "running"
    """Statistics that take the stream in."""
    FROZEN = "frozen"
    """The detector file's, while nothing is taken in."""
    STATIC = "static"
    """The detector has no running statistics."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one request, row by row in its order."""

    scores: FloatArray
    """(n,) higher = more out-of-distribution."""
    is_ood: BoolArray
    """(n,)"""
    predicted: IntArray
    """(n,) the class with the largest logit."""
    mode: str
    """One of :class:`Mode`."""
    taken_in: int
    """How many of the rows are in the running statistics now; the others are quarantined."""
    alarms: tuple[str, ...] = ()
    """The drift readings that were beyond their limits at that time."""
    rows: int = 0
    """How many rows are in the statistics after this request's group of requests."""
    scaled: FloatArray | None = None
    """(n, C) the scaled logits, for a request that wanted them."""
    repeated: bool = False
    """Whether this was the answer to an earlier request with the same key."""

    def pack(self) -> bytes:
        """Write it as bytes, for a retry of the same request."""
        header = {"mode": self.mode, "taken_in": self.taken_in, "alarms": self.alarms, "rows": self.rows}
        tensors = {"scores": self.scores, "is_ood": self.is_ood, "predicted": self.predicted}
        if self.scaled is not None:
            tensors["scaled"] = self.scaled
        return pack_state(header, tensors, STORED)

    @classmethod
    def unpack(cls, data: bytes) -> Verdict:
        """Read the verdict of an earlier request, marked as repeated."""
        header, tensors = unpack_state(data, STORED)
        fields: dict[str, Any] = {name: header[name] for name in ("mode", "taken_in", "rows")} | tensors
        fields["is_ood"] = tensors["is_ood"].astype(np.bool_, copy=False)
        return cls(**fields, alarms=tuple(header["alarms"]), repeated=True)


@dataclass(frozen=True, slots=True)
class Request:
    """Rows of one client, to be taken in together."""

    outputs: ModelOutputs
    """At least one row; :meth:`Guard.acceptable` says what else."""
    client: str = "local"
    key: str | None = None
    """A retry with the same key is answered as the first time, and counted once."""
    digest: bytes = b""
    """Of what the client sent: the same key with other rows is an error."""
    scaled: bool = False
    """Whether the scaled logits are wanted."""
    given: Verdict | None = None
    """What the serving guard answered, where this is for its shadow."""
