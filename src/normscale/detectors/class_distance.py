"""Squared Mahalanobis distance to the nearest class mean, in one space of features."""

from __future__ import annotations

import warnings
from typing import Annotated, NamedTuple

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray, IntArray, Rows
from normscale.detectors.class_sums import ClassSums
from normscale.detectors.formula import FeatureFormula
from normscale.errors import InvalidInput, NumericalWarning
from normscale.state import Numbers

_SCORE_ROWS = 512
_COLUMN_BLOCKS = 8


class ClassGaussian(NamedTuple):
    """What :class:`ClassDistance` is made of."""

    classes: Annotated[IntArray, Numbers("classes")]
    means: Annotated[FloatArray, Numbers("classes", "columns")]
    covariance: Annotated[FloatArray, Numbers("columns", "columns")]
    whitening: Annotated[FloatArray, Numbers("columns", "rank")]
    shrinkage: float


class ClassDistance:
    """Class means, and the whitening of the classes' common covariance.

    The covariance is taken apart once; features are then whitened by one matrix product, and distances in the whitened
    space are plain Euclidean ones.

    Attributes
    ----------
    classes : array of the classes that have training rows
    means : array (n_classes_present, d)
    covariance : array (d, d), population covariance within the classes, before shrinkage
    whitening : array (d, rank)
    shrinkage : float, the amount used
    """

    def __init__(
        self, classes: IntArray, means: FloatArray, covariance: FloatArray, whitening: FloatArray, shrinkage: float
    ) -> None:
        self.classes, self.means, self.covariance, self.shrinkage = classes, means, covariance, shrinkage
        self.whitening = np.ascontiguousarray(whitening)
        # Any rotation of the whitened space leaves distances as they are; the one that makes the whitening matrix
        # lower triangular spares nearly half of the product: the j-th block of columns reads the features from j on.
        triangular: FloatArray = np.asarray(np.linalg.qr(whitening.T, mode="r")).T
        self._centre = means.mean(axis=0)
        white_means = (means - self._centre) @ triangular
        self._squared_norms = np.einsum("ij,ij->i", white_means, white_means)
        step = -(-triangular.shape[1] // _COLUMN_BLOCKS)
        self._blocks = [
            (
                j,
                np.ascontiguousarray(triangular[j:, j : j + step]),
                np.ascontiguousarray(-2.0 * white_means[:, j : j + step].T),
            )
            for j in range(0, triangular.shape[1], step)
        ]

    @property
    def rank(self) -> int:
        """How many directions distances are measured in."""
        return int(self.whitening.shape[1])

    @classmethod
    def of(cls, sums: ClassSums, shrinkage: float | str, detector: str = "") -> ClassDistance:
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

    def squared(self, rows: Rows, name: str) -> FloatArray:
        """Squared distance of every row to the nearest class mean; shape (n,)."""
        out = np.empty(rows.shape[0])
        for a in range(0, rows.shape[0], _SCORE_ROWS):
            block = np.array(rows[a : a + _SCORE_ROWS], dtype=np.float64)
            if not np.isfinite(block).all():
                raise _validate.invalid_row_error(rows, name, can_skip=True)
            norms = np.zeros(block.shape[0])
            to_means = np.tile(self._squared_norms, (block.shape[0], 1))
            with np.errstate(over="ignore", invalid="ignore"):
                block -= self._centre
                for j, whitening, means in self._blocks:
                    white = block[:, j:] @ whitening
                    to_means += white @ means
                    norms += np.einsum("ij,ij->i", white, white)
                out[a : a + _SCORE_ROWS] = norms + to_means.min(axis=1)
        if not np.isfinite(out).all():
            raise _validate.invalid_row_error(rows, name, can_skip=True)
        return np.maximum(out, 0.0, out=out)

    def formula(self) -> FeatureFormula:
        """The same as plain arrays."""
        return FeatureFormula(self._centre, self.whitening, (self.means - self._centre) @ self.whitening)

    @property
    def record(self) -> ClassGaussian:
        """What a file keeps; ``ClassDistance(*record)`` is the same again."""
        return ClassGaussian(self.classes, self.means, self.covariance, self.whitening, self.shrinkage)


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
