"""The running statistics of a guard, as values that are never changed: a block of rows makes new ones.

So a transaction that fails is undone by forgetting what it made. Three kinds of detectors are told apart by what they
say about themselves:

* running statistics that are nothing but moments of the logits: rows, and quarantined rows, are kept as moments;
* other running statistics, which may depend on the order of the rows: the detector itself is asked;
* none: nothing is taken in.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from normscale import _kernels, _validate
from normscale._kernels import KINDS, BlockState
from normscale._validate import FloatArray, Rows
from normscale.detectors.base import Detector, Setting
from normscale.detectors.formula import MomentFormula, offered_moments
from normscale.errors import InvalidInput
from normscale.guard.policy import Policy
from normscale.moments import RunningMoments
from normscale.outputs import ModelOutputs
from normscale.scaling import norm_scale, norm_scaled_scores

Tensors = dict[str, NDArray[Any]]


class Statistics(ABC):
    """Statistics at one moment."""

    running: ClassVar[bool] = True
    """Whether they change with the stream."""
    probation: float = 0.0
    """How many rows the stream must have taught before its scores are answered; until then they are only counted."""

    @abstractmethod
    def step(self, outputs: ModelOutputs) -> tuple[FloatArray, Statistics]:
        """Scores of rows as they are taken in one by one, and the statistics after them."""

    @abstractmethod
    def score(self, outputs: ModelOutputs) -> FloatArray:
        """Score rows by the statistics as they are."""

    def accept(self, moments: BlockState, packed_rows: bytes) -> Statistics:
        """Take quarantined rows in: their moments, and what :meth:`pack_rows` kept of them."""
        return self

    def pack_rows(self, outputs: ModelOutputs) -> bytes:
        """What must be kept of quarantined rows, besides their moments, to accept them some day."""
        return b""

    def scaled(self, logits: Rows, *, taking_in: bool) -> FloatArray:
        """The scaled logits (n, C) behind the scores of ``step`` or ``score``."""
        raise InvalidInput("this detector does not scale logits; ask without scaled=true.")

    @property
    def moments(self) -> RunningMoments | None:
        """Running moments of the logits, where these are what is kept."""
        return None

    def tensors(self) -> Tensors:
        """What the store keeps."""
        return {}

    def restored(self, tensors: Tensors) -> Statistics:
        """Read them back."""
        return self


@dataclass(frozen=True, eq=False)
class MomentStatistics(Statistics):
    """Moments of the logits. Once they weigh twice ``prior`` rows, that is halved: so the past is forgotten again."""

    formula: MomentFormula
    state: BlockState
    prior: float = math.inf

    def step(self, outputs: ModelOutputs) -> tuple[FloatArray, MomentStatistics]:
        formula, rows, state = self.formula, outputs.logits, self.state
        scores = np.empty(len(rows))
        for part in self._parts(len(rows)):
            into = scores[part]
            after = _kernels.stream_scores(rows[part], *state, KINDS[formula.kind], 1.0 / formula.temperature, into)
            if after is None:
                raise _validate.invalid_row_error(rows, "logits")
            state = _halved(after, self.prior)
        return (scores if formula.weight == 1.0 else formula.weight * scores), self._after(state)

    def _parts(self, n_rows: int) -> Iterator[slice]:
        """Rows up to each one that makes it due to forget, so that any split of a stream gives the same."""
        weight, first = self.state.weight, 0
        while first < n_rows:
            room = 2.0 * self.prior - weight
            last = n_rows if room >= n_rows - first else first + max(1, math.ceil(room))
            yield slice(first, last)
            weight, first = self.prior if last - first >= room else weight + last - first, last

    def _after(self, state: BlockState) -> MomentStatistics:
        return MomentStatistics(self.formula, state, self.prior)

    def score(self, outputs: ModelOutputs) -> FloatArray:
        kind, temperature, weight, _ = self.formula
        scores = norm_scaled_scores(outputs.logits, self.moments, kind, temperature)
        return scores if weight == 1.0 else weight * scores

    def accept(self, moments: BlockState, packed_rows: bytes) -> MomentStatistics:
        return self._after(_halved(_kernels.combine(self.state, moments), self.prior))

    def scaled(self, logits: Rows, *, taking_in: bool) -> FloatArray:
        if not taking_in:
            return norm_scale(logits, self.moments, self.formula.temperature)
        scaled, state = np.empty(logits.shape), self.state
        for part in self._parts(len(logits)):
            rows = logits[part]
            weights, means, variances = RunningMoments.wrap(state).prefix(rows)
            deviations = self.formula.temperature * np.sqrt(variances)
            scaled[part] = np.divide(rows - means, deviations, out=np.zeros_like(means), where=deviations > 0.0)
            state = _halved(BlockState(float(weights[-1]), means[-1], variances[-1] * weights[-1]), self.prior)
        return scaled

    @property
    def moments(self) -> RunningMoments:
        return RunningMoments.wrap(self.state)

    def tensors(self) -> Tensors:
        weight, mean, m2 = self.state
        return {"weight": np.array([weight]), "mean": mean, "m2": m2}

    def restored(self, tensors: Tensors) -> MomentStatistics:
        moments = RunningMoments.from_state(float(tensors["weight"][0]), tensors["mean"], tensors["m2"])
        if moments.mean.shape != self.state.mean.shape:
            raise InvalidInput(f"the running statistics must have shape {self.state.mean.shape}.")
        missing = self.prior - moments.weight
        if 0.0 < missing < math.inf:  # written where training counted as fewer rows
            moments = RunningMoments.wrap(self.state).reweighted(missing).merge(moments)
        return self._after(moments.state)


def _halved(state: BlockState, prior: float) -> BlockState:
    weight, mean, m2 = state
    return BlockState(prior, mean, m2 * (prior / weight)) if weight >= 2.0 * prior else state


@dataclass(frozen=True, eq=False)
class NoStatistics(Statistics):
    """A detector that does not change."""

    running = False
    detector: Detector
    widths: Mapping[str, int]

    def step(self, outputs: ModelOutputs) -> tuple[FloatArray, Statistics]:
        return self.score(outputs), self

    def score(self, outputs: ModelOutputs) -> FloatArray:
        return self.detector.score(outputs.only(*self.widths))

    def scaled(self, logits: Rows, *, taking_in: bool) -> FloatArray:
        formula = offered_moments(self.detector)
        if formula is None:
            return super().scaled(logits, taking_in=taking_in)
        return norm_scale(logits, RunningMoments.wrap(formula.state), formula.temperature)


@dataclass(frozen=True, eq=False)
class DetectorStatistics(NoStatistics):
    """A detector that must see the rows themselves, in their order, and that nobody else streams through.

    Training cannot count as many rows of its stream, as it does in moments, so the first ones are on probation.
    """

    running = True
    fitted: Tensors
    """The detector's arrays before any row."""
    probation: float

    def step(self, outputs: ModelOutputs) -> tuple[FloatArray, DetectorStatistics]:
        twin = copy.copy(self.detector)
        return twin.stream(outputs.only(*self.widths)), self._after(twin)

    def _after(self, detector: Detector) -> DetectorStatistics:
        return DetectorStatistics(detector, self.widths, self.fitted, self.probation)

    def pack_rows(self, outputs: ModelOutputs) -> bytes:
        return b"".join(outputs.array(name).astype("<f8").tobytes() for name in self.widths)

    def accept(self, moments: BlockState, packed_rows: bytes) -> DetectorStatistics:
        n, place, arrays = int(moments.weight), 0, {}
        for name, width in self.widths.items():
            arrays[name] = np.frombuffer(packed_rows, "<f8", n * width, place).reshape(n, width).copy()
            place += 8 * n * width
        return self.step(ModelOutputs._trusted(arrays))[1]

    def tensors(self) -> Tensors:
        """Only what the stream has changed: what training fixed may be large."""
        now, fitted = self.detector._tensors(), self.fitted
        return {
            name: array
            for name, array in now.items()
            if array is not fitted.get(name) and not np.array_equal(array, fitted.get(name, np.zeros(0)))
        }

    def restored(self, tensors: Tensors) -> DetectorStatistics:
        twin = copy.copy(self.detector)
        twin._restore({**self.fitted, **tensors})
        return self._after(twin)


def statistics_of(detector: Detector, widths: Mapping[str, int], policy: Policy) -> Statistics:
    """The statistics that a detector starts with; where the stream is not trusted, its first rows decide nothing.

    The detector itself is left alone.
    """
    if Setting.STREAM not in detector.settings:
        return NoStatistics(detector, widths)
    formula = offered_moments(detector)
    if formula is None:
        own = copy.copy(detector)
        return DetectorStatistics(own, widths, own._tensors(), 0.0 if policy.trusting else policy.enough)
    moments = RunningMoments.wrap(formula.state)
    if policy.trusting:
        return MomentStatistics(formula, moments.copy().state)
    return MomentStatistics(formula, moments.reweighted(policy.prior).state, policy.prior)
