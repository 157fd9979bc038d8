"""Gaussians of one covariance around the class means: sums of features that add up, and distances by them."""

from __future__ import annotations

import warnings
from typing import Annotated, NamedTuple

import numpy as np

from normscale import _validate
from normscale._kernels.members import members_of_each
from normscale._validate import FloatArray, IntArray, Rows
from normscale.detectors.formula import FeatureFormula
from normscale.errors import InvalidInput, NumericalWarning
from normscale.outputs import FEATURES
from normscale.state import Numbers

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


class ClassGaussian(NamedTuple):
    """Class means, and the whitening of the classes' common covariance."""

    classes: Annotated[IntArray, Numbers("classes")]
    """Those that have training rows."""
    means: Annotated[FloatArray, Numbers("classes", "columns")]
    covariance: Annotated[FloatArray, Numbers("columns", "columns")]
    """Within the classes, before shrinkage."""
    whitening: Annotated[FloatArray, Numbers("columns", "rank")]
    shrinkage: float
    """The amount used."""

    @classmethod
    def of(cls, sums: ClassSums, shrinkage: float | str, detector: str = "") -> ClassGaussian:
        """From the sums over the training rows; ``detector`` is who asks, for messages."""
        classes, means, covariance, error = sums.result()
        d = covariance.shape[0]
        values, vectors = np.linalg.eigh(covariance)
        values = np.maximum(values, 0.0)
        trace = float(values.sum())
        if trace <= d * error:
            raise InvalidInput(
                f"{sums.name} do not vary within the classes (rank 0 of {d}), so a Mahalanobis distance does not "
                f"exist: there are {sums.n} rows of {len(classes)} classes. "
                + ("Pass more than one row a class." if sums.n <= len(classes) else "Are all rows of a class the same?")
            )
        amount = _oas(values, sums.n) if shrinkage == "oas" else float(shrinkage)
        values = (1.0 - amount) * values + amount * trace / d
        used = values > error
        rank = int(used.sum())
        if rank < d:
            warnings.warn(_rank_sentence(sums, covariance, rank, detector), NumericalWarning, stacklevel=8)
        return cls(classes, means, covariance, vectors[:, used] / np.sqrt(values[used]), amount)


def distance_formula(gaussian: ClassGaussian) -> FeatureFormula:
    """The squared Mahalanobis distance to the nearest class mean: in the whitened space plain Euclidean distances."""
    centre = gaussian.means.mean(axis=0)
    return FeatureFormula(centre, gaussian.whitening, (gaussian.means - centre) @ gaussian.whitening)


def checked_shrinkage(shrinkage: float | str) -> float | str:
    """A share of the identity, or the rule that chooses it."""
    if shrinkage == "oas":
        return shrinkage
    if isinstance(shrinkage, str):
        raise InvalidInput(f'shrinkage must be a number in [0, 1] or "oas"; got {shrinkage!r}.')
    return _validate.fraction(shrinkage, "shrinkage", allow_zero=True, allow_one=True)


def _rank_sentence(sums: ClassSums, covariance: FloatArray, rank: int, detector: str) -> str:
    """What directions without variance mean: columns that never change are no lack of rows."""
    d = covariance.shape[0]
    constant = int((np.diagonal(covariance) <= 0.0).sum())
    if rank + constant == d:
        why = f"{constant} of the {d} columns never change within a class, and what happens in them is not seen."
        advice = "Leave such columns out, or pass"
    else:
        why = f"what happens in the other {d - rank} directions is not seen."
        advice = "Pass more rows, or"
    return (
        f"{detector or 'Mahalanobis'}: the covariance of the {sums.name} has rank {rank} of {d} ({sums.n} rows): {why} "
        f'{advice} shrinkage="oas".'
    )


def _oas(eigenvalues: FloatArray, n: int) -> float:
    """Shrinkage by the Oracle Approximating formula from the covariance's eigenvalues."""
    d = eigenvalues.size
    mean_square = float((eigenvalues**2).sum()) / d**2
    square_mean = float(eigenvalues.mean()) ** 2
    denominator = (n + 1.0) * (mean_square - square_mean / d)
    return 1.0 if denominator <= 0.0 else min(1.0, (mean_square + square_mean) / denominator)
