"""Covered: logits of classes that the training rows do not show are left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale import _validate
from normscale._validate import FloatArray, IntArray
from normscale.detectors.formula import LogitFormula, offered_formula
from normscale.detectors.registry import register
from normscale.detectors.step import Step, require_logit_score
from normscale.detectors.wrapper import Score
from normscale.errors import InvalidInput
from normscale.outputs import LOGITS, ModelOutputs

_FAIR_SHARE = 0.2
"""Of 1 / C of the training rows: what a class must be predicted as to be shown, where there are no labels."""
_LEFT_OUT = 1e6
"""Taken off a logit that is left out, where a formula must keep its column."""


@register
class Covered(Step):
    """The logits of those classes that the training rows show, scored by another detector.

    A classifier may know more classes than the rows at hand show. The logits of the others are low on every training
    row, with a small deviation; norm-scaling would make the least stir in them look like certainty. A class is shown
    when a training row has its label; without labels, when it is predicted at least a fifth as often as it would be if
    all classes were equally frequent, because mistakes are predicted, too. Where every class is shown, nothing changes.
    Fewer than two leave nothing to compare: then all are kept.

    Parameters
    ----------
    score : str or Detector
        What scores the logits that are left: any detector that reads logits alone.

    Attributes
    ----------
    classes_ : array (K,)
        The columns that are kept.

    Examples
    --------
    >>> train = np.array([[4.0, 0.0, -3.0], [0.0, 8.0, -3.1], [2.0, 4.0, -3.2]])
    >>> detector = Covered("norm_scaling").fit(train)
    >>> detector.classes_.tolist(), detector.score([[4.0, 0.0, 9.0]]).round(4).tolist()
    ([0, 1], [-2.4495])
    """

    name = "covered"
    title = "Covered"
    paper = "docs/robust.md"
    cost = "one more pass over the logits"
    default_score = "norm_scaling"
    own_reads = (LOGITS,)
    parameters = {"score": "the detector that scores the logits that are left"}

    classes_: IntArray

    def __init__(self, score: Score = "norm_scaling") -> None:
        self._score_by(score)
        require_logit_score(self, self.scorer)

    def _fit_step(self, chunks: Iterator[ModelOutputs]) -> None:
        labelled: IntArray | None = None
        for chunk in chunks:
            if chunk.labels is not None and (known := chunk.labels[chunk.labels >= 0]).size:
                own = np.bincount(known, minlength=chunk.logits.shape[1])
                labelled = own if labelled is None else labelled + own
        if self.baseline_ is not None:
            predicted = self.baseline_.predicted
            least = _FAIR_SHARE * predicted.sum() / predicted.size
            shown = predicted >= max(1.0, least) if labelled is None else labelled > 0
            found = np.flatnonzero(shown)
            self.classes_ = found if found.size > 1 else np.arange(predicted.size)

    @property
    def _all(self) -> bool:
        assert self.widths_ is not None
        return self.classes_.size == self.widths_[LOGITS]

    def _transform(self, outputs: ModelOutputs, threads: int) -> ModelOutputs:
        if self._all:
            return outputs
        rows = outputs.logits
        if not np.isfinite(rows).all():
            raise _validate.invalid_row_error(rows, LOGITS, can_skip=True)
        return ModelOutputs._trusted({LOGITS: np.ascontiguousarray(rows[:, self.classes_])}, outputs.labels)

    def formula(self) -> LogitFormula | None:
        inner = offered_formula(self.scorer)
        if not isinstance(inner, LogitFormula) or self._all:
            return inner if isinstance(inner, LogitFormula) else None
        if inner.centred or inner.largest_weight or inner.class_offset is not None or inner.ood_position is not None:
            return None
        assert self.widths_ is not None
        width = self.widths_[LOGITS]
        shift, factor = np.full(width, _LEFT_OUT), np.ones(width)
        shift[self.classes_], factor[self.classes_] = inner.shift, inner.factor
        return inner._replace(shift=shift, factor=factor)

    def _own_tensors(self) -> dict[str, NDArray[Any]]:
        return {"classes": self.classes_}

    def _restore_own(self, tensors: dict[str, NDArray[Any]]) -> None:
        found: FloatArray = _validate.as_finite_vector(tensors["classes"], "classes")
        self.classes_ = found.astype(np.int64)
        assert self.widths_ is not None
        last = self.widths_[LOGITS]
        if self.classes_.size < 2 or (np.diff(self.classes_) < 1).any() or not 0 <= self.classes_[0] < last:
            raise InvalidInput(f"classes must be two or more columns in order, below {last}.")
        if self.classes_[-1] >= last:
            raise InvalidInput(f"classes must lie below {last}.")
