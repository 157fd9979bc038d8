"""Features in and outside the principal space of the training features: Residual, ViM, NECO."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray
from normscale.detectors.base import About, Detector
from normscale.detectors.mahalanobis import ClassSums
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import by_blocks, float_blocks, lengths
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, HEAD, LOGITS, Head, ModelOutputs
from normscale.scores import energy_score
from normscale.state import Numbers

_CANCELS = 1e-6
"""Share of the squared length below which a residual is not taken as a difference of squares."""
_DIMENSIONS = {"dimensions": "of the principal space; by default 1000, 512 or half, by the number of features"}


def origin_of(head: Head) -> FloatArray:
    """Where the logits of the last layer are 0, or as small as can be; (d,)."""
    weight, bias = (part.astype(np.float64) for part in head)
    digits = np.float64 if head.weight.dtype == np.float64 else np.float32  # what lies below is rounding error
    return -np.linalg.pinv(weight, rcond=float(np.finfo(digits).eps) * max(weight.shape)) @ bias


def usual_dimensions(rank: int) -> int:
    """The size of the principal space that the authors of ViM use, by the number of features that vary."""
    return 1000 if rank >= 2048 else 512 if rank >= 768 else rank // 2


class ResidualSpace(NamedTuple):
    """The directions in which training features hardly reach, and the rest; both orthonormal."""

    origin: Annotated[FloatArray, Numbers(FEATURES)]
    residual: Annotated[FloatArray, Numbers(FEATURES, "outside")]
    principal: Annotated[FloatArray, Numbers(FEATURES, "inside")]

    @classmethod
    def of(cls, head: Head, sums: ClassSums, dimensions: int | None) -> ResidualSpace:
        """By sums over all rows as one class; None: as many dimensions as :func:`usual_dimensions`.

        The principal directions are those of the features' second moment around the origin of the last layer.
        """
        origin = origin_of(head)
        _, means, covariance, _ = sums.result()
        values, vectors = np.linalg.eigh(covariance + np.outer(means[0] - origin, means[0] - origin))
        d = values.size
        rank = int((values > max(values[-1], 0.0) * np.finfo(np.float64).eps * d * 4.0).sum())
        if rank == 0:
            raise InvalidInput("all features lie in the origin of the last layer; there is no principal space.")
        kept = usual_dimensions(rank) if dimensions is None else dimensions
        if kept >= rank:
            raise InvalidInput(
                f"dimensions must be below the rank of the training features, {rank} (of {d} columns, {sums.n} rows), "
                f"so that something is left outside; got {kept}."
            )
        residual, principal = vectors[:, : d - kept], vectors[:, d - kept :]
        return cls(origin, np.ascontiguousarray(residual), np.ascontiguousarray(principal))

    def norms(self, block: FloatArray) -> FloatArray:
        """Length of the part of every row (n, d) in the residual space; the rows are moved to the origin in place.

        The narrower of the two spaces is multiplied by. Where that is the principal one, Pythagoras tells the rest,
        except for rows that lie nearly inside it, where a difference of squares would be rounding error, and for rows
        whose squares overflow.
        """
        block -= self.origin
        if self.residual.shape[1] <= self.principal.shape[1]:
            return lengths(block @ self.residual)
        with np.errstate(over="ignore", invalid="ignore"):
            inside = block @ self.principal
            whole = np.einsum("ij,ij->i", block, block)
            squares = whole - np.einsum("ij,ij->i", inside, inside)
        near = np.flatnonzero((squares < _CANCELS * whole) | (whole < 1e-280) | ~np.isfinite(whole))
        found: FloatArray = np.sqrt(np.maximum(squares, 0.0))
        if near.size:
            found[near] = lengths(block[near] @ self.residual)
        return found

    def check(self) -> None:
        """Raise where the two spaces are not the whole."""
        if self.residual.shape[1] + self.principal.shape[1] != self.origin.size:
            raise InvalidInput(f"residual and principal must belong to {self.origin.size} features.")


@register
class Residual(Detector):
    """Length of the features' part outside the principal space.

        score = |N' (f - o)|,    o = -pinv(W) b

    with N the directions of the smallest eigenvalues of the training features' second moment around o, where the last
    layer (W, b) gives no logits. The principal space has the dimensions of the authors' code: 1000 from 2048 features
    on, 512 from 768 on, otherwise half; only features that vary independently are counted. No data chooses it.
    """

    name = "residual"
    about = About(
        "Residual",
        'Wang et al. 2022: "ViM: Out-Of-Distribution with Virtual-logit Matching"',
        cost="a matrix product with the features",
        parameters=_DIMENSIONS,
    )
    reads: tuple[str, ...] = (FEATURES,)
    reads_in_fit = (HEAD,)

    class Fitted(NamedTuple):
        space: ResidualSpace

    fitted_: Any

    def __init__(self, dimensions: int | None = None) -> None:
        self.dimensions = None if dimensions is None else _validate.at_least(dimensions, "dimensions", 1)

    def _partial(self, rows: ModelOutputs, turn: int) -> Any:
        return rows.head, ClassSums().add(rows.features)

    def _finish(self, total: Any, turn: int) -> Any:
        return self.Fitted(ResidualSpace.of(total[0], total[1], self.dimensions))

    @by_blocks
    def _score(self, features: FloatArray) -> FloatArray:
        return self.fitted_.space.norms(features)


@register
class ViM(Residual):
    """Virtual-logit matching: the residual of the features, in the size of logits, less their log-sum-exp.

        score = alpha |N' (f - o)| - log sum exp(z),    alpha = mean(max z) / mean(|N' (f - o)|)

    with N and o as in :class:`Residual` and the means over the training rows. Logits and last layer are taken less
    their means over the classes: softmax cannot see what is added to all logits of a row, and on some networks it is
    larger for OoD inputs. The authors take them as they are.
    """

    name = "vim"
    about = About("ViM", cost="a matrix product with the features, one pass over the logits")
    reads = (LOGITS, FEATURES)
    _reads_again = True

    class Fitted(NamedTuple):
        space: ResidualSpace
        alpha: float

    def _partial(self, rows: ModelOutputs, turn: int) -> Any:
        if turn == 0:
            return super()._partial(rows, turn)
        largest = rows.logits.max(axis=1) - rows.logits.mean(axis=1, dtype=np.float64)
        norms = (self._fitting.norms(block) for _, block in float_blocks(rows.features, FEATURES))
        return np.array([largest.sum(dtype=np.float64), sum(float(own.sum()) for own in norms)])

    def _finish(self, total: Any, turn: int) -> Any:
        if turn == 0:  # alpha is a mean of lengths in a space that only all rows tell
            self._fitting = ResidualSpace.of(total[0].centred(), total[1], self.dimensions)
            return None
        return self.Fitted(self._fitting, float(total[0] / total[1]))

    @by_blocks
    def _score(self, logits: FloatArray, features: FloatArray) -> FloatArray:
        space, alpha = self.fitted_
        logits -= logits.mean(axis=1, keepdims=True)
        return energy_score(logits) + alpha * space.norms(features)


@register
class NECO(Detector):
    """Neural collapse: minus the share of the features' length in the principal space, times the largest logit.

    With x the features standardised by mean and standard deviation of the training rows, and P their projection on the
    leading principal components of the training rows,

        score = -|P x| / |x| * max_j z_j

    A feature that does not vary in training is left out; the share of all-average features is 0. The authors choose
    the number of components on OoD data; collapsed features span as many as there are classes, less one.
    """

    name = "neco"
    about = About(
        "NECO",
        'Ben Ammar et al. 2024: "NECO: Neural Collapse Based Out-of-distribution detection"',
        cost="a matrix product with the principal components",
        parameters={"components": "principal components of the features; by default the number of classes less one"},
    )
    reads = (LOGITS, FEATURES)

    class Fitted(NamedTuple):
        mean: Annotated[FloatArray, Numbers(FEATURES)]
        factor: Annotated[FloatArray, Numbers(FEATURES, least=0.0)]
        """One over the standard deviation."""
        directions: Annotated[FloatArray, Numbers(FEATURES, "kept")]

    fitted_: Fitted

    def __init__(self, components: int | None = None) -> None:
        self.components = None if components is None else _validate.at_least(components, "components", 1)

    def _partial(self, rows: ModelOutputs, turn: int) -> ClassSums:
        return ClassSums().add(rows.features)

    def _finish(self, total: ClassSums, turn: int) -> Fitted:
        _, means, covariance, error = total.result()
        variance = np.diagonal(covariance)
        varies = variance > error
        factor = np.where(varies, 1.0 / np.sqrt(np.where(varies, variance, 1.0)), 0.0)
        _, vectors = np.linalg.eigh(covariance * np.outer(factor, factor))
        k = self.components or (self._widths or {})[LOGITS] - 1
        return self.Fitted(means[0], factor, np.ascontiguousarray(vectors[:, ::-1][:, :k]))

    @by_blocks
    def _score(self, logits: FloatArray, features: FloatArray) -> FloatArray:
        mean, factor, directions = self.fitted_
        features -= mean
        features *= factor
        size = lengths(features)
        share = lengths(features @ directions) / np.where(size > 0.0, size, 1.0)
        return -np.minimum(share, 1.0) * logits.max(axis=1)
