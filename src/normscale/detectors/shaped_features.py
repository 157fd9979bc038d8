"""Features or logits are scaled by how much of the features' sum lies in the largest: ASH, SCALE, AdaSCALE, LTS."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from normscale import _validate
from normscale._validate import BoolArray, FloatArray
from normscale.detectors.base import About
from normscale.detectors.partial_fit import Gathered
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import blocks_of
from normscale.detectors.step import DECLARED_HEAD, HeadStep, Score, Step, percentile_of, replaced
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, LOGITS, PERTURBED_FEATURES, Head, ModelOutputs
from normscale.state import Numbers

PUBLISHED = {"p": 60.0, "b": 65.0, "s": 90.0}
"""The paper's percentile for each variant of ASH, on ImageNet."""
_SIZE_TOP, _SHIFT_TOP = 95.0, 99.0
"""Percentiles of a row's features above which AdaSCALE counts their perturbed size, and their shift."""
_SCORE = "the detector that scores the new logits; the paper uses Energy"
_LARGEST_EXPONENT = 500.0
"""exp of it times any feature is still finite."""


def n_kept(n_features: int, percentile: float) -> int:
    """How many of a row's features lie above a percentile of them; at least one.

    Examples
    --------
    >>> n_kept(512, 90.0), n_kept(4, 99.0)
    (51, 1)
    """
    return max(1, n_features - round(n_features * percentile / 100.0))


def largest(features: FloatArray, k: int) -> BoolArray:
    """Which numbers of every row are its k largest, the first of equals; (n, d).

    Examples
    --------
    >>> largest(np.array([[3.0, 1.0, 2.0, 2.0]]), 2).tolist()
    [[True, False, True, False]]
    """
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

    Of equal features the first stay. Nothing is learned but the last layer; the percentiles are the paper's, chosen
    there on ImageNet, and no OoD data chooses them here. Features are shaped where the authors' code does it, behind
    the average over space.

    Examples
    --------
    >>> train = ModelOutputs(features=np.ones((2, 4)), head=(np.eye(2, 4), np.zeros(2)))
    >>> detector = ASH("max_logit", variant="b", percentile=50.0).fit(train)
    >>> detector.name, detector.score(np.array([[4.0, 1.0, 2.0, 1.0]])).tolist()
    ('ash+max_logit', [-4.0])
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

    def _logits(self, *blocks: FloatArray) -> FloatArray:
        (features,) = blocks
        k = n_kept(features.shape[1], self.percentile)
        one = features.sum(axis=1, keepdims=True) / k
        shaped = np.where(largest(features, k), one if self.variant == "b" else features, 0.0)
        if self.variant == "s":
            of_largest = shaped.sum(axis=1, keepdims=True)
            shaped *= growth(ratio_to_largest(features, of_largest, features.shape[1] / k))
        head: Head = self.fitted_.head
        return head.logits(shaped)


@register
class SCALE(HeadStep):
    """Logits of features times exp(sum of all / sum of the largest), scored by another detector.

    The largest features f of a row are those above its own percentile; none is removed. As the last layer is linear,
    with W and b its weight and bias,

        logits = exp(sum f / sum largest f) * (W f) + b

    Nothing is learned but the last layer; the percentile is the paper's, and no OoD data chooses it here.

    Examples
    --------
    >>> train = ModelOutputs(features=np.ones((2, 4)), head=(np.eye(2, 4), np.zeros(2)))
    >>> detector = SCALE("max_logit", percentile=75.0).fit(train)
    >>> detector.name, detector.score(np.array([[4.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])).round(2).tolist()
    ('scale+max_logit', [-10.87, -54.6])
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

    def _logits(self, *blocks: FloatArray) -> FloatArray:
        head: Head = self.fitted_.head
        return head.logits(blocks[0] * growth(ratio_above(blocks[0], self.percentile)))


@register
class AdaSCALE(HeadStep):
    """Logits of features times exp(sum of all / sum of the largest), with a percentile of the row's own for "largest".

    With f the features of an input and f~ those of the input a small step away
    (:func:`normscale.extraction.perturbed_features`),

        q = sum max(f~, 0) over the largest 5 % of f + shift_weight * sum |f - f~| over the largest 1 % of f

    is larger for OoD inputs. The share of validation rows with a larger q leads from ``low`` to ``high``, the
    percentile above which features are the row's largest. Negative features count as 0 in both sums. The authors choose
    ``low`` and ``high`` on OoD data; these are their defaults.

    Examples
    --------
    >>> rows = np.abs(np.random.default_rng(0).normal(size=(50, 8)))
    >>> outputs = ModelOutputs(features=rows, perturbed_features=rows + 0.1, head=(np.eye(3, 8), np.zeros(3)))
    >>> AdaSCALE().fit(outputs).score(outputs[:2]).shape
    (2,)
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

    def _told_features(self, rows: ModelOutputs) -> Gathered:
        return Gathered([self._shift(*own) for _, *own in blocks_of(rows, self.own_reads, fitting=True)])

    def _learned(self, head: Head, told: Gathered) -> Fitted:
        return self.Fitted(head, np.sort(np.concatenate(told.parts)))

    def _shift(self, features: FloatArray, moved: FloatArray) -> FloatArray:
        """The q of every row."""
        size, shift = (largest(features, n_kept(features.shape[1], top)) for top in (_SIZE_TOP, _SHIFT_TOP))
        q: FloatArray = np.where(size, np.maximum(moved, 0.0), 0.0).sum(axis=1)
        q += self.shift_weight * np.where(shift, np.abs(features - moved), 0.0).sum(axis=1)
        return q

    def _logits(self, *blocks: FloatArray) -> FloatArray:
        (features, moved), (head, shifts) = blocks, self.fitted_
        larger = 1.0 - np.searchsorted(shifts, self._shift(features, moved), side="right") / shifts.size
        percentiles, d = self.low + larger * (self.high - self.low), features.shape[1]
        k = np.maximum(1, d - np.round(d * percentiles / 100.0).astype(np.intp))[:, None]
        positive = np.maximum(features, 0.0)
        of_largest = np.take_along_axis(np.cumsum(-np.sort(-positive, axis=1), axis=1), k - 1, axis=1)
        return head.logits(features * growth(ratio_to_largest(positive, of_largest, d / k)))


@register
class LTS(Step):
    """Logit scaling: logits times (sum of all features / sum of the largest) squared, scored by another detector.

    The largest features f of a row are those above its own percentile. With z the logits,

        logits = (sum f / sum largest f)^2 * z

    It needs neither training rows nor the last layer. Features are meant to be positive, as behind a ReLU; a negative
    sum counts as 0. The percentile was not checked against the authors' code.

    Examples
    --------
    >>> rows = ModelOutputs([[2.0, 0.0], [2.0, 0.0]], features=[[4.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    >>> LTS("max_logit").score(rows).tolist()
    [-2.0, -32.0]
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
