"""SHE: the inner product of features with the pattern stored for the predicted class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import paired_blocks
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, LOGITS, ModelOutputs


@register
class SHE(Detector):
    """Simplified Hopfield energy: minus the inner product of the features with the predicted class's pattern.

        score = -f' s_c

    with c the class of the largest logit and s_c the mean features of the training rows of class c that were predicted
    right. A class that no training row was predicted right as has nothing stored: its pattern is 0, and so is the
    score of every row predicted so. Nothing is chosen, by OoD data or otherwise.

    Attributes
    ----------
    patterns_ : array (n_classes, d)

    References
    ----------
    Zhang et al., "Out-of-Distribution Detection based on In-Distribution Data Patterns Memorization with Modern
    Hopfield Energy", 2023.

    Examples
    --------
    >>> train = ModelOutputs([[1.0, 0.0], [0.0, 1.0]], features=[[4.0, 0.0], [0.0, 2.0]], labels=[0, 1])
    >>> SHE().fit(train).score(ModelOutputs([[9.0, 0.0]], features=[[3.0, 5.0]])).tolist()
    [-12.0]
    """

    name = "she"
    title = "SHE"
    paper = "Zhang et al. 2023"
    cost = "one pass over the features"
    reads = (LOGITS, FEATURES)
    needs_labels = True

    patterns_: FloatArray

    def _fit(self, chunks: Iterator[ModelOutputs]) -> None:
        sums: FloatArray | None = None
        for chunk in chunks:
            assert chunk.labels is not None  # the contract checked it
            if sums is None:
                sums, counts = np.zeros((chunk.logits.shape[1], chunk.features.shape[1])), np.zeros(chunk.n_classes)
            for where, logits, features in paired_blocks(chunk.logits, LOGITS, chunk.features, FEATURES, fitting=True):
                predicted = logits.argmax(axis=1)
                members = np.zeros((counts.size, predicted.size))
                members[predicted, np.arange(predicted.size)] = predicted == chunk.labels[where]
                sums += members @ features
                counts += members.sum(axis=1)
        if sums is None:
            return
        if not counts.any():
            raise InvalidInput(
                "no training row is predicted as its label, so there is no pattern to store. Do the labels belong to "
                "these logits?"
            )
        self.patterns_ = sums / np.maximum(counts, 1.0)[:, None]

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        scores = np.empty(len(outputs))
        for where, logits, features in paired_blocks(outputs.logits, LOGITS, outputs.features, FEATURES):
            scores[where] = -np.einsum("ij,ij->i", features, self.patterns_[logits.argmax(axis=1)])
        return scores

    def _tensors(self) -> dict[str, NDArray[Any]]:
        return {"patterns": self.patterns_}

    def _restore(self, tensors: dict[str, NDArray[Any]]) -> None:
        self.patterns_ = tensors["patterns"]
        shape = None if self.widths_ is None else (self.widths_[LOGITS], self.widths_[FEATURES])
        if not np.isfinite(self.patterns_).all() or shape not in (None, self.patterns_.shape):
            raise InvalidInput(f"patterns must be finite numbers of shape {shape}; got {self.patterns_.shape}.")
