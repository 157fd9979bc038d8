"""Counts, sums and scatter of features by class, which add up over parts of the rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from normscale import _validate
from normscale._kernels.members import members_of_each
from normscale._validate import FloatArray, IntArray, Rows
from normscale.detectors.row_blocks import blocks_of
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, LOGITS, ModelOutputs

_BLOCK_ROWS = 4096


class ClassSums:
    """Counts, sums and scatter of features by class, in one pass over chunks.

    Everything is taken relative to the first chunk's mean, so that subtracting "between the classes" from "in
    all" loses no digits to a common offset.
    """

    def __init__(self, name: str = FEATURES) -> None:
        self.name = name
        self.n = 0
        self.classes: IntArray = np.zeros(0, dtype=np.int64)
        """The classes that occur, in order."""
        self.counts: FloatArray = np.zeros(0)
        """How many rows each of them has."""

    def add(self, features: Rows, labels: IntArray) -> ClassSums:
        """Take features (b, d) and their classes (b,) in; returns self."""
        if labels.size and labels.min() < 0:
            raise InvalidInput(
                f"labels[{int(np.argmin(labels))}] is -1 (unknown); the class of every training row is needed."
            )
        for a in range(0, features.shape[0], _BLOCK_ROWS):
            block = np.array(features[a : a + _BLOCK_ROWS], dtype=np.float64)
            if not np.isfinite(block).all():
                raise _validate.invalid_row_error(features, self.name)
            with np.errstate(over="ignore", invalid="ignore"):
                if self.n == 0:
                    self._origin = block.mean(axis=0)
                    self._sums = np.zeros((0, block.shape[1]))
                    self._scatter = np.zeros((block.shape[1], block.shape[1]))
                block -= self._origin
                self._scatter += block.T @ block
            if not np.isfinite(self._scatter).all():
                raise _validate.invalid_row_error(features, self.name)
            self._join(*class_totals(block, labels[a : a + _BLOCK_ROWS]))
            self.n += block.shape[0]
        return self

    def merge(self, other: ClassSums) -> ClassSums:
        """The sums over both sets of rows, about this one's origin; neither is changed.

        With s the other's origin less this one's and t its sums over all classes, its scatter about this origin is
        ``S + s t' + t s' + n s s'``. Origins are means of rows, so that s is no larger than the rows' spread.
        """
        merged = ClassSums(self.name)
        merged.n = self.n + other.n
        merged._origin = self._origin
        merged.classes, merged.counts, merged._sums = self.classes, self.counts.copy(), self._sums.copy()
        shift, total = other._origin - self._origin, other._sums.sum(axis=0)
        merged._join(other.classes, other.counts, other._sums + other.counts[:, None] * shift)
        crossed = np.outer(shift, total)
        merged._scatter = self._scatter + other._scatter + (crossed + crossed.T) + other.n * np.outer(shift, shift)
        return merged

    def _join(self, classes: IntArray, counts: FloatArray, sums: FloatArray) -> None:
        """Add the counts and sums of some classes."""
        both = np.union1d(self.classes, classes)
        if both.size > self.classes.size:
            known, known_counts, known_sums = self.classes, self.counts, self._sums
            self.classes, self.counts, self._sums = both, np.zeros(both.size), np.zeros((both.size, sums.shape[1]))
            self._join(known, known_counts, known_sums)
        places = np.searchsorted(self.classes, classes)
        self.counts[places] += counts
        self._sums[places] += sums

    def result(self) -> tuple[IntArray, FloatArray, FloatArray, float]:
        """Classes present, their means, the covariance within them, and the size of its rounding error."""
        means = self._sums / self.counts[:, None]
        within = (self._scatter - (means * self.counts[:, None]).T @ means) / self.n
        largest = float(np.diagonal(self._scatter).max()) / self.n
        error = largest * np.finfo(np.float64).eps * within.shape[0] * 4.0
        return self.classes, means + self._origin, (within + within.T) / 2.0, error


def class_totals(rows: FloatArray, classes: IntArray) -> tuple[IntArray, FloatArray, FloatArray]:
    """The classes that occur, in order, how many rows (n, d) each has, and the sums of these.

    Examples
    --------
    >>> found, counts, sums = class_totals(np.array([[1.0], [5.0], [2.0]]), np.array([900_000, 3, 900_000]))
    >>> found.tolist(), counts.tolist(), sums.tolist()
    ([3, 900000], [1.0, 2.0], [[5.0], [3.0]])
    """
    members = dict(members_of_each(classes))
    sums = np.empty((len(members), rows.shape[1]))
    for total, own in zip(sums, members.values(), strict=True):
        np.add.reduce(rows[own], axis=0, out=total)
    counts = np.array([own.size for own in members.values()], dtype=np.float64)
    return np.array(list(members), dtype=np.int64), counts, sums


class PredictedSums(NamedTuple):
    """How many rows were predicted as each class, (C,), and the sums of their features, (C, d); parts add up."""

    counts: FloatArray
    sums: FloatArray

    @classmethod
    def of(cls, rows: ModelOutputs, *, only_right: bool = False) -> PredictedSums:
        """Of all rows, or of those whose label is the predicted class."""
        total = cls(np.zeros(rows.n_classes), np.zeros((rows.n_classes, rows.features.shape[1])))
        for where, logits, features in blocks_of(rows, (LOGITS, FEATURES), fitting=True):
            predicted = logits.argmax(axis=1)
            if only_right:
                assert rows.labels is not None  # the contract checked it
                right = predicted == rows.labels[where]
                predicted, features = predicted[right], features[right]
            classes, counts, sums = class_totals(features, predicted)
            total.counts[classes] += counts
            total.sums[classes] += sums
        return total

    @property
    def means(self) -> FloatArray:
        """The mean features of every class; of all rows for a class without any."""
        means: FloatArray = self.sums / np.maximum(self.counts, 1.0)[:, None]
        means[self.counts == 0.0] = self.sums.sum(axis=0) / self.counts.sum()
        return means
