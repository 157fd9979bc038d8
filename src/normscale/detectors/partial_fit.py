"""Fits from parts of the rows, and held-out scores: what rows score by copies of a detector that have not seen them.

For held-out scores, rows fall into two halves by their content. What each half tells a fit is kept apart: together they
make the detector, each alone a copy that scores the other half.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from normscale._validate import BoolArray, FloatArray, IntArray
from normscale.detectors.baseline import TrainingBaseline
from normscale.errors import InvalidInput, NumericalWarning
from normscale.outputs import LOGITS, Head, ModelOutputs, row_keys, row_slices
from normscale.state import Numbers

if TYPE_CHECKING:
    from normscale.detectors.base import Detector

ROUNDING = 1e-13
"""Relative to the largest number, what rounding makes of deviations of equal ones."""
_FEWEST_TO_SPLIT = 20
"""Below this many rows they are not split."""
_MOST_OF_A_CLASS = 1000
"""Rows of a predicted class that a sample keeps: with more, a median is known to .04 deviations (standard error)."""


def merged(first: Any, second: Any) -> Any:
    """What two parts of the rows tell together; neither is changed.

    Numbers and arrays add up, tuples, lists and dicts part by part, sets are united, what has a method ``merge`` is
    merged by it, and of nothing and something the latter counts. Last layers must be the same.
    """
    if first is None or second is None:
        return second if first is None else first
    if isinstance(first, Head):
        if not first.equals(second):
            raise InvalidInput("all training outputs must have the same head; they come from different networks.")
        return first
    if hasattr(first, "merge"):
        return first.merge(second)
    if isinstance(first, dict):
        return first | {key: merged(first.get(key), value) for key, value in second.items()}
    if isinstance(first, (tuple, list)):
        parts = [merged(a, b) for a, b in zip(first, second, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return first | second if isinstance(first, set) else first + second


class Partial(NamedTuple):
    """What some of the training rows tell: a size that does not grow with their number."""

    n_rows: int
    widths: dict[str, int]
    """Columns of every array that the detector reads; empty without rows."""
    baseline: TrainingBaseline | None
    own: Any
    """What :meth:`Detector._partial` gave."""

    def merge(self, other: Partial) -> Partial:
        """What two parts tell together."""
        if not self.n_rows or not other.n_rows:
            return self if self.n_rows else other
        for name, width in self.widths.items():
            if width != other.widths[name]:
                raise InvalidInput(
                    f"{name} has {width} columns in one part of the rows and {other.widths[name]} in another; all "
                    "must have the same."
                )
        first, second = self.baseline, other.baseline
        alike = first is not None and second is not None and first.predicted.size == second.predicted.size
        baseline = merged(first, second) if alike else None
        return Partial(self.n_rows + other.n_rows, self.widths, baseline, merged(self.own, other.own))


class PartialFit:
    """The fit of a detector whose training rows are in several places; it is left as it is until all is done.

    One that must see all rows at once (:meth:`Detector._why_all_rows`) is refused.
    """

    def __init__(self, detector: Detector) -> None:
        """Begin with a detector that has learned nothing."""
        if why := detector._why_all_rows():
            raise InvalidInput(
                f"{detector.name} cannot be fitted in parts: {why}. Fit it on one table that fits into memory, such as "
                "a sample of the rows."
            )
        self.detector = detector
        self._learner = detector._learner()
        self._turn = 0
        self.done = False

    def partial(self, chunks: Iterable[ModelOutputs]) -> Partial:
        """What these rows tell; nothing changes, so that any process may ask for any part of them, also twice."""
        learner = copy.copy(self._learner)
        learner._baseline = None
        own, n_rows = learner._sum_of_parts(learner._checked(chunks, counted=self._turn > 0), self._turn)
        return Partial(n_rows, learner._widths or {}, learner._baseline, own)

    def finish(self, total: Partial) -> bool:
        """Learn from what all rows tell; False where they must be read again: begin anew with :meth:`partial`."""
        if not total.n_rows:
            raise InvalidInput(f"{self.detector.name}: the training outputs are empty; at least one row is needed.")
        learner = self._learner
        if self._turn == 0:
            learner._widths, learner._baseline = dict(total.widths), total.baseline
        found = learner._finish(total.own, self._turn)
        self._turn += 1
        self.done = found is not None
        if self.done:
            learner._learn(found)
            self.detector._take_over(learner)
        return self.done


class Gathered(NamedTuple):
    """Parts that are kept side by side, in order."""

    parts: list[Any]

    def merge(self, other: Gathered) -> Gathered:
        """The parts of both."""
        return Gathered(self.parts + other.parts)


class HeldOutFit:
    """The fit of a detector that also gives every training row the score of a copy which has not seen it.

    A detector that remembers its training rows finds them more familiar than any other; what is learned from their
    scores would be wrong. Use: :meth:`partial` of every part of the rows, :func:`merged`, :meth:`finish`, again until
    it is done; then :meth:`columns` of the rows, and :meth:`settle` by a sample of these. The detector is fitted in
    place.
    """

    n_columns = 1
    needs_sample = False

    def __init__(self, detector: Detector) -> None:
        self.detector = detector
        self.done = False
        self._halves = [copy.copy(detector), copy.copy(detector)] if detector._needs_fit else [detector, detector]
        self._in_parts = not detector._why_all_rows()
        everyone = (detector, *self._halves) if detector._needs_fit else (detector,)
        self._fits: list[PartialFit | None] = [PartialFit(one) for one in everyone] if self._in_parts else []
        self._turn = 0

    def partial(self, rows: ModelOutputs) -> Any:
        """What some rows tell: by all of them and by each half; the rows themselves where all must be seen at once."""
        if not self._in_parts:
            return Gathered([rows])
        whole, *halves = self._fits
        second = second_half(rows) if halves else None
        own = [] if second is None else [rows[~second], rows[second]]
        alike = self._turn == 0 and bool(halves)  # all copies are alike yet: the halves tell the whole
        parts = [None if whole is None or alike or whole.done else whole.partial([rows])]
        pairs = zip(halves, own, strict=True)
        return [*parts, *(None if fit is None or fit.done else fit.partial([part]) for fit, part in pairs)]

    def finish(self, total: Any) -> None:
        """Learn from what all rows tell; it is then :attr:`done`, or they must be read again."""
        if not self._in_parts:
            self._fit_on(ModelOutputs.concatenate(total.parts) if len(total.parts) > 1 else total.parts[0])
            self.done = True
            return
        whole, *halves = self._fits
        every = merged(*total[1:]) if self._turn == 0 and halves else total[0]
        split = self._turn > 0 or every.n_rows >= _FEWEST_TO_SPLIT
        if every is not None and whole is not None:
            whole.finish(every)
        for place, (fit, own) in enumerate(zip(halves, total[1:], strict=True)):
            if own is not None and fit is not None and not self._try(fit.finish, own if split else every):
                self._fits[1 + place], self._halves[place] = None, self.detector
        self.done = all(fit is None or fit.done for fit in self._fits)
        self._turn += 1

    def _try(self, learn: Any, rows: Any) -> bool:
        """Learn from a half; False where it is too little to learn from, so that all rows must do."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NumericalWarning)
            try:
                learn(rows)
            except InvalidInput:
                return False
        return True

    def _fit_on(self, train: ModelOutputs) -> None:
        """Fit on all rows at once."""
        self.detector._fit_chunks([train])
        second = second_half(train)
        split = self.detector._needs_fit and len(train) >= _FEWEST_TO_SPLIT
        for place, rows in enumerate((~second, second)):
            if not split or not self._try(self._halves[place]._fit_chunks, [train[rows]]):
                self._halves[place] = self.detector

    def columns(self, outputs: ModelOutputs) -> FloatArray:
        """Held-out scores (n, 1) of training rows, in the order of the rows."""
        found = np.empty((len(outputs), 1))
        second = second_half(outputs)
        for one, rows in ((self._halves[1], ~second), (self._halves[0], second)):
            if rows.any():
                found[rows, 0] = one._score(outputs[rows].only(*one.reads), 1)
        return found

    def settle(self, sample: RowSample) -> None:
        """Finish the fit by a sample of the rows and their :meth:`columns`; most have nothing more to learn."""

    def combine(self, columns: FloatArray) -> FloatArray:
        """Held-out scores (n,) of rows by their :meth:`columns`."""
        return columns[:, 0]


