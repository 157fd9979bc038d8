"""Residual: how far features leave the principal space of the training features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

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
    dimensions : int, optional
        Of the principal space. By default the rule of the authors' code: 1000 from 2048 features on, 512 from 768 on,
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
    parameters = {"dimensions": "of the principal space; by default 1000, 512 or half, by the number of features"}

    class Fitted(NamedTuple):
        """The residual space."""

        space: ResidualSpace

    fitted_: Fitted

    def __init__(self, dimensions: int | None = None) -> None:
        self.dimensions = None if dimensions is None else _validate.at_least(dimensions, "dimensions", 1)

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
            self._learn(self.Fitted(total.space(self.dimensions)))
        return True

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        scores = np.empty(len(outputs))
        for where, block in float_blocks(outputs.features, FEATURES):
            scores[where] = self.fitted_.space.norms(block)
        return scores
