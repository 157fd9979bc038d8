"""Features beside those of their predicted class: SHE, CADRef, CORE, fDBD, NCI."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray
from normscale.detectors.base import About, ByFormula, Detector
from normscale.detectors.formula import BoundaryFormula
from normscale.detectors.mahalanobis import class_totals
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import blocks_of, by_blocks, lengths, unit_rows
from normscale.errors import InvalidInput
from normscale.moments import RunningMoments
from normscale.outputs import FEATURES, HEAD, LABELS, LOGITS, Head, ModelOutputs
from normscale.scores import energy_score
from normscale.state import Numbers


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


@register
class SHE(Detector):
    """Simplified Hopfield energy: minus the inner product of the features with the predicted class's pattern.

        score = -f' s_c

    with c the class of the largest logit and s_c the mean features of the training rows of class c that were predicted
    right. A class that no training row was predicted right as has nothing stored: its pattern is 0, and so is the
    score of every row predicted so.
    """

    name = "she"
    about = About(
        "SHE",
        'Zhang et al. 2023: "Out-of-Distribution Detection based on In-Distribution Data Patterns Memorization '
        'with Modern Hopfield Energy"',
        cost="one pass over the features",
    )
    reads = (LOGITS, FEATURES)
    reads_in_fit = (LABELS,)

    class Fitted(NamedTuple):
        patterns: Annotated[FloatArray, Numbers(LOGITS, FEATURES)]

    fitted_: Fitted

    def _partial(self, rows: ModelOutputs, turn: int) -> PredictedSums:
        return PredictedSums.of(rows, only_right=True)

    def _finish(self, total: PredictedSums, turn: int) -> Fitted:
        if not total.counts.any():
            raise InvalidInput(
                "no training row is predicted as its label, so there is no pattern to store. Do the labels belong to "
                "these logits?"
            )
        return self.Fitted(total.sums / np.maximum(total.counts, 1.0)[:, None])

    @by_blocks
    def _score(self, logits: FloatArray, features: FloatArray) -> FloatArray:
        return -np.einsum("ij,ij->i", features, self.fitted_.patterns[logits.argmax(axis=1)])


_LEAST_ENERGY = 1e-3
_LEAST_SIZE = 1e-6
"""A row's features count as at least this share of the mean size of the classes' means."""


@register
class CADRef(Detector):
    """Class-aware relative features: the L1 gap to the predicted class's mean, split by the signs of its weights.

    With c the class of the largest logit, m_c the mean features of the training rows predicted as c and w_c its
    weights in the last layer, the gap g = f - m_c has a part that raises the logit, max(g sign(w_c), 0), and a part
    that lowers it, max(-g sign(w_c), 0). With E(z) = log sum exp(z) and its training mean,

        score = |raising part|_1 / (|f|_1 E(z)) + |lowering part|_1 / (|f|_1 mean E)

    Both E count as at least 0.001. The size of the features counts as at least a millionth of the classes' means. A
    class that was never predicted has the mean of all rows.
    """

    name = "cadref"
    about = About(
        "CADRef",
        'Ling et al. 2025: "CADRef: Robust Out-of-Distribution Detection via Class-Aware Decoupled Relative '
        'Feature Leveraging"; the form with Energy',
        cost="one pass over logits and features",
    )
    reads = (LOGITS, FEATURES)
    reads_in_fit = (HEAD,)

    class Fitted(NamedTuple):
        signs: Annotated[FloatArray, Numbers(LOGITS, FEATURES)]
        """Of the weights."""
        means: Annotated[FloatArray, Numbers(LOGITS, FEATURES)]
        energy: float
        """The mean one."""

    fitted_: Fitted

    def _partial(self, rows: ModelOutputs, turn: int) -> tuple[Any, PredictedSums, float]:
        return rows.head, PredictedSums.of(rows), -float(energy_score(rows.logits).sum())

    def _finish(self, total: Any, turn: int) -> Fitted:
        head, sums, energy = total
        return self.Fitted(np.sign(head.weight).astype(np.float64), sums.means, energy / sums.counts.sum())

    @by_blocks
    def _score(self, logits: FloatArray, features: FloatArray) -> FloatArray:
        signs, means, mean_energy = self.fitted_
        predicted = logits.argmax(axis=1)
        least = max(_LEAST_SIZE * float(np.abs(means).sum(axis=1).mean()), np.finfo(np.float64).tiny)
        size = np.maximum(np.abs(features).sum(axis=1), least)
        features -= means[predicted]
        features *= signs[predicted]
        raising = np.maximum(features, 0.0).sum(axis=1) / size
        lowering = np.maximum(-features, 0.0).sum(axis=1) / size
        energy = np.maximum(-energy_score(logits), _LEAST_ENERGY)
        return raising / energy + lowering / max(mean_energy, _LEAST_ENERGY)


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
    """

    name = "core"
    about = About(
        "CORE",
        'Yang, Kim & Bahk 2026: "CORE: Robust Out-of-Distribution Detection via Confidence and Orthogonal '
        'Residual Scoring"',
        cost="a matrix product with a basis of the last layer's weights",
    )
    reads = (LOGITS, FEATURES)
    reads_in_fit = (HEAD,)
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
        return -((_parts(logits, features, basis, directions) - centre) / scale).sum(axis=1)


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


