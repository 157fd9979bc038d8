"""Held-out scores: what training rows score by copies of a detector that have not seen them, from parts of the rows.

Rows fall into two halves by their content. What each half tells a fit is kept apart: together they make the detector,
each alone a copy that scores the other half.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from normscale._validate import BoolArray, FloatArray, IntArray
from normscale.detectors.row_blocks import block_rows, row_slices
from normscale.errors import InvalidInput, NumericalWarning
from normscale.outputs import LOGITS, ModelOutputs

if TYPE_CHECKING:
    from normscale.detectors.base import Detector
    from normscale.detectors.partial_fit import Partial, PartialFit

_FEWEST_TO_SPLIT = 20
"""Below this many rows they are not split."""
_MOST_OF_A_CLASS = 1000
"""Rows of a predicted class that a sample keeps: with more, a median is known to .04 deviations (standard error)."""


class HeldOut(Protocol):
    """What a fit with held-out scores offers; see :class:`HeldOutFit`."""

    done: bool
    n_columns: int
    needs_sample: bool

    def partial(self, chunks: Iterable[ModelOutputs]) -> Any:
        """What some rows tell."""

    def merge(self, first: Any, second: Any) -> Any:
        """What two parts of the rows tell together."""

    def finish(self, total: Any) -> bool:
        """Learn from what all rows tell; False where they must be read again."""

    def columns(self, outputs: ModelOutputs) -> FloatArray:
        """Held-out scores (n, k) of training rows."""

    def settle(self, sample: RowSample) -> None:
        """Finish the fit by a sample of the rows and their columns."""

    def combine(self, columns: FloatArray) -> FloatArray:
        """Held-out scores (n,) of rows by their columns."""


class HeldOutFit:
    """The fit of a detector that also gives every training row the score of a copy which has not seen it.

    A detector that remembers its training rows finds them more familiar than any other; what is learned from their
    scores would be wrong. Use: :meth:`partial` of every part of the rows, :meth:`merge`, :meth:`finish`, again until it
    is done; then :meth:`columns` of the rows, and :meth:`settle` by a sample of these.

    Parameters
    ----------
    detector : Detector
        It is fitted in place.
    """

    n_columns = 1
    needs_sample = False

    def __init__(self, detector: Detector) -> None:
        self.detector = detector
        self.done = False
        self._halves = [copy.copy(detector), copy.copy(detector)] if detector.needs_fit else [detector, detector]
        self._turn = 0
        self._fits: list[PartialFit | None] = [None, None, None]
        if not detector.why_all_rows():
            from normscale.detectors.partial_fit import PartialFit

            everyone = (detector, *self._halves) if detector.needs_fit else (detector,)
            self._fits = [PartialFit(one) for one in everyone]

    def partial(self, chunks: Iterable[ModelOutputs]) -> Any:
        """What some rows tell: by all of them and by each half; the rows themselves where all must be seen at once."""
        parts: list[Any] = []
        for chunk in chunks:
            parts = self.merge(parts, self._part(chunk))
        return parts

    def _part(self, chunk: ModelOutputs) -> list[Any]:
        whole, *halves = self._fits
        if whole is None:
            return [chunk]
        if not halves:
            return [whole.partial([chunk])]
        second = second_half(chunk)
        own = [chunk[~second], chunk[second]]
        first_turn = self._turn == 0  # all copies are alike yet: the halves tell the whole
        parts: list[Any] = [None if first_turn or whole.done else whole.partial([chunk])]
        for fit, rows in zip(halves, own, strict=True):
            parts.append(None if fit is None or fit.done else fit.partial([rows]))
        return parts

    def merge(self, first: Any, second: Any) -> Any:
        """What two parts of the rows tell together."""
        if self._fits[0] is None or not first or not second:
            return [*first, *second]
        pairs = zip(self._fits, first, second, strict=True)
        return [a if fit is None or a is None else fit.merge(a, b) for fit, a, b in pairs]

    def finish(self, total: Any) -> bool:
        """Learn from what all rows tell; False where they must be read again."""
        whole, *halves = self._fits
        if whole is None:
            self._fit_on(ModelOutputs.concatenate(total) if len(total) > 1 else total[0])
            self.done = True
        elif not halves:
            self.done = whole.finish(total[0])
        else:
            first = self._turn == 0
            every: Partial | None = whole.merge(total[1], total[2]) if first else total[0]
            split = not first or every is None or every.n_rows >= _FEWEST_TO_SPLIT
            if every is not None:
                whole.finish(every)
            for place, (fit, own) in enumerate(zip(halves, total[1:], strict=True)):
                if own is not None and fit is not None:
                    self._finish_half(place, fit, own if split else every)
            self.done = all(fit is None or fit.done for fit in self._fits)
        self._turn += 1
        return self.done

    def _finish_half(self, place: int, fit: PartialFit, total: Any) -> None:
        """Learn from a half; where it is too little to learn from, all rows must do."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NumericalWarning)
            try:
                fit.finish(total)
            except InvalidInput:
                self._fits[1 + place] = None
                self._halves[place] = self.detector

    def _fit_on(self, train: ModelOutputs) -> None:
        """Fit on all rows at once."""
        self.detector.fit_chunks([train])
        second = second_half(train)
        for place, rows in enumerate((~second, second)):
            if self.detector.needs_fit and len(train) >= _FEWEST_TO_SPLIT:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", NumericalWarning)
                    try:
                        self._halves[place].fit_chunks([train[rows]])
                        continue
                    except InvalidInput:
                        pass
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
        scores: FloatArray = columns[:, 0]
        return scores


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
        return cls(content_keys(rows, (LOGITS,)), predicted, values, counts)._cut()

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
        weights: FloatArray = (self.counts / np.maximum(np.bincount(self.classes, minlength=self.counts.size), 1))[
            self.classes
        ]
        return weights

    def of_columns(self, columns: slice) -> RowSample:
        """The same rows with some of the numbers."""
        return self._replace(values=self.values[:, columns])


