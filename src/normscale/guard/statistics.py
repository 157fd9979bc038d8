"""The running statistics of a guard, as values that are never changed: a block of rows makes new ones.

So a transaction that fails is undone by forgetting what it made, and the journal can be replayed:

* running statistics that are nothing but moments of the logits need every block's own moments, and no rows;
* a detector whose statistics depend on the order of the rows gets the rows themselves again;
* a detector without running statistics takes nothing in.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale import _kernels, _validate
from normscale._kernels import KINDS, BlockState
from normscale._validate import FloatArray, Rows
from normscale.detectors.base import Detector, Setting
from normscale.detectors.formula import MomentFormula, offered_moments
from normscale.errors import InvalidInput
from normscale.moments import RunningMoments
from normscale.outputs import ModelOutputs
from normscale.scaling import norm_scale, norm_scaled_scores


class StreamedBlock(NamedTuple):
    """What taking a block of rows in, one by one, gives."""

    scores: FloatArray
    after: Statistics
    replay_rows: bytes
    """What the journal must keep besides the block's moments to replay it."""


class Statistics(ABC):
    """Statistics at one moment."""

    running: ClassVar[bool] = True
    """Whether they change with the stream."""
    ordered: ClassVar[bool] = False
    """Whether the journal must keep the rows themselves until the next snapshot."""

    @abstractmethod
    def step(self, outputs: ModelOutputs, block: BlockState) -> StreamedBlock:
        """Score rows as they are taken in one by one; ``block`` are the moments of their logits alone."""

    @abstractmethod
    def replay(self, block: BlockState, replay_rows: bytes) -> Statistics:
        """Take a block of the journal in, and return the statistics after it."""

    @abstractmethod
    def score(self, outputs: ModelOutputs) -> FloatArray:
        """Score rows by the statistics as they are."""

    def pack_rows(self, outputs: ModelOutputs) -> bytes:
        """What must be kept of rows, besides their moments, to replay them some day."""
        return b""

    def scaled(self, logits: Rows, *, taking_in: bool) -> FloatArray:
        """The scaled logits (n, C) behind the scores of ``step`` or ``score``."""
        raise InvalidInput("this detector does not scale logits; ask without scaled=true.")

    @property
    def moments(self) -> RunningMoments | None:
        """Running moments of the logits, where these are what is kept."""
        return None

    def tensors(self) -> dict[str, NDArray[Any]]:
        """What a snapshot keeps."""
        return {}

    def restored(self, tensors: dict[str, NDArray[Any]]) -> Statistics:
        """Read them back from a snapshot."""
        return self


class MomentStatistics(Statistics):
    """Moments of the logits: the prior and every block's own, merged in the order of the journal."""

    def __init__(self, formula: MomentFormula, state: BlockState) -> None:
        self.formula = formula
        self.state = state

    def step(self, outputs: ModelOutputs, block: BlockState) -> StreamedBlock:
        # The kernel that streams gives the scores; what is kept is the merge with the block, as a replay computes it.
        formula, rows = self.formula, outputs.logits
        scores = np.empty(rows.shape[0])
        if _kernels.stream_scores(rows, *self.state, KINDS[formula.kind], 1.0 / formula.temperature, scores) is None:
            raise _validate.invalid_row_error(rows, "logits")
        if formula.weight != 1.0:
            scores *= formula.weight
        return StreamedBlock(scores, self.replay(block, b""), b"")

    def replay(self, block: BlockState, replay_rows: bytes) -> MomentStatistics:
        return MomentStatistics(self.formula, _kernels.combine(self.state, block))

    def score(self, outputs: ModelOutputs) -> FloatArray:
        kind, temperature, weight, _ = self.formula
        scores = norm_scaled_scores(outputs.logits, self.moments, kind, temperature)
        return scores if weight == 1.0 else weight * scores

    def scaled(self, logits: Rows, *, taking_in: bool) -> FloatArray:
        if not taking_in:
            return norm_scale(logits, self.moments, self.formula.temperature)
        _, means, variances = self.moments.prefix(logits)
        deviations = self.formula.temperature * np.sqrt(variances)
        return np.divide(logits - means, deviations, out=np.zeros_like(means), where=deviations > 0.0)

    @property
    def moments(self) -> RunningMoments:
        return RunningMoments.wrap(self.state)

    def tensors(self) -> dict[str, NDArray[Any]]:
        weight, mean, m2 = self.state
        return {"weight": np.array([weight]), "mean": mean, "m2": m2}

    def restored(self, tensors: dict[str, NDArray[Any]]) -> MomentStatistics:
        moments = RunningMoments.from_state(float(tensors["weight"][0]), tensors["mean"], tensors["m2"])
        return MomentStatistics(self.formula, moments.state)


