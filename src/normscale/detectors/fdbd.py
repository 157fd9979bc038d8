"""fDBD: how far features lie from the decision boundaries, for their distance from the training mean."""

from __future__ import annotations

import numpy as np

from normscale._validate import FloatArray
from normscale.detectors.class_directions import ClassDirections
from normscale.detectors.formula import BoundaryFormula
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import blocks_of, lengths
from normscale.outputs import ModelOutputs

_SMALLEST = 1e-100
"""Distance from the mean that no row falls below: a score must be finite."""


@register
class FDBD(ClassDirections):
    """Fast decision-boundary distance: minus the mean distance to the boundaries, over that to the training mean.

        score = -(1 / (C - 1)) sum_{k != c} |z_c - z_k| / |w_c - w_k|  /  |f - mu|

    with c the class of the largest logit, z the logits, w_k the weights of class k in the last layer, C the number of
    classes and mu the mean of the training features. Between two classes of equal weights there is no boundary, and
    their term is left out. Nothing is chosen, by OoD data or otherwise.

    Attributes
    ----------
    mean_ : array (d,)
    weight_ : array (n_classes, d)

    References
    ----------
    Liu & Qin, "Fast Decision Boundary based Out-of-Distribution Detector", 2024.

    Examples
    --------
    >>> train = ModelOutputs(np.eye(2), features=[[0.0], [2.0]], head=([[1.0], [-1.0]], np.zeros(2)))
    >>> FDBD().fit(train).score(ModelOutputs([[4.0, -4.0]], features=[[4.0]])).round(4).tolist()
    [-1.3333]
    """

    name = "fdbd"
    title = "fDBD"
    paper = "Liu & Qin 2024"
    cost = "a matrix product with the last layer"

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

    def formula(self) -> BoundaryFormula:
        return BoundaryFormula(self._closeness, self.mean_, _SMALLEST)

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        scores = np.empty(len(outputs))
        for where, logits, features in blocks_of(outputs, self.reads):
            predicted = logits.argmax(axis=1)
            logits -= logits[np.arange(predicted.size), predicted][:, None]
            to_boundaries = np.einsum("ij,ij->i", logits, self._closeness[predicted])  # minus the distances
            features -= self.mean_
            scores[where] = to_boundaries / np.maximum(lengths(features), _SMALLEST)
        return scores
