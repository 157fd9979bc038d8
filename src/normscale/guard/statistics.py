"""The running statistics of a guard: a detector, and a state that is never changed. A block of rows makes a new one.

So a transaction that fails is undone by forgetting what it made. Nothing here knows a detector: statistics are what
:meth:`~normscale.detectors.base.Detector.start` and :meth:`~normscale.detectors.base.Detector.step` give.
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
from normscale._validate import FloatArray, Rows
from normscale.detectors.base import Detector
from normscale.detectors.formula import offered_moments
from normscale.errors import InvalidInput
from normscale.guard.policy import Policy
from normscale.moments import RunningMoments
from normscale.outputs import ModelOutputs
from normscale.scaling import norm_scale, norm_scale_stream
from normscale.state import record_arrays

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
    state: Any = None
    prior: float = math.inf
    probation: float = 0.0
    """How many rows the stream must have taught before its scores are answered; until then they are only counted."""

    @property
    def running(self) -> bool:
        """Whether they change with the stream."""
        return self.detector.has_running_statistics

    def step(self, outputs: ModelOutputs) -> tuple[FloatArray, Statistics]:
        """Scores of rows as they are taken in one by one, and the statistics after them."""
        rows = outputs.only(*self.widths)
        if math.isinf(self.prior):
            scores, state = self.detector.step(self.state, rows)
            return scores, replace(self, state=state)
        scores, state = np.empty(len(rows)), self.state
        for part in self._parts(len(rows)):
            scores[part], state = self.detector.step(state, rows[part])
            state = self._halved(state)
        return scores, replace(self, state=state)

    def _parts(self, n_rows: int) -> Iterator[slice]:
        """Rows up to each one that makes it due to forget, so that any split of a stream gives the same."""
        weight, first = self._moments(self.state).weight, 0
        while first < n_rows:
            room = 2.0 * self.prior - weight
            last = n_rows if room >= n_rows - first else first + max(1, math.ceil(room))
            yield slice(first, last)
            weight, first = self.prior if last - first >= room else weight + last - first, last

    def _halved(self, state: Any) -> Any:
        moments = RunningMoments.wrap(self._moments(state))
        heavy = moments.weight >= 2.0 * self.prior
        return self.detector._of_moments(moments.reweighted(self.prior).state) if heavy else state

    def _moments(self, state: Any) -> BlockState:
        moments = self.detector._moments(state)
        assert moments is not None  # a prior is given to no other detector
        return moments

    def score(self, outputs: ModelOutputs) -> FloatArray:
        """Score rows by the statistics as they are."""
        return self.detector.score(outputs.only(*self.widths), state=self.state)

    def pack_rows(self, outputs: ModelOutputs) -> bytes:
        """What must be kept of quarantined rows, besides their moments, to accept them some day."""
        if not self.running or self.moments is not None:
            return b""
        return b"".join(outputs.array(name).astype("<f8").tobytes() for name in self.widths)

    def accept(self, moments: BlockState, packed_rows: bytes) -> Statistics:
        """Take quarantined rows in: their moments, and what :meth:`pack_rows` kept of them."""
        if not self.running:
            return self
        if self.moments is not None:
            merged = self.detector.merge(self.state, self.detector._of_moments(moments))
            return replace(self, state=self._halved(merged))
        n, place, arrays = int(moments.weight), 0, {}
        for name, width in self.widths.items():
            arrays[name] = np.frombuffer(packed_rows, "<f8", n * width, place).reshape(n, width).copy()
            place += 8 * n * width
        return self.step(ModelOutputs._trusted(arrays))[1]

    def scaled(self, logits: Rows, *, taking_in: bool) -> FloatArray:
        """The scaled logits (n, C) behind the scores of ``step`` or ``score``."""
        formula = offered_moments(self.detector)
        if formula is None:
            raise InvalidInput("this detector does not scale logits; ask without scaled=true.")
        moments = self.moments or RunningMoments.wrap(formula.state)
        if not taking_in:
            return norm_scale(logits, moments, formula.temperature)
        scaled, state = np.empty(logits.shape), self.state
        for part in self._parts(len(logits)) if self.prior < math.inf else (slice(None),):
            now = RunningMoments.wrap(self._moments(state))
            scaled[part] = norm_scale_stream(logits[part], now, formula.temperature)
            state = self._halved(self.detector.step(state, ModelOutputs(logits[part]))[1])
        return scaled

    @property
    def moments(self) -> RunningMoments | None:
        """Running moments of the logits, where these are what is kept."""
        moments = self.detector._moments(self.state) if self.running else None
        return None if moments is None else RunningMoments.wrap(moments)

    def of_moments(self, moments: BlockState) -> Statistics:
        """The same with other moments, where these are what is kept."""
        return replace(self, state=self.detector._of_moments(moments))

    def tensors(self) -> Tensors:
        """What the store keeps."""
        return record_arrays(self.state) if self.running else {}

    def restored(self, tensors: Tensors) -> Statistics:
        """Read them back."""
        if not self.running:
            return self
        return replace(self, state=self._of_prior(self.detector._read_state(tensors, "")))

    def _of_prior(self, state: Any) -> Any:
        """A state that was written where training may have counted as fewer rows."""
        missing = 0.0 if math.isinf(self.prior) else self.prior - self._moments(state).weight
        if missing <= 0.0:
            return state
        training = RunningMoments.wrap(self._moments(self.state)).reweighted(missing)
        return self.detector._of_moments(training.merge(RunningMoments.wrap(self._moments(state))).state)


def statistics_of(detector: Detector, widths: Mapping[str, int], policy: Policy) -> Statistics:
    """The statistics that a detector starts with; where the stream is not trusted, its first rows decide nothing.

    The detector itself is left alone.
    """
    own = copy.copy(detector)
    own.warns_of_far_rows = False  # a guard has its own readings of outliers
    if not own.has_running_statistics:
        return Statistics(own, widths)
    state = own._current()
    moments = own._moments(state)
    if policy.trusting or moments is None:
        return Statistics(own, widths, state, probation=0.0 if policy.trusting else policy.evidence)
    training = RunningMoments.wrap(moments).reweighted(policy.prior).state
    return Statistics(own, widths, own._of_moments(training), policy.prior)
