"""NECO: how much of the features lies in the principal space of the training features, times the largest logit."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.detectors.class_sums import ClassSums
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import by_blocks, lengths
from normscale.outputs import FEATURES, LOGITS, ModelOutputs
from normscale.state import Numbers


@register
class NECO(Detector):
    """Neural collapse: minus the share of the features' length in the principal space, times the largest logit.

    With x the features standardised by mean and standard deviation of the training rows, and P their projection on the
    leading principal components of the training rows,

        score = -|P x| / |x| * max_j z_j

    A feature that does not vary in training is left out. Features that are all average have no direction: their share
    is 0. The authors choose the number of components on OoD data; here it is that of the classes less one, the
    dimensions that collapsed features span.

    References
    ----------
    Ben Ammar, Belkhir, Popescu, Manzanera & Franchi, "NECO: Neural Collapse Based Out-of-distribution detection", 2024.

    Examples
    --------
    >>> features = np.array([[3.0, 0.1], [-3.0, 0.1], [2.0, -0.1], [-2.0, -0.1]])
    >>> detector = NECO().fit(ModelOutputs(np.c_[features[:, 0], -features[:, 0]], features=features))
    >>> detector.score(ModelOutputs([[3.0, -3.0]], features=[[0.0, 0.0]])).tolist()
    [-0.0]
    """

    name = "neco"
    title = "NECO"
    paper = "Ben Ammar et al. 2024"
    cost = "a matrix product with the principal components"
    reads = (LOGITS, FEATURES)
    parameters = {"components": "principal components of the features; by default the number of classes less one"}

    class Fitted(NamedTuple):
        mean: Annotated[FloatArray, Numbers(FEATURES)]
        factor: Annotated[FloatArray, Numbers(FEATURES, least=0.0)]
        """One over the standard deviation."""
        directions: Annotated[FloatArray, Numbers(FEATURES, "kept")]

    fitted_: Fitted

    def __init__(self, components: int | None = None) -> None:
        self.components = None if components is None else _validate.at_least(components, "components", 1)

    def _partial(self, rows: ModelOutputs, turn: int) -> ClassSums:
        return ClassSums().add(rows.features, np.zeros(len(rows), dtype=np.int64))  # all rows are one class

    def _finish(self, total: ClassSums, turn: int) -> Fitted:
        _, means, covariance, error = total.result()
        variance = np.diagonal(covariance)
        varies = variance > error
        factor = np.where(varies, 1.0 / np.sqrt(np.where(varies, variance, 1.0)), 0.0)
        _, vectors = np.linalg.eigh(covariance * np.outer(factor, factor))
        k = self.components or (self.widths_ or {})[LOGITS] - 1
        return self.Fitted(means[0], factor, np.ascontiguousarray(vectors[:, ::-1][:, :k]))

    @by_blocks
    def _score(self, logits: FloatArray, features: FloatArray) -> FloatArray:
        mean, factor, directions = self.fitted_
        features -= mean
        features *= factor
        size = lengths(features)
        share = lengths(features @ directions) / np.where(size > 0.0, size, 1.0)
        score: FloatArray = -np.minimum(share, 1.0) * logits.max(axis=1)
        return score
