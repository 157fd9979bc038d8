"""Residual: how far features leave the principal space of the training features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale import _validate
from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.detectors.registry import register
from normscale.detectors.residual_space import ResidualSpace, SecondMoment
from normscale.detectors.row_blocks import float_blocks
from normscale.outputs import FEATURES, ModelOutputs


@register
class Residual(Detector):
    """Length of the features' part outside the principal space.

        score = |N' (f - o)|,    o = -pinv(W) b

    with N the directions of the smallest eigenvalues of the training features' second moment around o, where the last
    layer (W, b) gives no logits.

    Parameters
    ----------
    dimensions : int
        Of the principal space. 0 takes the rule of the authors' code: 1000 from 2048 features on, 512 from 768 on,
        otherwise half; only features that vary independently are counted. No data chooses it.

    Attributes
    ----------
    space_ : ResidualSpace

    References
    ----------
    Wang, Li, Feng & Zhang, "ViM: Out-Of-Distribution with Virtual-logit Matching", 2022.

    Examples
    --------
    >>> train = ModelOutputs(features=[[9.0, 1.0], [8.0, -1.0]], head=(np.eye(2), np.zeros(2)))
    >>> Residual().fit(train).score(np.array([[5.0, 0.0], [0.0, 5.0]])).round(2).tolist()
    [0.03, 5.0]
    """

    name = "residual"
    title = "Residual"
    paper = "Wang et al. 2022"
    cost = "a matrix product with the features"
    reads = (FEATURES,)
    needs_head = True
    parameters = {"dimensions": "of the principal space; 0: 1000, 512 or half, by the number of features"}

    space_: ResidualSpace

    def __init__(self, dimensions: int = 0) -> None:
        self.dimensions = _validate.at_least(dimensions, "dimensions", 0)

    def _partial(self, chunks: Iterator[ModelOutputs], turn: int) -> SecondMoment | None:
        moment: SecondMoment | None = None
        for chunk in chunks:
            assert chunk.head is not None  # the contract checked it
            moment = moment or SecondMoment(chunk.head)
            moment.add(chunk.features)
        return moment

    def _merge(self, first: SecondMoment, second: SecondMoment) -> SecondMoment:
        return first.merge(second)

    def _finish(self, total: SecondMoment | None, turn: int) -> bool:
        if total is not None:
            self.space_ = total.space(self.dimensions)
        return True

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        scores = np.empty(len(outputs))
        for where, block in float_blocks(outputs.features, FEATURES):
            scores[where] = self.space_.norms(block)
        return scores

    def _tensors(self) -> dict[str, NDArray[Any]]:
        return self.space_.tensors()

    def _restore(self, tensors: dict[str, NDArray[Any]]) -> None:
        self.space_ = ResidualSpace.from_tensors(tensors, (self.widths_ or {}).get(FEATURES))
