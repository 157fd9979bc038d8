"""The running statistics of a guard, as values that are never changed: a block of rows makes new ones.

So a transaction that fails is undone by forgetting what it made, and what a journal says can be said again:

* plain norm-scaling keeps moments, and a journal of every block's own moments is all that is needed;
* a detector whose statistics depend on the order of the rows (robust norm-scaling) gets the rows themselves again;
* a detector without running statistics takes nothing in.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale import _kernels, _validate
from normscale._kernels import KINDS, BlockState
from normscale._validate import FloatArray, Rows
from normscale.detectors.base import Detector
from normscale.detectors.norm_scaling import NormScaling
from normscale.errors import InvalidInput
from normscale.moments import RunningMoments
from normscale.scaling import frozen_scores, norm_scale


class Step(NamedTuple):
    """What taking a block of rows in, one by one, gives."""

    scores: FloatArray
    after: Statistics
    learned: bytes
    """What the journal must keep besides the block's moments to say it again."""


class Statistics(ABC):
    """Statistics at one moment."""

    running: ClassVar[bool] = True
    """Whether they change with the stream."""
    ordered: ClassVar[bool] = False
    """Whether the journal must keep the rows themselves until the next snapshot."""

    @abstractmethod
    def step(self, rows: Rows, block: BlockState) -> Step:
        """Score the rows as they are taken in one by one; ``block`` are the moments of the rows by themselves."""

    @abstractmethod
    def again(self, block: BlockState, learned: bytes) -> Statistics:
        """The statistics after a block that the journal tells of."""

    @abstractmethod
    def score(self, rows: Rows) -> FloatArray:
        """Score the rows by the statistics as they are."""

    def keepsake(self, rows: Rows) -> bytes:
        """What must be kept of rows, besides their moments, to take them in some day."""
        return b""

    def scaled(self, rows: Rows, *, taking_in: bool) -> FloatArray:
        """The scaled logits (n, C) behind the scores of ``step`` or ``score``."""
        raise InvalidInput("scaled logits exist only for a norm_scaling guard; ask without scaled=true.")

    @property
    def moments(self) -> RunningMoments | None:
        """Running moments of the logits, where these are what is kept."""
        return None

    def tensors(self) -> dict[str, NDArray[Any]]:
        """What a snapshot keeps."""
        return {}

    def restored(self, tensors: dict[str, NDArray[Any]]) -> Statistics:
        """Read back from a snapshot."""
        return self


class MomentStatistics(Statistics):
    """Plain norm-scaling: the prior and every block's moments, merged in the order of the journal."""

    def __init__(self, detector: NormScaling, state: BlockState) -> None:
        """Around the state of some moments."""
        self.detector = detector
        self.state = state

    def step(self, rows: Rows, block: BlockState) -> Step:
        """Score by the kernel that streams; what is kept is the merge with the block, as the journal will say it."""
        detector = self.detector
        scores = np.empty(rows.shape[0])
        kind = KINDS[detector.score_kind]
        if _kernels.stream_scores(rows, *self.state, kind, 1.0 / detector.temperature, scores) is None:
            raise _validate.invalid_row_error(rows, "logits")
        return Step(scores, self.again(block, b""), b"")

    def again(self, block: BlockState, learned: bytes) -> MomentStatistics:
        """Merge."""
        return MomentStatistics(self.detector, _kernels.combine(self.state, block))

    def score(self, rows: Rows) -> FloatArray:
        """As frozen norm-scaling does."""
        return frozen_scores(rows, self.moments, self.detector.score_kind, self.detector.temperature)

    def scaled(self, rows: Rows, *, taking_in: bool) -> FloatArray:
        """Each row by the moments that include it, or all by the moments as they are."""
        if not taking_in:
            return norm_scale(rows, self.moments, self.detector.temperature)
        _, means, variances = self.moments.prefix(rows)
        deviations = self.detector.temperature * np.sqrt(variances)
        return np.divide(rows - means, deviations, out=np.zeros_like(means), where=deviations > 0.0)

    @property
    def moments(self) -> RunningMoments:
        """The running moments."""
        return RunningMoments.wrap(self.state)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Weight, mean and M2."""
        weight, mean, m2 = self.state
        return {"weight": np.array([weight]), "mean": mean, "m2": m2}

    def restored(self, tensors: dict[str, NDArray[Any]]) -> MomentStatistics:
        """Checked."""
        moments = RunningMoments.from_state(float(tensors["weight"][0]), tensors["mean"], tensors["m2"])
        return MomentStatistics(self.detector, moments.state)


class OrderedStatistics(Statistics):
    """A detector that must see the rows themselves, in their order."""

    ordered = True

    def __init__(self, detector: Detector) -> None:
        """Around a detector that nobody else streams through."""
        self.detector = detector

    def step(self, rows: Rows, block: BlockState) -> Step:
        """Stream through a copy."""
        twin = copy.copy(self.detector)
        scores = twin.stream(rows)
        return Step(scores, OrderedStatistics(twin), self.keepsake(rows))

    def keepsake(self, rows: Rows) -> bytes:
        """The rows themselves."""
        return _pack_rows(rows)

    def again(self, block: BlockState, learned: bytes) -> OrderedStatistics:
        """Stream the rows once more."""
        twin = copy.copy(self.detector)
        twin.stream(_unpack_rows(learned, block.mean.size))
        return OrderedStatistics(twin)

    def score(self, rows: Rows) -> FloatArray:
        """As the detector does without learning."""
        return self.detector.score(rows)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """All of the detector's arrays."""
        return self.detector._tensors()

    def restored(self, tensors: dict[str, NDArray[Any]]) -> OrderedStatistics:
        """Into a copy."""
        twin = copy.copy(self.detector)
        twin._restore(tensors)
        return OrderedStatistics(twin)


class NoStatistics(Statistics):
    """A detector that does not change."""

    running = False

    def __init__(self, detector: Detector) -> None:
        """Around any detector."""
        self.detector = detector

    def step(self, rows: Rows, block: BlockState) -> Step:
        """Score."""
        return Step(self.score(rows), self, b"")

    def again(self, block: BlockState, learned: bytes) -> NoStatistics:
        """Nothing to say again."""
        return self

    def score(self, rows: Rows) -> FloatArray:
        """Score."""
        return self.detector.score(rows)

    def scaled(self, rows: Rows, *, taking_in: bool) -> FloatArray:
        """Norm-scaling with an infinite prior has them too."""
        if isinstance(self.detector, NormScaling):
            return self.detector.scale(rows)
        return super().scaled(rows, taking_in=taking_in)


def statistics_of(detector: Detector) -> Statistics:
    """The statistics that a detector starts with; the detector itself is left alone."""
    if not detector.has_running_statistics:
        return NoStatistics(detector)
    if type(detector) is NormScaling:
        return MomentStatistics(detector, detector.running_.copy().state)
    return OrderedStatistics(copy.copy(detector))


def _pack_rows(rows: Rows) -> bytes:
    return rows.tobytes() + (b"d" if rows.dtype == np.float64 else b"f")  # at the end, so that the numbers stay aligned


def _unpack_rows(data: bytes, width: int) -> Rows:
    numbers = memoryview(data)[:-1]
    return np.frombuffer(numbers, "<f8" if data[-1:] == b"d" else "<f4").reshape(-1, width)
