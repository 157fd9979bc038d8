"""The running statistics of a guard: a detector, and a state that is never changed. A block of rows makes a new one.

So a transaction that fails is undone by forgetting what it made. Nothing here knows a detector.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale._kernels import BlockState
from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.guard.policy import Policy
from normscale.moments import RunningMoments
from normscale.outputs import ModelOutputs
from normscale.state import copied, record_arrays

Tensors = dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Statistics:
    """Statistics at one moment.

    Where a detector's state is moments of the logits, training counts as ``prior`` rows in it. Once it weighs twice as
    much, that is halved: so the past is forgotten again. Other states cannot be made to weigh less, and what they learn
    from a stream's first rows may count for much: so those rows are on probation.
    """

    detector: Detector
    widths: Mapping[str, int]
    running: bool = False
    state: Any = None
    prior: float = math.inf
    probation: float = 0.0
    """How many rows the stream must have taught before its scores are answered; until then they are only counted."""

    def step(self, outputs: ModelOutputs) -> tuple[FloatArray, Statistics]:
        """Scores of rows as they are taken in one by one, and the statistics after them."""
        rows, state, scores = outputs.only(*self.widths), self.state, []
        for part in self._parts(len(rows)):
            own = copied(state) if self.detector._in_place else state
            prepared = self.detector._prepare(rows if part is None else rows[part], 1)
            some, state = self.detector._step(own, prepared, 1)
            scores.append(some)
            state = self._halved(state)
        return scores[0] if len(scores) == 1 else np.concatenate(scores), replace(self, state=state)

    def _parts(self, n_rows: int) -> Iterator[slice | None]:
        """Rows up to each one that makes it due to forget, so that any split of a stream gives the same; None: all."""
        if math.isinf(self.prior):
            yield None
            return
        weight, first = self.block_state().weight, 0
        while first < n_rows:
            room = 2.0 * self.prior - weight
            last = n_rows if room >= n_rows - first else first + max(1, math.ceil(room))
            yield None if last - first == n_rows else slice(first, last)
            weight, first = self.prior if last - first >= room else weight + last - first, last

    def _halved(self, state: Any) -> Any:
        if math.isinf(self.prior) or self.block_state(state).weight < 2.0 * self.prior:
            return state
        return self.detector._of_moments(RunningMoments.wrap(self.block_state(state)).reweighted(self.prior).state)

    def score(self, outputs: ModelOutputs) -> FloatArray:
        """Score rows by the statistics as they are."""
        rows = outputs.only(*self.widths)
        return self.detector._score_at(self.state, rows, 1) if self.running else self.detector._score(rows, 1)

    def block_state(self, state: Any = None) -> BlockState:
        """The moments that a state is, by default that at this moment; only where :attr:`moments` are known."""
        moments = self.detector._moments(self.state if state is None else state)
        assert moments is not None
        return moments

    @property
    def moments(self) -> RunningMoments | None:
        """Running moments of the logits, where these are what is kept."""
        moments = self.detector._moments(self.state) if self.running else None
        return None if moments is None else RunningMoments.wrap(moments)

    def tensors(self) -> Tensors:
        """What the store keeps."""
        return record_arrays(self.state) if self.running else {}

    def restored(self, tensors: Tensors) -> Statistics:
        """Read them back; where training counted as fewer rows then, it gets the rest."""
        if not self.running:
            return self
        state = self.detector._read_state(tensors, "")
        missing = 0.0 if math.isinf(self.prior) else self.prior - self.block_state(state).weight
        if missing > 0.0:
            training = RunningMoments.wrap(self.block_state()).reweighted(missing)
            state = self.detector._of_moments(training.merge(RunningMoments.wrap(self.block_state(state))).state)
        return replace(self, state=state)


def statistics_of(detector: Detector, widths: Mapping[str, int], policy: Policy) -> Statistics:
    """The statistics that a detector starts with; where the stream is not trusted, its first rows decide nothing."""
    own = copy.copy(detector)
    if not own.has_running_statistics:
        return Statistics(own, widths)
    at_start = Statistics(own, widths, True, own._current())
    if policy.trusting:
        return at_start
    if at_start.moments is None:
        return replace(at_start, probation=policy.evidence)
    training = at_start.moments.reweighted(policy.prior).state
    return replace(at_start, state=own._of_moments(training), prior=policy.prior)
