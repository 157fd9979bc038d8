"""A block of rows, and what is known of them before they are scored."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from normscale import _kernels
from normscale._kernels import BlockState
from normscale._validate import BoolArray, FloatArray, IntArray
from normscale.guard.accepted_numbers import block_moments
from normscale.guard.drift import DriftMonitor
from normscale.outputs import ModelOutputs


class Block(NamedTuple):
    """Some rows."""

    outputs: ModelOutputs
    moments: BlockState
    predicted: IntArray
    distances: FloatArray | None
    """(n,) from training; None: none is far."""

    @classmethod
    def of(cls, outputs: ModelOutputs, drift: DriftMonitor) -> Block:
        """Look at rows, or refuse their numbers (:class:`InvalidInput`)."""
        logits = outputs.logits
        return cls(outputs, block_moments(logits), _kernels.predicted(logits), drift.distances(outputs))

    def far(self, limit: float) -> BoolArray | None:
        """Which rows lie farther from training than a limit; None: none of them."""
        return None if self.distances is None else self.distances > limit

    def may_be_taken_in(self, limit: float, room: int | None) -> BoolArray | None:
        """Which rows are near enough, and the first of them for whom there is room; None: all."""
        far, n = self.far(limit), len(self.outputs)
        may = np.ones(n, np.bool_) if far is None else ~far
        if room is not None:
            may[np.flatnonzero(may)[room:]] = False
        return None if may.all() else may

    def part(self, mask: BoolArray) -> Block:
        """Some of the rows."""
        if mask.all():
            return self
        outputs = self.outputs[mask]
        distances = None if self.distances is None else self.distances[mask]
        return Block(outputs, block_moments(outputs.logits), self.predicted[mask], distances)