def sample_columns(held_out: HeldOut, chunks: Iterable[ModelOutputs]) -> RowSample | None:
    """A sample of training rows with their held-out scores."""
    found: RowSample | None = None
    for chunk in chunks:
        own = RowSample.of(chunk, held_out.columns(chunk))
        found = own if found is None else found.merge(own)
    return found


def fit_held_out(detector: Detector, train: ModelOutputs) -> FloatArray:
    """Fit on all rows; give each the score (n,) of a copy that has not seen it."""
    held_out = detector._held_out()
    while not held_out.finish(held_out.partial(in_slices([train]))):
        pass
    columns = held_out.columns(train)
    if held_out.needs_sample:
        held_out.settle(RowSample.of(train, columns))
    return held_out.combine(columns)


def in_slices(chunks: Iterable[ModelOutputs]) -> Iterator[ModelOutputs]:
    """Chunks in parts of some thousand rows."""
    return (part for chunk in chunks for part in row_slices(chunk))


def second_half(rows: ModelOutputs) -> BoolArray:
    """(n,) which rows are of the second half; their logits say, or their first array where there are none."""
    arrays = (LOGITS,) if LOGITS in rows.names else rows.names[:1]
    half: BoolArray = (content_keys(rows, arrays) & np.uint64(1)).astype(np.bool_)  # samples go by the high bits
    return half


def content_keys(rows: ModelOutputs, arrays: tuple[str, ...]) -> NDArray[np.uint64]:
    """A number (n,) for every row that depends on its numbers in these arrays alone, not on their order.

    It looks random. Numbers count in single precision: what a step makes of the same rows differs in the last digits of
    double precision where it was fitted on them in other parts.

    Examples
    --------
    >>> keys = content_keys(ModelOutputs([[1.0, 2.0], [2.0, 1.0], [1.0, 2.5]]), ("logits",))
    >>> bool(keys[0] == keys[1]), bool(keys[0] == keys[2])
    (True, False)
    """
    keys = np.zeros(len(rows), np.uint64)
    for name in arrays:
        array = rows.array(name)
        size = block_rows(array.shape[1])
        for a in range(0, len(rows), size):
            with np.errstate(over="ignore"):
                single = np.asarray(array[a : a + size], np.float32)
            numbers = np.array(single, np.float64, order="C") + 0.0  # -0 is 0
            keys[a : a + size] += _mixed(numbers.view(np.uint64)).sum(axis=1, dtype=np.uint64)
    return _mixed(keys)


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Numbers whose bits all depend on all bits of the given ones, which are overwritten (Stafford's mixer)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits ^= bits >> np.uint64(shift)
        bits *= np.uint64(factor)
    bits ^= bits >> np.uint64(31)
    return bits
