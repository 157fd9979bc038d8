"""What fDBD and NCI share: the last layer's weight of every class, and the mean of the training features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, LOGITS, Head, ModelOutputs


class ClassDirections(Detector):
    """Base class of detectors that look at features from their mean, along the classes' weights.

    Attributes
    ----------
    weight_ : array (C, d)
    mean_ : array (d,)
    """

    reads = (LOGITS, FEATURES)
    needs_head = True

    weight_: FloatArray

    @property
    def mean_(self) -> FloatArray:
        """The mean of the training features, which the baseline keeps."""
        assert self.baseline_ is not None  # fit reads logits
        return self.baseline_.others[FEATURES].mean

    def _fit(self, chunks: Iterator[ModelOutputs]) -> None:
        for chunk in chunks:
            assert chunk.head is not None  # the contract checked it
            self.weight_ = chunk.head.weight.astype(np.float64)

    def _tensors(self) -> dict[str, NDArray[Any]]:
        return {"weight": self.weight_}

    def _restore(self, tensors: dict[str, NDArray[Any]]) -> None:
        self.weight_ = Head.checked((tensors["weight"], np.zeros(tensors["weight"].shape[0]))).weight
        if self.widths_ is not None:
            shape = (self.widths_[LOGITS], self.widths_[FEATURES])
            if self.weight_.shape != shape or self.mean_.size != shape[1]:
                raise InvalidInput(f"weight must have the shape {shape} and the mean {shape[1]} numbers.")
