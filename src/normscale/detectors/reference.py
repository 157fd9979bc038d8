"""What the training rows looked like, whatever else a detector keeps of them: what a live stream is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from normscale import _kernels, _validate
from normscale._validate import FloatArray, IntArray
from normscale.errors import InvalidInput
from normscale.moments import RunningMoments
from normscale.outputs import ModelOutputs


class Reference(NamedTuple):
    """The predicted classes and the logits of the training rows, in short."""

    predicted: IntArray
    """(C,) how many rows were predicted as each class."""
    moments: RunningMoments
    """Of the logits."""

    @property
    def share(self) -> FloatArray:
        """(C,) the share of rows predicted as each class."""
        share: FloatArray = self.predicted / self.predicted.sum()
        return share

    def tensors(self) -> dict[str, NDArray[Any]]:
        """What a detector file stores."""
        return {
            "reference.predicted": self.predicted,
            "reference.mean": self.moments.mean,
            "reference.m2": self.moments.m2,
        }

    @classmethod
    def from_tensors(cls, tensors: dict[str, NDArray[Any]]) -> Self | None:
        """Read it back; None from a file that has none."""
        if "reference.predicted" not in tensors:
            return None
        predicted = _validate.as_finite_vector(tensors["reference.predicted"], "reference.predicted").astype(np.int64)
        if (predicted < 0).any() or not predicted.any():
            raise InvalidInput("reference.predicted must hold counts of rows, not all 0.")
        moments = RunningMoments.from_state(float(predicted.sum()), tensors["reference.mean"], tensors["reference.m2"])
        return cls(predicted, moments)


class ReferenceCollector:
    """Looks at the training chunks as they pass by."""

    def __init__(self) -> None:
        """Start with no rows."""
        self.predicted: IntArray | None = None
        self.moments: RunningMoments | None = None
        self.damaged = False

    def watch(self, chunks: Iterable[ModelOutputs]) -> Iterator[ModelOutputs]:
        """Pass the chunks on, remembering what they look like."""
        for chunk in chunks:
            yield chunk
            self._take_in(chunk)

    def _take_in(self, chunk: ModelOutputs) -> None:
        if self.predicted is None or self.moments is None:
            self.predicted, self.moments = np.zeros(chunk.n_classes, np.int64), RunningMoments(chunk.n_classes)
        if chunk.n_classes != self.predicted.size:
            self.damaged = True
            return
        state = _kernels.absorb(chunk.logits, *self.moments.state)
        if state is None:  # a detector that reads features has not looked at the logits
            self.damaged = True
            return
        self.moments.state = state
        self.predicted += np.bincount(_kernels.predicted(chunk.logits), minlength=chunk.n_classes)

    @property
    def result(self) -> Reference | None:
        """What was seen; None where the logits could not be read."""
        if self.predicted is None or self.moments is None or self.damaged:
            return None
        return Reference(self.predicted, self.moments)
