"""Steps between the features and the last layer: ReAct, VRA, DICE, OptFS, ASH, SCALE, AdaSCALE, LTS."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from normscale import _validate
from normscale._validate import BoolArray, FloatArray, Rows
from normscale.detectors.base import About
from normscale.detectors.formula import LogitFormula, RectifiedFormula, SumFormula, arrays_of
from normscale.detectors.partial_fit import Gathered
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import blocks_of, float_blocks, quantiles
from normscale.detectors.step import DECLARED_HEAD, HeadStep, PercentileStep, Score, Step, percentile_of, replaced
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, LOGITS, PERTURBED_FEATURES, Head, ModelOutputs
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

    def _learned(self, head: Head, totals: Rows) -> Fitted:
        return self.Fitted(head, *quantiles(totals, [self.percentile / 100.0]))

    def _shaped(self, features: FloatArray, *others: FloatArray) -> FloatArray:
        return np.minimum(features, self.fitted_.limit)

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

    def _learned(self, head: Head, totals: Rows) -> Fitted:
        return self.Fitted(head, *quantiles(totals, [self.lower / 100.0, self.upper / 100.0]))

    def _shaped(self, features: FloatArray, *others: FloatArray) -> FloatArray:
        return np.where(features < self.fitted_.lower, 0.0, np.minimum(features, self.fitted_.upper))


@register
class DICE(HeadStep):
    """Logits by the most contributing weights of the last layer alone, scored by another detector.

    The contribution of a weight is its product with the mean of its feature over the training rows; weights whose
    contribution is not above a percentile of all contributions become 0:

        logits = (W * [W * mean f > limit]) f + b

    The percentile is the authors' for CIFAR, chosen there on noise; no OoD data chooses it here.
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

    def __init__(self, score: Score = "energy", percentile: float = 90.0) -> None:
        self._score_by(score)
        self.percentile = percentile_of(percentile)

    def _feature_totals(self, rows: ModelOutputs) -> tuple[FloatArray, int]:
        """The sum of the features, and how many rows it is of."""
        return sum(block.sum(axis=0) for _, block in float_blocks(rows.features, FEATURES)), len(rows)

    def _learned(self, head: Head, totals: Any) -> Any:
        weight = head.weight.astype(np.float64)
        contributions = weight * (totals[0] / totals[1])
        weight[contributions <= np.percentile(contributions, self.percentile)] = 0.0
        return self.Fitted(Head(weight, head.bias.astype(np.float64)))


@register
class OptFS(PercentileStep):
    """Optimal feature shaping: logits of features times a weight for their size, scored by another detector.

    The range of the training activations, less a thousandth on either side, is cut into bins of equal width. The
    weight of a bin is the mean over the training rows of what their features in it add to the predicted logit,

        weight_b ~ mean sum_{i: f_i in b} w_ci f_i

    scaled to a mean square of 1 over the bins. Features outside of all bins become 0. Nothing is chosen on OoD data.
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

    def _learned(self, head: Head, totals: Rows) -> Fitted:
        low, high = quantiles(totals, [_TAIL, 1.0 - _TAIL])
        width = (high - low) / self.bins if high > low else 1.0
        weight, sums = head.weight.astype(np.float64), np.zeros(self.bins + 1)
        for _, block in float_blocks(totals, FEATURES, head.n_classes, fitting=True):
            added = weight[head.logits(block).argmax(axis=1)] * block
            sums += np.bincount(self._bin(block, low, width).ravel(), added.ravel(), self.bins + 1)
        size = float(np.sqrt(np.square(sums[:-1]).mean()))
        return self.Fitted(head, low, width, sums[:-1] / size if size > 0.0 else np.ones(self.bins))

    def _bin(self, features: FloatArray, low: float, width: float) -> FloatArray:
        """The bin of every feature; ``bins`` where it has none."""
        place = np.floor((features - low) / width)
        return np.where((place >= 0) & (place < self.bins), place, self.bins).astype(np.intp)

    def _shaped(self, features: FloatArray, *others: FloatArray) -> FloatArray:
        _, low, width, weights = self.fitted_
        return features * np.append(weights, 0.0)[self._bin(features, low, width)]


PUBLISHED = {"p": 60.0, "b": 65.0, "s": 90.0}
"""The paper's percentile for each variant of ASH, on ImageNet."""
_SIZE_TOP, _SHIFT_TOP = 95.0, 99.0
"""Percentiles of a row's features above which AdaSCALE counts their perturbed size, and their shift."""
_LARGEST_EXPONENT = 500.0
"""exp of it times any feature is still finite."""


