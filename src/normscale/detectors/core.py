"""CORE: the energy, and the direction of what the last layer does not see of the features."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np

from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.detectors.class_sums import PredictedSums
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import blocks_of, by_blocks, lengths, unit_rows
from normscale.moments import RunningMoments
from normscale.outputs import FEATURES, LOGITS, Head, ModelOutputs
from normscale.scores import energy_score
from normscale.state import Numbers

_ROUNDING = 1e-10
"""A residual shorter than this share of the features is rounding error, and counts as 0."""


@register
class CORE(Detector):
    """Confidence and orthogonal residual: the energy plus a cosine, each in standard deviations of training rows.

    The residual r of features f is their part outside the span of the last layer's weights; it changes no logit.
    With c the class of the largest logit and r_c the mean residual of the training rows predicted as c,

        score = -(E(z) - mean E) / std E - (cos(r, r_c) - mean cos) / std cos,    E(z) = log sum exp(z)

    A residual of 0 has the cosine 0. Where the weights span all of the features, the energy alone remains. A class
    that was never predicted has the mean residual of all rows. Made from the paper's description, not its code.

    References
    ----------
    Yang, Kim & Bahk, "CORE: Robust Out-of-Distribution Detection via Confidence and Orthogonal Residual Scoring", 2026.

    Examples
    --------
    >>> head = (np.eye(2, 3), np.zeros(2))
    >>> features = np.array([[4.0, 0.0, 1.0], [0.0, 4.0, -1.0], [2.0, 0.0, 1.0], [0.0, 3.0, -2.0]])
    >>> detector = CORE().fit(ModelOutputs(features[:, :2], features=features, head=head))
    >>> scores = detector.score(ModelOutputs([[4.0, 0.0]] * 2, features=[[4.0, 0.0, 1.0], [4.0, 0.0, -1.0]]))
    >>> bool(scores[0] <= scores[1])
    True
    """

    name = "core"
    title = "CORE"
    paper = "Yang, Kim & Bahk 2026"
    cost = "a matrix product with a basis of the last layer's weights"
    reads = (LOGITS, FEATURES)
    needs_head = True
    _reads_again = True

    class Fitted(NamedTuple):
        basis: Annotated[FloatArray, Numbers(FEATURES, "span")]
        """Of the span of the weights."""
        directions: Annotated[FloatArray, Numbers(LOGITS, FEATURES)]
        """Of every class's mean residual."""
        centre: Annotated[FloatArray, Numbers(2)]
        scale: Annotated[FloatArray, Numbers(2, above=0.0)]

    fitted_: Fitted

    def _partial(self, rows: ModelOutputs, turn: int) -> Any:
        if turn == 0:
            return rows.head, PredictedSums.of(rows)
        moments = RunningMoments(2)
        for _, logits, features in blocks_of(rows, self.reads, fitting=True):
            moments.update(_parts(logits, features, *self._fitting))
        return moments

    def _finish(self, total: Any, turn: int) -> Fitted | None:
        if turn == 0:
            basis = _span(total[0])
            self._fitting = basis, unit_rows(_residuals(total[1].means, basis))
            return None
        scale = np.where(total.std > 1e-12 * np.maximum(1.0, np.abs(total.mean)), total.std, 1.0)
        basis, directions = self._fitting
        return self.Fitted(basis, directions, total.mean, scale)

    @by_blocks
    def _score(self, logits: FloatArray, features: FloatArray) -> FloatArray:
        basis, directions, centre, scale = self.fitted_
        score: FloatArray = -((_parts(logits, features, basis, directions) - centre) / scale).sum(axis=1)
        return score


def _span(head: Head) -> FloatArray:
    """An orthonormal basis (d, k) of the span of the weights."""
    _, sizes, directions = np.linalg.svd(head.weight.astype(np.float64), full_matrices=False)
    return np.ascontiguousarray(directions[sizes > 1e-7 * max(float(sizes[0]), np.finfo(np.float64).tiny)].T)


def _residuals(features: FloatArray, basis: FloatArray) -> FloatArray:
    """The parts of rows (n, d) outside the span of the basis."""
    residuals = features - (features @ basis) @ basis.T
    residuals[lengths(residuals) <= _ROUNDING * lengths(features)] = 0.0
    return residuals


def _parts(logits: FloatArray, features: FloatArray, basis: FloatArray, directions: FloatArray) -> FloatArray:
    """The energy of every row and the cosine of its residual to that of its predicted class; (n, 2)."""
    cosine = np.einsum("ij,ij->i", unit_rows(_residuals(features, basis)), directions[logits.argmax(axis=1)])
    return np.stack([-energy_score(logits), cosine], axis=1)
