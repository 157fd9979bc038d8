"""What is left of features outside the principal space of the training features."""

from __future__ import annotations

import copy
from typing import Annotated, NamedTuple

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray, Rows
from normscale.detectors.row_blocks import float_blocks, lengths
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, Head
from normscale.state import Numbers

_CANCELS = 1e-6
"""Share of the squared length below which a residual is not taken as a difference of squares."""


class SecondMoment:
    """Sum of outer products of features around the origin of the last layer, in one pass over chunks.

    The origin is ``-pinv(W) b``: there the logits of the layer are 0, or as small as can be.
    """

    def __init__(self, head: Head) -> None:
        weight, bias = (part.astype(np.float64) for part in head)
        digits = np.float64 if head.weight.dtype == np.float64 else np.float32  # what lies below is rounding error
        rcond = float(np.finfo(digits).eps) * max(weight.shape)
        self.origin: FloatArray = -np.linalg.pinv(weight, rcond=rcond) @ bias
        self.n = 0
        self._sum = np.zeros((weight.shape[1], weight.shape[1]))

    def add(self, features: Rows) -> None:
        """Take features (b, d) in."""
        for _, block in float_blocks(features, FEATURES, fitting=True):
            with np.errstate(over="ignore", invalid="ignore"):
                block -= self.origin
                self._sum += block.T @ block
            if not np.isfinite(self._sum).all():
                raise _validate.invalid_row_error(features, FEATURES)
            self.n += block.shape[0]

    def merge(self, other: SecondMoment) -> SecondMoment:
        """The sum over both sets of rows, of one network; neither is changed."""
        if not np.array_equal(self.origin, other.origin):
            raise InvalidInput("the parts of the training rows come with different last layers; they must be of one.")
        merged = copy.copy(self)
        merged.n, merged._sum = self.n + other.n, self._sum + other._sum
        return merged

    def space(self, dimensions: int | None) -> ResidualSpace:
        """The residual space beside ``dimensions`` principal directions; None: as many as :func:`usual_dimensions`."""
        values, vectors = np.linalg.eigh(self._sum / self.n)
        d = values.size
        rank = int((values > max(values[-1], 0.0) * np.finfo(np.float64).eps * d * 4.0).sum())
        if rank == 0:
            raise InvalidInput("all features lie in the origin of the last layer; there is no principal space.")
        kept = usual_dimensions(rank) if dimensions is None else dimensions
        if kept >= rank:
            raise InvalidInput(
                f"dimensions must be below the rank of the training features, {rank} (of {d} columns, {self.n} rows), "
                f"so that something is left outside; got {kept}."
            )
        residual, principal = vectors[:, : d - kept], vectors[:, d - kept :]
        return ResidualSpace(self.origin, np.ascontiguousarray(residual), np.ascontiguousarray(principal))


def usual_dimensions(rank: int) -> int:
    """The size of the principal space that the authors of ViM use, by the number of features that vary.

    Examples
    --------
    >>> [usual_dimensions(n) for n in (2048, 768, 512, 64, 1)]
    [1000, 512, 256, 32, 0]
    """
    return 1000 if rank >= 2048 else 512 if rank >= 768 else rank // 2


class ResidualSpace(NamedTuple):
    """The directions in which training features hardly reach.

    Attributes
    ----------
    origin : array (d,)
    residual : array (d, d - p), orthonormal
    principal : array (d, p), orthonormal, the rest
    """

    origin: Annotated[FloatArray, Numbers(FEATURES)]
    residual: Annotated[FloatArray, Numbers(FEATURES, "outside")]
    principal: Annotated[FloatArray, Numbers(FEATURES, "inside")]

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
        squares = np.maximum(squares, 0.0)
        found: FloatArray = np.sqrt(squares)
        if near.size:
            found[near] = lengths(block[near] @ self.residual)
        return found

    def check(self) -> None:
        """Raise where the two spaces are not the whole."""
        if self.residual.shape[1] + self.principal.shape[1] != self.origin.size:
            raise InvalidInput(f"residual and principal must belong to {self.origin.size} features.")
