"""What fDBD and NCI share: the last layer's weight of every class, and the mean of the training features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NamedTuple

import numpy as np

from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.detectors.head_step import SharedHead, same_head
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, LOGITS, Head, ModelOutputs
from normscale.state import Numbers


class ClassDirections(Detector):
    """Base class of detectors that look at features from their mean, along the classes' weights."""

    reads = (LOGITS, FEATURES)
    needs_head = True

    class Fitted(NamedTuple):
        """The weights of the last layer."""

        weight: Annotated[FloatArray, Numbers(LOGITS, FEATURES)]

    fitted_: Fitted

    @property
    def mean_(self) -> FloatArray:
        """The mean of the training features, which the baseline keeps."""
        assert self.baseline_ is not None  # fit reads logits
        return self.baseline_.others[FEATURES].mean

    def _partial(self, chunks: Iterator[ModelOutputs], turn: int) -> Head | None:
        shared = SharedHead()
        for _ in shared.checked(chunks):
            pass
        return shared.head

    def _merge(self, first: Head, second: Head) -> Head:
        return same_head(first, second)

    def _finish(self, total: Head | None, turn: int) -> bool:
        if total is not None:
            self._learn(self.Fitted(total.weight.astype(np.float64)))
        return True

    def _derive(self) -> None:
        if self.baseline_ is None or self.mean_.size != self.fitted_.weight.shape[1]:
            raise InvalidInput("the mean of the training features must have a number for each feature.")