_SMALLEST = 1e-100
"""Distance from the mean that no row falls below: a score must be finite."""


class ClassDirections(ByFormula):
    """Base class of detectors that look at features from their mean, along the classes' weights."""

    reads = (LOGITS, FEATURES)
    reads_in_fit = (HEAD,)

    class Fitted(NamedTuple):
        weight: Annotated[FloatArray, Numbers(LOGITS, FEATURES)]

    fitted_: Fitted

    @property
    def mean_(self) -> FloatArray:
        """The mean of the training features, which the baseline keeps."""
        assert self._baseline is not None  # fit reads logits
        return self._baseline.others[FEATURES].mean

    def _partial(self, rows: ModelOutputs, turn: int) -> Head | None:
        return rows.head

    def _finish(self, total: Head, turn: int) -> Fitted:
        return self.Fitted(total.weight.astype(np.float64))

    def _derive(self) -> None:
        if self._baseline is None or self.mean_.size != self.fitted_.weight.shape[1]:
            raise InvalidInput("the mean of the training features must have a number for each feature.")


@register
class FDBD(ClassDirections):
    """Fast decision-boundary distance: minus the mean distance to the boundaries, over that to the training mean.

        score = -(1 / (C - 1)) sum_{k != c} |z_c - z_k| / |w_c - w_k|  /  |f - mu|

    with c the class of the largest logit, z the logits, w_k the weights of class k in the last layer, C the number of
    classes and mu the mean of the training features. Between two classes of equal weights there is no boundary, and
    their term is left out. Nothing is chosen, by OoD data or otherwise.
    """

    name = "fdbd"
    about = About(
        "fDBD",
        'Liu & Qin 2024: "Fast Decision Boundary based Out-of-Distribution Detector"',
        cost="a matrix product with the last layer",
    )

    _closeness: FloatArray

    def _derive(self) -> None:
        """One over the distances between the classes' weights, over the number of other classes."""
        super()._derive()
        weight = self.fitted_.weight
        n_classes = weight.shape[0]
        self._closeness = np.zeros((n_classes, n_classes))
        for c in range(n_classes):
            apart = lengths(weight - weight[c])
            differ = apart > 0.0
            self._closeness[c, differ] = 1.0 / (apart[differ] * (n_classes - 1))

    def _formula(self) -> BoundaryFormula:
        return BoundaryFormula(self._closeness, self.mean_, _SMALLEST)


@register
class NCI(ClassDirections):
    """Neural-collapse inspired: how well centred features follow the predicted class's weights, and their size.

        score = -w_c' (f - mu) / |f - mu|  -  alpha |f|_1

    with c the class of the largest logit, w_c its weights in the last layer and mu the mean of the training features.
    The first term is 0 for features in mu. The authors tune alpha on OoD data; here it is OpenOOD's default.
    """

    name = "nci"
    about = About(
        "NCI",
        'Liu & Qin 2025: "Detecting Out-of-Distribution Through the Lens of Neural Collapse"',
        cost="one pass over the features",
        parameters={"alpha": "weight of the size of the features, at least 0"},
    )

    def __init__(self, alpha: float = 1e-4) -> None:
        self.alpha = _validate.real(alpha, "alpha")
        if not 0.0 <= self.alpha < np.inf:
            raise InvalidInput(f"alpha must be finite and at least 0; got {alpha!r}.")

    @by_blocks
    def _score(self, logits: FloatArray, features: FloatArray) -> FloatArray:
        size = np.abs(features).sum(axis=1)
        features -= self.mean_
        along = np.einsum("ij,ij->i", features, self.fitted_.weight[logits.argmax(axis=1)])
        distance = lengths(features)
        return -along / np.where(distance > 0.0, distance, 1.0) - self.alpha * size
