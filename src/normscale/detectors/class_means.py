"""Counts and sums of features by predicted class, which add up over parts of the rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from normscale._validate import FloatArray
from normscale.detectors.class_sums import class_totals
from normscale.detectors.row_blocks import blocks_of
from normscale.outputs import FEATURES, LOGITS, ModelOutputs


class PredictedSums(NamedTuple):
    """How many rows were predicted as each class, (C,), and the sums of their features, (C, d)."""

    counts: FloatArray
    sums: FloatArray

    @classmethod
    def of(cls, chunks: Iterator[ModelOutputs], *, only_right: bool = False) -> PredictedSums | None:
        """Of all rows, or of those whose label is the predicted class; None without rows."""
        total: PredictedSums | None = None
        for chunk in chunks:
            if total is None:
                total = cls(np.zeros(chunk.n_classes), np.zeros((chunk.logits.shape[1], chunk.features.shape[1])))
            for where, logits, features in blocks_of(chunk, (LOGITS, FEATURES), fitting=True):
                predicted = logits.argmax(axis=1)
                if only_right:
                    assert chunk.labels is not None  # the contract checked it
                    right = predicted == chunk.labels[where]
                    predicted, features = predicted[right], features[right]
                classes, counts, sums = class_totals(features, predicted)
                total.counts[classes] += counts
                total.sums[classes] += sums
        return total

    def merge(self, other: PredictedSums) -> PredictedSums:
        """Of both sets of rows; neither is changed."""
        return PredictedSums(self.counts + other.counts, self.sums + other.sums)

    @property
    def means(self) -> FloatArray:
        """The mean features of every class; of all rows for a class without any."""
        means: FloatArray = self.sums / np.maximum(self.counts, 1.0)[:, None]
        means[self.counts == 0.0] = self.sums.sum(axis=0) / self.counts.sum()
        return means