def fit_held_out(detector: Detector, train: ModelOutputs) -> FloatArray:
    """Fit on all rows; give each the score (n,) of a copy that has not seen it."""
    held_out = detector._held_out()
    while not held_out.done:
        total = None
        for rows in row_slices(train):
            total = merged(total, held_out.partial(rows))
        held_out.finish(total)
    columns = held_out.columns(train)
    if held_out.needs_sample:
        held_out.settle(RowSample.of(train, columns))
    return held_out.combine(columns)


class RowSample(NamedTuple):
    """Some rows of every predicted class with numbers of each, drawn by their content: parts merge in any order.

    Up to a thousand rows of a class are kept; where there are fewer, all are.
    """

    keys: NDArray[np.uint64]
    classes: IntArray
    """(m,) in order."""
    values: FloatArray
    """(m, k)"""
    counts: FloatArray
    """(C,) how many rows of each class there were."""

    @classmethod
    def of(cls, rows: ModelOutputs, values: FloatArray) -> RowSample:
        """A sample of rows with logits, with numbers (n, k)."""
        predicted = rows.predicted
        counts = np.bincount(predicted, minlength=rows.n_classes).astype(np.float64)
        return cls(row_keys(rows.logits), predicted, values, counts)._cut()

    def merge(self, other: RowSample) -> RowSample:
        """The sample of both sets of rows."""
        keys, classes, values = (np.concatenate(pair) for pair in zip(self[:3], other[:3], strict=True))
        return RowSample(keys, classes, values, self.counts + other.counts)._cut()

    def _cut(self) -> RowSample:
        order = np.lexsort((*self.values.T, self.keys, self.classes))
        classes = self.classes[order]
        rank = np.arange(order.size) - np.searchsorted(classes, classes)
        kept = order[rank < _MOST_OF_A_CLASS]
        return RowSample(self.keys[kept], self.classes[kept], self.values[kept], self.counts)

    @property
    def weights(self) -> FloatArray:
        """(m,) how many rows each stands for."""
        kept = np.maximum(np.bincount(self.classes, minlength=self.counts.size), 1)
        return (self.counts / kept)[self.classes]

    def of_columns(self, columns: slice) -> RowSample:
        """The same rows with some of the numbers."""
        return self._replace(values=self.values[:, columns])

    def spread_within(self, values: FloatArray) -> float:
        """Root mean square deviation of values (m,) from the mean of their predicted class; 1 when there is none."""
        means = np.bincount(self.classes, values) / np.maximum(np.bincount(self.classes), 1)
        spread = float(np.sqrt(np.average((values - means[self.classes]) ** 2, weights=self.weights)))
        return spread if spread > ROUNDING * np.abs(values).max(initial=0.0) else 1.0


class CommonScale(NamedTuple):
    """What a score is worth: standard deviations within predicted classes, over in-distribution rows alone."""

    centre: float
    """Mean of the training scores; 0 where it is rounding alone."""
    spread: Annotated[float, Numbers(above=0.0)]
    """Root mean square deviation of the training scores from the mean of their predicted class; 1 where it is 0."""

    @classmethod
    def of(cls, scores: FloatArray, sample: RowSample) -> Self:
        """Learn it from held-out scores (m,) of a sample of the training rows."""
        centre = float(np.average(scores, weights=sample.weights))
        largest = np.abs(scores).max(initial=0.0)
        return cls(centre if abs(centre) > ROUNDING * largest else 0.0, sample.spread_within(scores))

    def __call__(self, scores: FloatArray) -> FloatArray:
        """Scores (n,) on the common scale; higher = more OoD."""
        return (scores - self.centre) / self.spread


def second_half(rows: ModelOutputs) -> BoolArray:
    """(n,) which rows are of the second half; their logits say, or their first array where there are none."""
    array = rows.array(LOGITS if LOGITS in rows.names else rows.names[0])
    return (row_keys(array) & np.uint64(1)).astype(np.bool_)  # samples go by the high bits
