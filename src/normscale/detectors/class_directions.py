"""Features seen from their training mean, along the last layer's weights of the classes: fDBD and NCI."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray
from normscale.detectors.base import About, Detector
from normscale.detectors.formula import BoundaryFormula
from normscale.detectors.formula_scores import BoundaryScores, FormulaScores
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import by_blocks, lengths
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, HEAD, LOGITS, Head, ModelOutputs
from normscale.state import Numbers

_SMALLEST = 1e-100
"""Distance from the mean that no row falls below: a score must be finite."""


class ClassDirections(Detector):
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

    Examples
    --------
    >>> train = ModelOutputs(np.eye(2), features=[[0.0], [2.0]], head=([[1.0], [-1.0]], np.zeros(2)))
    >>> FDBD().fit(train).score(ModelOutputs([[4.0, -4.0]], features=[[4.0]])).round(4).tolist()
    [-1.3333]
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

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        return FormulaScores(BoundaryScores(self._formula()), self.reads)(outputs, threads)


@register
class NCI(ClassDirections):
    """Neural-collapse inspired: how well centred features follow the predicted class's weights, and their size.

        score = -w_c' (f - mu) / |f - mu|  -  alpha |f|_1

    with c the class of the largest logit, w_c its weights in the last layer and mu the mean of the training features.
    Features that lie in mu have no direction; the first term is 0 there. The authors tune alpha on OoD data; here it is
    the default of their code in OpenOOD, whatever the data.

    Examples
    --------
    >>> train = ModelOutputs(np.eye(2), features=[[2.0, 0.0], [0.0, 2.0]], head=(np.eye(2), np.zeros(2)))
    >>> NCI(alpha=0.5).fit(train).score(ModelOutputs([[3.0, 1.0]], features=[[4.0, 1.0]])).tolist()
    [-3.5]
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
