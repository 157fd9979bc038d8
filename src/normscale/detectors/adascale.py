"""AdaSCALE: SCALE with a percentile for each row, by how far its largest features move under a small perturbation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NamedTuple

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray
from normscale.detectors.head_step import HEAD, HeadStep, percentile_of
from normscale.detectors.largest_features import growth, largest, n_kept
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import blocks_of
from normscale.detectors.wrapper import Score
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, LOGITS, PERTURBED_FEATURES, Head, ModelOutputs
from normscale.state import Numbers

_SIZE_TOP, _SHIFT_TOP = 95.0, 99.0
"""Percentiles of a row's features above which their perturbed size, and their shift, are counted."""


@register
class AdaSCALE(HeadStep):
    """Logits of features times exp(sum of all / sum of the largest), with a percentile of the row's own for "largest".

    With f the features of an input and f~ those of the input a small step away
    (:func:`normscale.extraction.perturbed_features`),

        q = sum max(f~, 0) over the largest 5 % of f + shift_weight * sum |f - f~| over the largest 1 % of f

    is larger for OoD inputs. The share of validation rows with a larger q leads from ``low`` to ``high``, the
    percentile above which features are the row's largest. Negative features count as 0 in both sums.

    Parameters
    ----------
    score : str or Detector
        What scores the new logits; the paper uses Energy.
    low, high : float in (0, 100)
        Percentiles between which every row has its own. The authors choose them on OoD data; these are their defaults.
    shift_weight : float
        Of the shift under the perturbation.

    References
    ----------
    Regmi, "AdaSCALE: Adaptive Scaling for OOD Detection", 2025; the form that scales activations.

    Examples
    --------
    >>> rows = np.abs(np.random.default_rng(0).normal(size=(50, 8)))
    >>> outputs = ModelOutputs(features=rows, perturbed_features=rows + 0.1, head=(np.eye(3, 8), np.zeros(3)))
    >>> AdaSCALE().fit(outputs).score(outputs[:2]).shape
    (2,)
    """

    name = "adascale"
    title = "AdaSCALE"
    paper = "Regmi 2025"
    cost = "a sort of each row's features, the last layer, and the score; a gradient and a second forward pass before"
    own_reads = (FEATURES, PERTURBED_FEATURES)
    removes = (FEATURES, PERTURBED_FEATURES)
    fitted_on = "validation"
    parameters = {
        "score": "the detector that scores the new logits",
        "low": "percentile of the features of a row that moves most",
        "high": "percentile of the features of a row that moves least",
        "shift_weight": "weight of the shift of the largest features",
    }

    class Fitted(NamedTuple):
        """The last layer, and q of the validation rows in order."""

        head: Annotated[Head, HEAD]
        shifts: Annotated[FloatArray, Numbers("rows")]

    fitted_: Fitted

    def __init__(
        self, score: Score = "energy", low: float = 75.0, high: float = 85.0, shift_weight: float = 10.0
    ) -> None:
        self._score_by(score)
        self.low, self.high = percentile_of(low), percentile_of(high)
        if self.low > self.high:
            raise InvalidInput(f"low must not lie above high; got {low!r} and {high!r}.")
        self.shift_weight = _validate.positive(shift_weight, "shift_weight")

    def _partial_features(self, chunks: Iterator[ModelOutputs]) -> FloatArray:
        blocks = (found[1:] for chunk in chunks for found in blocks_of(chunk, self.own_reads, fitting=True))
        return np.concatenate([np.zeros(0), *(self._shift(features, moved) for features, moved in blocks)])

    def _merge_features(self, first: FloatArray, second: FloatArray) -> FloatArray:
        return np.concatenate([first, second])

    def _finish_features(self, head: Head, total: FloatArray) -> Fitted:
        return self.Fitted(head, np.sort(total))

    def _shift(self, features: FloatArray, moved: FloatArray) -> FloatArray:
        """The q of every row."""
        size, shift = (largest(features, n_kept(features.shape[1], top)) for top in (_SIZE_TOP, _SHIFT_TOP))
        q: FloatArray = np.where(size, np.maximum(moved, 0.0), 0.0).sum(axis=1)
        q += self.shift_weight * np.where(shift, np.abs(features - moved), 0.0).sum(axis=1)
        return q

    def _logits(self, features: FloatArray) -> FloatArray:
        raise NotImplementedError("the percentile of a row needs its perturbed features too")

    def _transform(self, outputs: ModelOutputs, threads: int) -> ModelOutputs:
        head, shifts = self.fitted_
        logits = np.empty((len(outputs), self._width))
        for where, features, moved in blocks_of(outputs, self.own_reads):
            larger = 1.0 - np.searchsorted(shifts, self._shift(features, moved), side="right") / shifts.size
            percentiles, d = self.low + larger * (self.high - self.low), features.shape[1]
            k = np.maximum(1, d - np.round(d * percentiles / 100.0).astype(np.intp))[:, None]
            positive = np.maximum(features, 0.0)
            of_largest = np.take_along_axis(np.cumsum(-np.sort(-positive, axis=1), axis=1), k - 1, axis=1)
            logits[where] = head.logits(features * growth(positive.sum(axis=1, keepdims=True), of_largest, d / k))
        others = {name: outputs.array(name) for name in outputs.names if name not in (*self.removes, LOGITS)}
        return ModelOutputs._trusted({LOGITS: logits, **others}, outputs.labels)
