"""Counts, sums and scatter of features by class: what every distance to class means is made of."""

from __future__ import annotations

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray, IntArray, Rows
from normscale.errors import InvalidInput

_BLOCK_ROWS = 4096


class ClassSums:
    """Counts, sums and scatter of features by class, in one pass over chunks.

    Everything is taken relative to the first chunk's mean, so that subtracting "between the classes" from "in
    all" loses no digits to a common offset.
    """

    def __init__(self, name: str = "features") -> None:
        self.name = name
        self.n = 0
        self._counts: FloatArray = np.zeros(0)

    def add(self, features: Rows, labels: IntArray) -> None:
        """Take features (b, d) and their classes (b,) in."""
        if labels.size and labels.min() < 0:
            raise InvalidInput(
                f"labels[{int(np.argmin(labels))}] is -1 (unknown); the class of every training row is needed."
            )
        for a in range(0, features.shape[0], _BLOCK_ROWS):
            block = np.array(features[a : a + _BLOCK_ROWS], dtype=np.float64)
            if not np.isfinite(block).all():
                raise _validate.invalid_row_error(features, self.name)
            if self.n == 0:
                self._origin = block.mean(axis=0)
                self._sums = np.zeros((0, block.shape[1]))
                self._scatter = np.zeros((block.shape[1], block.shape[1]))
            classes = labels[a : a + _BLOCK_ROWS]
            self._make_room(int(classes.max()) + 1)
            block -= self._origin
            members = np.zeros((self._counts.size, block.shape[0]))
            members[classes, np.arange(block.shape[0])] = 1.0
            self._sums += members @ block
            self._counts += members.sum(axis=1)
            self._scatter += block.T @ block
            self.n += block.shape[0]

    def merge(self, other: ClassSums) -> ClassSums:
        """The sums over both sets of rows, about this one's origin; neither is changed.

        With s the other's origin less this one's and t its sums over all classes, its scatter about this origin is
        ``S + s t' + t s' + n s s'``. Origins are means of rows, so that s is no larger than the rows' spread.
        """
        merged = ClassSums(self.name)
        merged.n = self.n + other.n
        merged._origin = self._origin
        merged._counts, merged._sums = self._counts.copy(), self._sums.copy()
        merged._make_room(other._counts.size)
        shift, total = other._origin - self._origin, other._sums.sum(axis=0)
        there = slice(0, other._counts.size)
        merged._counts[there] += other._counts
        merged._sums[there] += other._sums + other._counts[:, None] * shift
        crossed = np.outer(shift, total)
        merged._scatter = self._scatter + other._scatter + (crossed + crossed.T) + other.n * np.outer(shift, shift)
        return merged

    def _make_room(self, n_classes: int) -> None:
        missing = n_classes - self._counts.size
        if missing > 0:
            self._counts = np.concatenate([self._counts, np.zeros(missing)])
            self._sums = np.concatenate([self._sums, np.zeros((missing, self._sums.shape[1]))])

    @property
    def counts(self) -> FloatArray:
        """Rows of every class that has any."""
        return self._counts[self._counts > 0.0]

    def result(self) -> tuple[IntArray, FloatArray, FloatArray, float]:
        """Classes present, their means, the covariance within them, and the size of its rounding error."""
        present = np.flatnonzero(self._counts)
        counts = self._counts[present]
        means = self._sums[present] / counts[:, None]
        within = (self._scatter - (means * counts[:, None]).T @ means) / self.n
        largest = float(np.diagonal(self._scatter).max()) / self.n
        error = largest * np.finfo(np.float64).eps * within.shape[0] * 4.0
        return present.astype(np.int64), means + self._origin, (within + within.T) / 2.0, error