class OrderedStatistics(Statistics):
    """A detector that must see the rows themselves, in their order."""

    ordered = True

    def __init__(self, detector: Detector, widths: Mapping[str, int]) -> None:
        """Wrap a detector that nobody else streams through; ``widths`` of the arrays it reads."""
        self.detector = detector
        self.widths = widths

    def step(self, outputs: ModelOutputs, block: BlockState) -> StreamedBlock:
        twin = copy.copy(self.detector)
        scores = twin.stream(outputs.only(*self.widths))
        return StreamedBlock(scores, OrderedStatistics(twin, self.widths), self.pack_rows(outputs))

    def pack_rows(self, outputs: ModelOutputs) -> bytes:
        arrays = [outputs.array(name) for name in self.widths]
        codes = "".join("d" if array.dtype == np.float64 else "f" for array in arrays)
        return b"".join(array.tobytes() for array in arrays) + codes.encode()

    def replay(self, block: BlockState, replay_rows: bytes) -> OrderedStatistics:
        twin = copy.copy(self.detector)
        twin.stream(self._unpack_rows(replay_rows, int(block.weight)))
        return OrderedStatistics(twin, self.widths)

    def _unpack_rows(self, data: bytes, n: int) -> ModelOutputs:
        arrays, place = {}, 0
        for (name, width), code in zip(self.widths.items(), data[-len(self.widths) :].decode(), strict=True):
            flat = np.frombuffer(data, "<f8" if code == "d" else "<f4", n * width, place)
            arrays[name] = flat.reshape(n, width).copy()  # aligned and writable, as the rows were: the same kernels
            place += flat.nbytes
        return ModelOutputs._trusted(arrays)

    def score(self, outputs: ModelOutputs) -> FloatArray:
        return self.detector.score(outputs.only(*self.widths))

    def tensors(self) -> dict[str, NDArray[Any]]:
        return self.detector._tensors()

    def restored(self, tensors: dict[str, NDArray[Any]]) -> OrderedStatistics:
        twin = copy.copy(self.detector)
        twin._restore(tensors)
        return OrderedStatistics(twin, self.widths)


class NoStatistics(Statistics):
    """A detector that does not change."""

    running = False

    def __init__(self, detector: Detector, widths: Mapping[str, int]) -> None:
        self.detector = detector
        self.widths = widths

    def step(self, outputs: ModelOutputs, block: BlockState) -> StreamedBlock:
        return StreamedBlock(self.score(outputs), self, b"")

    def replay(self, block: BlockState, replay_rows: bytes) -> NoStatistics:
        return self

    def score(self, outputs: ModelOutputs) -> FloatArray:
        return self.detector.score(outputs.only(*self.widths))

    def scaled(self, logits: Rows, *, taking_in: bool) -> FloatArray:
        formula = offered_moments(self.detector)
        if formula is None:
            return super().scaled(logits, taking_in=taking_in)
        return norm_scale(logits, RunningMoments.wrap(formula.state), formula.temperature)


def statistics_of(detector: Detector, widths: Mapping[str, int]) -> Statistics:
    """The statistics that a detector starts with; the detector itself is left alone."""
    if Setting.STREAM not in detector.settings:
        return NoStatistics(detector, widths)
    formula = offered_moments(detector)
    if formula is None:
        return OrderedStatistics(copy.copy(detector), widths)
    weight, mean, m2 = formula.state
    return MomentStatistics(formula, BlockState(weight, mean.copy(), m2.copy()))