def n_kept(n_features: int, percentile: float) -> int:
    """How many of a row's features lie above a percentile of them; at least one."""
    return max(1, n_features - round(n_features * percentile / 100.0))


def largest(features: FloatArray, k: int) -> BoolArray:
    """Which numbers of every row are its k largest, the first of equals; (n, d)."""
    n_less = features.shape[1] - k
    limit = np.partition(features, n_less, axis=1)[:, n_less, None]
    chosen: BoolArray = features >= limit
    for row in np.flatnonzero(chosen.sum(axis=1) > k):  # more equals of the limit than there is room for
        equal = np.flatnonzero(features[row] == limit[row])
        chosen[row, equal[k - int((features[row] > limit[row]).sum()) :]] = False
    return chosen


def ratio_to_largest(features: FloatArray, of_largest: FloatArray, most: ArrayLike) -> FloatArray:
    """Sum of all features / sum of the largest, (n, 1); at most the number of all per largest.

    Features that are never negative, as behind a ReLU, stay below that by themselves; a row whose largest features sum
    to 0 or less, which the papers do not meet, gets the most.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(of_largest > 0.0, features.sum(axis=1, keepdims=True) / of_largest, most)
    return np.minimum(ratio, most)


def ratio_above(features: FloatArray, percentile: float) -> FloatArray:
    """The ratio for the features above a percentile of their row."""
    d = features.shape[1]
    k = n_kept(d, percentile)
    of_largest = np.partition(features, d - k, axis=1)[:, d - k :].sum(axis=1, keepdims=True)
    return ratio_to_largest(features, of_largest, d / k)


def growth(ratio: FloatArray) -> FloatArray:
    """exp of a ratio, always finite."""
    return np.exp(np.minimum(ratio, _LARGEST_EXPONENT))


@register
class ASH(HeadStep):
    """Activation shaping: logits of a row's largest features alone, scored by another detector.

    Of each row's features f, those below its own percentile become 0. With ``sum f`` over all features and ``kept f``
    over the k that stay, these become

        p (prune):     f
        b (binarise):  sum f / k
        s (scale):     f * exp(sum f / sum kept f)

    Of equal features the first stay. Nothing is learned but the last layer; the percentiles are the paper's for
    ImageNet. Features are shaped behind the average over space, as in the authors' code.
    """

    name = "ash"
    about = About(
        "ASH",
        'Djurisic et al. 2023: "Extremely Simple Activation Shaping for Out-of-Distribution Detection"',
        cost="a partial sort of each row's features, the last layer, and the score",
        parameters={
            "score": _SCORE,
            "variant": "what becomes of the features that stay: p (nothing), b (one number), s (scaled)",
            "percentile": "of each row's features; what lies below becomes 0; by default 60 (p), 65 (b), 90 (s)",
        },
    )

    def __init__(self, score: Score = "energy", variant: str = "s", percentile: float | None = None) -> None:
        self._score_by(score)
        self.variant = _validate.one_of(variant, "variant", PUBLISHED)
        self.percentile = PUBLISHED[variant] if percentile is None else percentile_of(percentile)

    def _shaped(self, features: FloatArray, *others: FloatArray) -> FloatArray:
        k = n_kept(features.shape[1], self.percentile)
        one = features.sum(axis=1, keepdims=True) / k
        shaped = np.where(largest(features, k), one if self.variant == "b" else features, 0.0)
        if self.variant == "s":
            of_largest = shaped.sum(axis=1, keepdims=True)
            shaped *= growth(ratio_to_largest(features, of_largest, features.shape[1] / k))
        return shaped


@register
class SCALE(HeadStep):
    """Logits of features times exp(sum of all / sum of the largest), scored by another detector.

    The largest features f of a row are those above its own percentile; none is removed. As the last layer is linear,
    with W and b its weight and bias,

        logits = exp(sum f / sum largest f) * (W f) + b

    Nothing is learned but the last layer; the percentile is the paper's, and no OoD data chooses it here.
    """

    name = "scale"
    about = About(
        "SCALE",
        'Xu et al. 2024: "Scaling for Training Time and Post-hoc Out-of-distribution Detection Enhancement"',
        cost="a partial sort of each row's features, the last layer, and the score",
        parameters={
            "score": _SCORE,
            "percentile": "of each row's features; those above are its largest. The paper's is 85",
        },
    )

    def __init__(self, score: Score = "energy", percentile: float = 85.0) -> None:
        self._score_by(score)
        self.percentile = percentile_of(percentile)

    def _shaped(self, features: FloatArray, *others: FloatArray) -> FloatArray:
        return features * growth(ratio_above(features, self.percentile))


@register
class AdaSCALE(HeadStep):
    """Logits of features times exp(sum of all / sum of the largest), with a percentile of the row's own for "largest".

    With f the features of an input and f~ those of the input a small step away
    (:func:`normscale.extraction.perturbing.perturbed_features`),

        q = sum max(f~, 0) over the largest 5 % of f + shift_weight * sum |f - f~| over the largest 1 % of f

    is larger for OoD inputs. The share of validation rows with a larger q leads from ``low`` to ``high``, the
    percentile above which features are the row's largest. Negative features count as 0 in both sums. The authors choose
    ``low`` and ``high`` on OoD data; these are their defaults.
    """

    name = "adascale"
    about = About(
        "AdaSCALE",
        'Regmi 2025: "AdaSCALE: Adaptive Scaling for OOD Detection"; the form that scales activations',
        cost="a sort of each row's features, the last layer, the score; a gradient and a second forward pass before",
        parameters={
            "score": _SCORE,
            "low": "percentile of the features of a row that moves most",
            "high": "percentile of the features of a row that moves least",
            "shift_weight": "weight of the shift of the largest features",
        },
        fitted_on="validation",
    )
    own_reads = (FEATURES, PERTURBED_FEATURES)
    removes = (FEATURES, PERTURBED_FEATURES)

    class Fitted(NamedTuple):
        head: Annotated[Head, DECLARED_HEAD]
        shifts: Annotated[FloatArray, Numbers("rows")]
        """q of the validation rows, in order."""

    fitted_: Fitted

    def __init__(
        self, score: Score = "energy", low: float = 75.0, high: float = 85.0, shift_weight: float = 10.0
    ) -> None:
        self._score_by(score)
        self.low, self.high = percentile_of(low), percentile_of(high)
        if self.low > self.high:
            raise InvalidInput(f"low must not lie above high; got {low!r} and {high!r}.")
        self.shift_weight = _validate.positive(shift_weight, "shift_weight")

    def _feature_totals(self, rows: ModelOutputs) -> Gathered:
        return Gathered([self._shift(*own) for _, *own in blocks_of(rows, self.own_reads, fitting=True)])

    def _learned(self, head: Head, totals: Gathered) -> Fitted:
        return self.Fitted(head, np.sort(np.concatenate(totals.parts)))

    def _shift(self, features: FloatArray, moved: FloatArray) -> FloatArray:
        """The q of every row."""
        size, shift = (largest(features, n_kept(features.shape[1], top)) for top in (_SIZE_TOP, _SHIFT_TOP))
        q: FloatArray = np.where(size, np.maximum(moved, 0.0), 0.0).sum(axis=1)
        q += self.shift_weight * np.where(shift, np.abs(features - moved), 0.0).sum(axis=1)
        return q

    def _shaped(self, features: FloatArray, *others: FloatArray) -> FloatArray:
        shifts = self.fitted_.shifts
        larger = 1.0 - np.searchsorted(shifts, self._shift(features, *others), side="right") / shifts.size
        percentiles, d = self.low + larger * (self.high - self.low), features.shape[1]
        k = np.maximum(1, d - np.round(d * percentiles / 100.0).astype(np.intp))[:, None]
        positive = np.maximum(features, 0.0)
        of_largest = np.take_along_axis(np.cumsum(-np.sort(-positive, axis=1), axis=1), k - 1, axis=1)
        return features * growth(ratio_to_largest(positive, of_largest, d / k))


@register
class LTS(Step):
    """Logit scaling: logits times (sum of all features / sum of the largest) squared, scored by another detector.

    The largest features f of a row are those above its own percentile. With z the logits,

        logits = (sum f / sum largest f)^2 * z

    It needs no training rows and no last layer. A negative sum counts as 0. The percentile was not checked against the
    authors' code.
    """

    name = "lts"
    about = About(
        "LTS",
        'Djurisic, Liu & Nikolic 2024: "Logit Scaling for Out-of-Distribution Detection"',
        cost="a partial sort of each row's features, and the score",
        parameters={"score": _SCORE, "percentile": "of each row's features; those above are its largest"},
    )
    default_score = "energy"
    own_reads = (LOGITS, FEATURES)
    learns_nothing = True

    def __init__(self, score: Score = "energy", percentile: float = 95.0) -> None:
        self._score_by(score)
        self.percentile = percentile_of(percentile)

    def _transform(self, outputs: ModelOutputs, threads: int) -> ModelOutputs:
        scaled = np.empty(outputs.logits.shape)
        for where, logits, features in blocks_of(outputs, (LOGITS, FEATURES)):
            scaled[where] = np.square(np.maximum(ratio_above(features, self.percentile), 0.0)) * logits
        return replaced(outputs, LOGITS, scaled)
