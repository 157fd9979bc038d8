"""Features or weights are limited by what training showed, before the last layer: ReAct, VRA, DICE, OptFS."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray
from normscale.detectors.base import About
from normscale.detectors.formula import LogitFormula, RectifiedFormula, SumFormula, arrays_of
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import float_blocks
from normscale.detectors.step import DECLARED_HEAD, HeadStep, PercentileStep, Score, percentile_of
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, LOGITS, Head, ModelOutputs
from normscale.state import Numbers

_SCORE = "the detector that scores the new logits; the paper uses Energy"
_TAIL = 1e-3
"""Share of the training activations on either side that has no bin."""


@register
class ReAct(PercentileStep):
    """Rectified activations: logits of ``min(features, limit)``, scored by another detector.

    The limit is a percentile of all training activations together; no OoD data chooses it.

    Examples
    --------
    >>> train = ModelOutputs(features=np.arange(10.0).reshape(5, 2), head=(np.eye(2), np.zeros(2)))
    >>> detector = ReAct("max_logit", percentile=50.0).fit(train)
    >>> detector.name, detector.limit_, detector.score(np.array([[9.0, 1.0], [2.0, 1.0]])).tolist()
    ('react+max_logit', 4.5, [-4.5, -2.0])
    """

    name = "react"
    about = About(
        "ReAct",
        'Sun, Guo & Li 2021: "ReAct: Out-of-distribution Detection With Rectified Activations"',
        cost="the last layer, and the score",
        parameters={
            "score": _SCORE,
            "percentile": "of the training activations, 0 to 100; what lies above is cut off. The paper's is 90",
        },
    )

    class Fitted(NamedTuple):
        head: Annotated[Head, DECLARED_HEAD]
        limit: float

    fitted_: Fitted

    def __init__(self, score: Score = "energy", percentile: float = 90.0) -> None:
        self._score_by(score)
        self.percentile = percentile_of(percentile)

    def _learned(self, head: Head, told: FloatArray) -> Fitted:
        return self.Fitted(head, float(np.percentile(told, self.percentile)))

    def _logits(self, *blocks: FloatArray) -> FloatArray:
        return self.fitted_.head.logits(np.minimum(blocks[0], self.fitted_.limit))

    def _formula(self) -> RectifiedFormula | None:
        inner = self._scorer_formula() if self.scorer.reads == (LOGITS,) else None
        if not isinstance(inner, (LogitFormula, SumFormula)) or arrays_of(inner) != {LOGITS}:
            return None
        weight, bias = (part.astype(np.float64) for part in self.fitted_.head)
        return RectifiedFormula(self.fitted_.limit, weight, bias, inner)


@register
class VRA(PercentileStep):
    """Variational rectified activations: logits of features between two limits, scored by another detector.

    Features below the lower limit become 0, those above the upper one become it. Both are percentiles of all training
    activations together:

        f -> 0 where f < lower,    min(f, upper) elsewhere

    The default percentiles are ours to vary: check them against the paper before you compare with its figures.

    Examples
    --------
    >>> train = ModelOutputs(features=np.arange(11.0).repeat(2).reshape(11, 2), head=(np.eye(2), np.zeros(2)))
    >>> VRA("max_logit", lower=30.0, upper=80.0).fit(train).score(np.array([[9.0, 1.0], [2.0, 1.0]])).tolist()
    [-8.0, -0.0]
    """

    name = "vra"
    about = About(
        "VRA",
        'Xu et al. 2023: "VRA: Variational Rectified Activation for Out-of-distribution Detection"',
        cost="the last layer, and the score",
        parameters={
            "score": _SCORE,
            "lower": "percentile of the training activations; what lies below becomes 0",
            "upper": "percentile of the training activations; what lies above is cut off",
        },
    )

    class Fitted(NamedTuple):
        head: Annotated[Head, DECLARED_HEAD]
        lower: float
        upper: float

        def check(self) -> None:
            if self.lower > self.upper:
                raise InvalidInput("lower must not lie above upper.")

    fitted_: Fitted

    def __init__(self, score: Score = "energy", lower: float = 60.0, upper: float = 95.0) -> None:
        self._score_by(score)
        self.lower, self.upper = percentile_of(lower), percentile_of(upper)
        if self.lower >= self.upper:
            raise InvalidInput(f"lower must be below upper; got {lower!r} and {upper!r}.")

    def _learned(self, head: Head, told: FloatArray) -> Fitted:
        return self.Fitted(head, *np.percentile(told, [self.lower, self.upper]).tolist())

    def _logits(self, *blocks: FloatArray) -> FloatArray:
        head, lower, upper = self.fitted_
        return head.logits(np.where(blocks[0] < lower, 0.0, np.minimum(blocks[0], upper)))


@register
class DICE(HeadStep):
    """Logits by the most contributing weights of the last layer alone, scored by another detector.

    The contribution of a weight is its product with the mean of its feature over the training rows; weights whose
    contribution is not above a percentile of all contributions become 0:

        logits = (W * [W * mean f > limit]) f + b

    The percentile is the authors' for CIFAR, chosen there on noise; no OoD data chooses it here.

    Examples
    --------
    >>> train = ModelOutputs(features=[[1.0, 2.0], [3.0, 2.0]], head=([[1.0, 0.1], [0.2, 2.0]], [0.0, 0.0]))
    >>> detector = DICE("max_logit", percentile=50.0).fit(train)
    >>> detector.sparse_head_.weight.tolist(), detector.score(np.array([[5.0, 1.0]])).tolist()
    ([[1.0, 0.0], [0.0, 2.0]], [-5.0])
    """

    name = "dice"
    about = About(
        "DICE",
        'Sun & Li 2022: "DICE: Leveraging Sparsification for Out-of-Distribution Detection"',
        cost="the last layer, and the score",
        parameters={
            "score": _SCORE,
            "percentile": "of the weights' contributions in training; weights up to it become 0. The authors take 90 "
            "for CIFAR and 70 for ImageNet",
        },
    )

    class Fitted(NamedTuple):
        head: Annotated[Head, DECLARED_HEAD]
        sparse_head: Annotated[Head, DECLARED_HEAD]

    fitted_: Fitted

    def __init__(self, score: Score = "energy", percentile: float = 90.0) -> None:
        self._score_by(score)
        self.percentile = percentile_of(percentile)

    def _told_features(self, rows: ModelOutputs) -> tuple[FloatArray, int]:
        """The sum of the features, and how many rows it is of."""
        return sum(block.sum(axis=0) for _, block in float_blocks(rows.features, FEATURES)), len(rows)

    def _learned(self, head: Head, told: Any) -> Fitted:
        weight = head.weight.astype(np.float64)
        contributions = weight * (told[0] / told[1])
        weight[contributions <= np.percentile(contributions, self.percentile)] = 0.0
        return self.Fitted(head, Head(weight, head.bias.astype(np.float64)))

    def _logits(self, *blocks: FloatArray) -> FloatArray:
        return self.fitted_.sparse_head.logits(blocks[0])


@register
class OptFS(PercentileStep):
    """Optimal feature shaping: logits of features times a weight for their size, scored by another detector.

    The range of the training activations, less a thousandth on either side, is cut into bins of equal width. The
    weight of a bin is the mean over the training rows of what their features in it add to the predicted logit,

        weight_b ~ mean sum_{i: f_i in b} w_ci f_i

    scaled to a mean square of 1 over the bins. Features outside of all bins become 0. Nothing is chosen on OoD data.

    Examples
    --------
    >>> features = np.linspace(0.0, 4.0, 64).reshape(32, 2)
    >>> detector = OptFS(bins=4).fit(ModelOutputs(features=features, head=([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0])))
    >>> detector.fitted_.weights.round(2).tolist()
    [0.24, 0.71, 1.19, 1.43]
    """

    name = "optfs"
    about = About(
        "OptFS",
        'Zhao et al. 2024: "Towards Optimal Feature-Shaping Methods for Out-of-Distribution Detection"',
        cost="the last layer, and the score",
        parameters={
            "score": "the detector that scores the new logits; the paper takes the new logit of the predicted class",
            "bins": "how many sizes of features have a weight of their own",
        },
    )
    default_score = "max_logit"

    class Fitted(NamedTuple):
        head: Annotated[Head, DECLARED_HEAD]
        low: float
        """The smallest number with a bin."""
        width: Annotated[float, Numbers(above=0.0)]
        """Of a bin."""
        weights: Annotated[FloatArray, Numbers("bins")]

    fitted_: Fitted

    def __init__(self, score: Score = "max_logit", bins: int = 100) -> None:
        self._score_by(score)
        self.bins = _validate.at_least(bins, "bins", 2)

    def _learned(self, head: Head, told: FloatArray) -> Fitted:
        low, high = np.quantile(told, [_TAIL, 1.0 - _TAIL]).tolist()
        width = (high - low) / self.bins if high > low else 1.0
        weight, sums = head.weight.astype(np.float64), np.zeros(self.bins + 1)
        for _, block in float_blocks(told, FEATURES, head.n_classes, fitting=True):
            added = weight[head.logits(block).argmax(axis=1)] * block
            sums += np.bincount(self._bin(block, low, width).ravel(), added.ravel(), self.bins + 1)
        size = float(np.sqrt(np.square(sums[:-1]).mean()))
        return self.Fitted(head, low, width, sums[:-1] / size if size > 0.0 else np.ones(self.bins))

    def _bin(self, features: FloatArray, low: float, width: float) -> FloatArray:
        """The bin of every feature; ``bins`` where it has none."""
        place = np.floor((features - low) / width)
        return np.where((place >= 0) & (place < self.bins), place, self.bins).astype(np.intp)

    def _logits(self, *blocks: FloatArray) -> FloatArray:
        head, low, width, weights = self.fitted_
        return head.logits(blocks[0] * np.append(weights, 0.0)[self._bin(blocks[0], low, width)])
