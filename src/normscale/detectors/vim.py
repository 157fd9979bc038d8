"""ViM: the part of the features that no class explains, as a logit of its own against the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.detectors.registry import register
from normscale.detectors.residual_space import ResidualSpace, SecondMoment
from normscale.detectors.row_blocks import float_blocks
from normscale.outputs import FEATURES, LOGITS, ModelOutputs
from normscale.scores import energy_score


@register
class ViM(Detector):
    """Virtual-logit matching: the residual of the features, in the size of logits, less their log-sum-exp.

        score = alpha |N' (f - o)| - log sum exp(z),    alpha = mean(max z) / mean(|N' (f - o)|)

    with N and o as in :class:`~normscale.detectors.residual.Residual` and the means over the training rows.

    Parameters
    ----------
    dimensions : int, optional
        Of the principal space. By default the rule of the authors' code: 1000 from 2048 features on, 512 from 768 on,
        otherwise half; only features that vary independently are counted. No data chooses it.

    Attributes
    ----------
    space_ : ResidualSpace
    alpha_ : float

    References
    ----------
    Wang, Li, Feng & Zhang, "ViM: Out-Of-Distribution with Virtual-logit Matching", 2022.

    Examples
    --------
    >>> train = ModelOutputs(np.eye(2), features=[[9.0, 1.0], [8.0, -1.0]], head=(np.eye(2), np.zeros(2)))
    >>> detector = ViM().fit(train)
    >>> detector.score(ModelOutputs(np.zeros((2, 2)), features=[[5.0, 0.0], [0.0, 5.0]])).round(2).tolist()
    [-0.66, 4.32]
    """

    name = "vim"
    title = "ViM"
    paper = "Wang et al. 2022"
    cost = "a matrix product with the features, one pass over the logits"
    reads = (LOGITS, FEATURES)
    needs_head = True
    _reads_again = True
    parameters = {"dimensions": "of the principal space; by default 1000, 512 or half, by the number of features"}

    class Fitted(NamedTuple):
        """The residual space, and the size of a residual in that of a logit."""

        space: ResidualSpace
        alpha: float

    fitted_: Fitted

    def __init__(self, dimensions: int | None = None) -> None:
        self.dimensions = None if dimensions is None else _validate.at_least(dimensions, "dimensions", 1)

    def _partial(self, chunks: Iterator[ModelOutputs], turn: int) -> Any:
        if turn == 1:  # alpha is a mean of lengths in a space that only all rows tell
            sums = np.zeros(2)
            for chunk in chunks:
                sums[0] += float(chunk.logits.max(axis=1).astype(np.float64).sum())
                blocks = float_blocks(chunk.features, FEATURES)
                sums[1] += sum(float(self.fitted_.space.norms(block).sum()) for _, block in blocks)
            return sums
        moment: SecondMoment | None = None
        for chunk in chunks:
            assert chunk.head is not None  # the contract checked it
            moment = moment or SecondMoment(chunk.head)
            moment.add(chunk.features)
        return moment

    def _merge(self, first: Any, second: Any) -> Any:
        return first + second if isinstance(first, np.ndarray) else first.merge(second)

    def _finish(self, total: Any, turn: int) -> bool:
        if turn == 0:
            self._learn(self.Fitted(total.space(self.dimensions), np.nan))
            return False
        self._learn(self.fitted_._replace(alpha=float(total[0] / total[1])))
        return True

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        scores = energy_score(outputs.logits, threads=threads)
        for where, block in float_blocks(outputs.features, FEATURES):
            scores[where] += self.fitted_.alpha * self.fitted_.space.norms(block)
        return scores
