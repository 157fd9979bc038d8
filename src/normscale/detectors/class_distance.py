"""Squared Mahalanobis distance to the nearest class mean, in one space of features."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale import _validate
from normscale._validate import FloatArray, IntArray, Rows
from normscale.detectors.class_sums import ClassSums
from normscale.detectors.formula import FeatureFormula
from normscale.errors import InvalidInput, NumericalWarning

_SCORE_ROWS = 512
_COLUMN_BLOCKS = 8


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
    def of(cls, sums: ClassSums, shrinkage: float | str) -> ClassDistance:
        """From the sums over the training rows."""
        classes, means, covariance, error = sums.result()
        d = covariance.shape[0]
        values, vectors = np.linalg.eigh(covariance)
        values = np.maximum(values, 0.0)
        trace = float(values.sum())
        if trace <= d * error:
            raise InvalidInput(
                f"{sums.name} do not vary within the classes (rank 0 of "
                f"{d}); a Mahalanobis distance does not exist. Are all rows of a class the same?"
            )
        amount = _oas(values, sums.n) if shrinkage == "oas" else float(shrinkage)
        values = (1.0 - amount) * values + amount * trace / d
        used = values > error
        rank = int(used.sum())
        if rank < d:
            warnings.warn(
                f"the covariance of the {sums.name} has rank {rank} of {d} ({sums.n} rows): distances are measured in "
                f"{rank} directions only, and what happens in the others is not seen. "
                'Pass shrinkage="oas" or more rows.',
                NumericalWarning,
                stacklevel=8,
            )
        return cls(classes, means, covariance, vectors[:, used] / np.sqrt(values[used]), amount)

    def squared(self, rows: Rows, name: str) -> FloatArray:
        """Squared distance of every row to the nearest class mean; shape (n,)."""
        out = np.empty(rows.shape[0])
        for a in range(0, rows.shape[0], _SCORE_ROWS):
            block = np.array(rows[a : a + _SCORE_ROWS], dtype=np.float64)
            if not np.isfinite(block).all():
                raise _validate.invalid_row_error(rows, name, can_skip=True)
            block -= self._centre
            norms = np.zeros(block.shape[0])
            to_means = np.tile(self._squared_norms, (block.shape[0], 1))
            for j, whitening, means in self._blocks:
                white = block[:, j:] @ whitening
                to_means += white @ means
                norms += np.einsum("ij,ij->i", white, white)
            out[a : a + _SCORE_ROWS] = norms + to_means.min(axis=1)
        return np.maximum(out, 0.0, out=out)

    def formula(self) -> FeatureFormula:
        """The same as plain arrays."""
        return FeatureFormula(self._centre, self.whitening, (self.means - self._centre) @ self.whitening)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """What a detector file stores."""
        return {
            "classes": self.classes,
            "means": self.means,
            "covariance": self.covariance,
            "whitening": self.whitening,
            "shrinkage": np.array([self.shrinkage]),
        }

    @classmethod
    def from_tensors(cls, tensors: dict[str, NDArray[Any]]) -> ClassDistance:
        """Read it back."""
        means, whitening = tensors["means"], tensors["whitening"]
        if not (np.isfinite(means).all() and np.isfinite(whitening).all()):
            raise InvalidInput("means and whitening must be finite.")
        if means.ndim != 2 or whitening.ndim != 2 or means.shape[1] != whitening.shape[0]:
            raise InvalidInput(f"means and whitening do not fit: {means.shape} and {whitening.shape}.")
        return cls(tensors["classes"], means, tensors["covariance"], whitening, float(tensors["shrinkage"][0]))


def _oas(eigenvalues: FloatArray, n: int) -> float:
    """Shrinkage by the Oracle Approximating formula from the covariance's eigenvalues."""
    d = eigenvalues.size
    mean_square = float((eigenvalues**2).sum()) / d**2
    square_mean = float(eigenvalues.mean()) ** 2
    denominator = (n + 1.0) * (mean_square - square_mean / d)
    return 1.0 if denominator <= 0.0 else min(1.0, (mean_square + square_mean) / denominator)
