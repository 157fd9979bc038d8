"""Mahalanobis distance of penultimate features to the nearest class mean."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from normscale import _validate
from normscale._validate import FloatArray, IntArray, Rows
from normscale.detectors.base import Detector
from normscale.errors import InvalidInput, NumericalWarning
from normscale.outputs import ModelOutputs

_BLOCK_ROWS = 4096
_SCORE_ROWS = 512
_COLUMN_BLOCKS = 8


class Mahalanobis(Detector):
    """Squared distance to the nearest class mean under the classes' common covariance.

    The covariance is taken apart once, at fit; features are then whitened by one matrix product, and distances
    in the whitened space are plain Euclidean ones.

    Parameters
    ----------
    shrinkage : float in [0, 1], or "oas"
        Move the covariance towards the identity of equal trace: ``(1 - a) S + a tr(S)/d I``. ``"oas"`` chooses a
        by Chen et al. (2010). With 0 and fewer independent directions than features, distances are measured in
        those directions only, and a :class:`~normscale.errors.NumericalWarning` names the rank.

    Attributes
    ----------
    classes_ : array of the classes that have training rows
    means_ : array (n_classes_present, d)
    covariance_ : array (d, d), population covariance within the classes, before shrinkage
    rank_ : int, number of directions used
    shrinkage_ : float, the amount used

    References
    ----------
    Lee et al., "A Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial Attacks", 2018.
    Chen, Wiesel, Eldar & Hero, "Shrinkage Algorithms for MMSE Covariance Estimation", 2010.
    """

    name: ClassVar[str] = "mahalanobis"
    parameters: ClassVar[tuple[str, ...]] = ("shrinkage",)
    reads: ClassVar[str] = "features"
    needs_labels: ClassVar[bool] = True

    classes_: IntArray
    means_: FloatArray
    covariance_: FloatArray

    def __init__(self, shrinkage: float | str = 0.0) -> None:
        """Store the shrinkage."""
        if shrinkage != "oas":
            if isinstance(shrinkage, str):
                raise InvalidInput(f'shrinkage must be a number in [0, 1] or "oas"; got {shrinkage!r}.')
            shrinkage = _validate.fraction(shrinkage, "shrinkage", allow_zero=True, allow_one=True)
        self.shrinkage: float | str = shrinkage

    def _fit(self, chunks: Iterator[ModelOutputs]) -> None:
        sums = ClassSums()
        for chunk in chunks:
            assert chunk.features is not None  # the contract checked both
            assert chunk.labels is not None
            sums.add(chunk.features, chunk.labels, chunk.n_classes)
        if sums.n:
            self.fit_sums(sums)

    def fit_sums(self, sums: ClassSums) -> Self:
        """Learn from sums that were gathered elsewhere, such as over the layers of a network."""
        self.classes_, self.means_, self.covariance_, scale = sums.result()
        self._whiten(sums.n, scale)
        self.width_ = self.means_.shape[1]
        return self

    def _whiten(self, n: int, scale: float) -> None:
        """Take the covariance apart; ``scale`` is the size below which an eigenvalue is rounding error."""
        d = self.covariance_.shape[0]
        values, vectors = np.linalg.eigh(self.covariance_)
        values = np.maximum(values, 0.0)
        trace = float(values.sum())
        if trace <= d * scale:
            raise InvalidInput(
                "features do not vary within the classes (rank 0 of "
                f"{d}); a Mahalanobis distance does not exist. Are all rows of a class the same?"
            )
        amount = _oas(values, n) if self.shrinkage == "oas" else float(self.shrinkage)
        values = (1.0 - amount) * values + amount * trace / d
        used = values > scale
        rank = int(used.sum())
        if rank < d:
            warnings.warn(
                f"the covariance of the features has rank {rank} of {d} ({n} rows): distances are measured in "
                f"{rank} directions only, and what happens in the others is not seen. "
                'Pass shrinkage="oas" or more rows.',
                NumericalWarning,
                stacklevel=6,
            )
        self.shrinkage_ = amount
        self.rank_ = rank
        self._finish(vectors[:, used] / np.sqrt(values[used]))

    def _finish(self, whitening: FloatArray) -> None:
        """Prepare scoring.

        Any rotation of the whitened space leaves distances as they are; the one that makes the whitening matrix lower
        triangular spares nearly half of the product: the j-th block of columns reads only the features from j on.
        """
        triangular: FloatArray = np.asarray(np.linalg.qr(whitening.T, mode="r")).T
        self.whitening_ = np.ascontiguousarray(whitening)
        self._centre = self.means_.mean(axis=0)
        white_means = (self.means_ - self._centre) @ triangular
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

    def _score(self, rows: Rows, threads: int) -> FloatArray:
        out = np.empty(rows.shape[0])
        for a in range(0, rows.shape[0], _SCORE_ROWS):
            block = np.array(rows[a : a + _SCORE_ROWS], dtype=np.float64)
            if not np.isfinite(block).all():
                raise _validate.invalid_row_error(rows, "features")
            block -= self._centre
            norms = np.zeros(block.shape[0])
            to_means = np.tile(self._squared_norms, (block.shape[0], 1))
            for j, whitening, means in self._blocks:
                white = block[:, j:] @ whitening
                to_means += white @ means
                norms += np.einsum("ij,ij->i", white, white)
            out[a : a + _SCORE_ROWS] = norms + to_means.min(axis=1)
        return np.maximum(out, 0.0, out=out)

    def _tensors(self) -> dict[str, NDArray[Any]]:
        return {
            "classes": self.classes_,
            "means": self.means_,
            "covariance": self.covariance_,
            "whitening": self.whitening_,
            "shrinkage": np.array([self.shrinkage_]),
        }

    def _restore(self, tensors: dict[str, NDArray[Any]]) -> None:
        self.classes_, self.means_ = tensors["classes"], tensors["means"]
        self.covariance_ = tensors["covariance"]
        self.shrinkage_ = float(tensors["shrinkage"][0])
        self.rank_ = int(tensors["whitening"].shape[1])
        if not (np.isfinite(self.means_).all() and np.isfinite(tensors["whitening"]).all()):
            raise InvalidInput("means and whitening must be finite.")
        self._finish(tensors["whitening"])


class ClassSums:
    """Counts, sums and scatter of features by class, in one pass over chunks.

    Everything is taken relative to the first chunk's mean, so that subtracting "between the classes" from "in
    all" loses no digits to a common offset.
    """

    def __init__(self) -> None:
        self.n = 0

    def add(self, features: Rows, labels: IntArray, n_classes: int) -> None:
        """Take features (b, d) and their classes (b,) in."""
        if labels.size and labels.min() < 0:
            raise InvalidInput(
                f"labels[{int(np.argmin(labels))}] is -1 (unknown); Mahalanobis needs the class of every training row."
            )
        for a in range(0, features.shape[0], _BLOCK_ROWS):
            block = np.array(features[a : a + _BLOCK_ROWS], dtype=np.float64)
            if not np.isfinite(block).all():
                raise _validate.invalid_row_error(features, "features")
            if self.n == 0:
                self._origin = block.mean(axis=0)
                self._counts = np.zeros(n_classes)
                self._sums = np.zeros((n_classes, block.shape[1]))
                self._scatter = np.zeros((block.shape[1], block.shape[1]))
            block -= self._origin
            members = np.zeros((n_classes, block.shape[0]))
            members[labels[a : a + _BLOCK_ROWS], np.arange(block.shape[0])] = 1.0
            self._sums += members @ block
            self._counts += members.sum(axis=1)
            self._scatter += block.T @ block
            self.n += block.shape[0]

    def result(self) -> tuple[IntArray, FloatArray, FloatArray, float]:
        """Classes present, their means, the covariance within them, and the size of its rounding error."""
        present = np.flatnonzero(self._counts)
        counts = self._counts[present]
        means = self._sums[present] / counts[:, None]
        within = (self._scatter - (means * counts[:, None]).T @ means) / self.n
        largest = float(np.diagonal(self._scatter).max()) / self.n
        error = largest * np.finfo(np.float64).eps * within.shape[0] * 4.0
        return present.astype(np.int64), means + self._origin, (within + within.T) / 2.0, error


def _oas(eigenvalues: FloatArray, n: int) -> float:
    """Shrinkage by the Oracle Approximating formula from the covariance's eigenvalues."""
    d = eigenvalues.size
    mean_square = float((eigenvalues**2).sum()) / d**2
    square_mean = float(eigenvalues.mean()) ** 2
    denominator = (n + 1.0) * (mean_square - square_mean / d)
    return 1.0 if denominator <= 0.0 else min(1.0, (mean_square + square_mean) / denominator)
