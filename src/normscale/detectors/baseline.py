"""What the training rows looked like."""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale import _kernels
from normscale._kernels import BlockState
from normscale._validate import BoolArray, FloatArray, IntArray, Rows
from normscale.detectors.registry import DEFAULT
from normscale.errors import InvalidInput
from normscale.moments import RunningMoments, declared_moments
from normscale.outputs import LOGITS, ModelOutputs, row_keys
from normscale.state import Numbers

if TYPE_CHECKING:
    from normscale.detectors.base import Detector


_FEWEST_ROWS = 20
"""Of training rows, below which nothing is far outside: their range says little."""
_FAR, _FAR_ROWS = 0.5, 10.0
"""A logit is far outside when it is this part of the range of the training logits beyond its ends; with n rows, 10 / n
of the range more. Measured: no test row and no picture or noise that a network was not made for goes beyond .17 with
hundreds of rows or more, .28 with 50."""
FAR_SCORE = float(np.finfo(np.float32).max)
"""The score of a row far outside: above those of all others, and a number in every file format."""
_MOST_KEPT, _MOST_NUMBERS = 2000, 1 << 18
"""Training rows that are kept, and how many numbers they may have in all."""
_HASHED = 2
"""Logits of a row, the first ones, that decide whether it is kept."""


class TrainingBaseline(NamedTuple):
    """How many training rows were predicted as each class, the moments of their logits and of what else is read."""

    predicted: Annotated[IntArray, Numbers("classes", least=0.0)]
    """(C,) how many rows were predicted as each class."""
    of_logits: Annotated[BlockState, declared_moments("classes")]
    extremes: Annotated[FloatArray, Numbers(2)]
    """(2,) the smallest and the largest logit."""
    of_others: Annotated[dict[str, BlockState], declared_moments()]
    kept: Annotated[dict[str, NDArray[np.float32]], Numbers()]
    """Some of the rows themselves, by array: those whose first logits have the smallest hash, so no order matters."""

    @classmethod
    def of(cls, rows: ModelOutputs, others: tuple[str, ...] = (), *, keep_rows: bool = False) -> TrainingBaseline:
        """The baseline of rows, by their logits and other arrays; a row that is not finite is an error.

        With ``keep_rows`` up to 2000 rows are kept, on which running statistics can be tried out.
        """
        logits = rows.logits
        moments = RunningMoments(logits.shape[1]).update(logits, name=LOGITS)
        counts = np.bincount(_kernels.predicted(logits), minlength=logits.shape[1])
        further = {name: RunningMoments(rows.array(name).shape[1]) for name in others}
        for name, one in further.items():
            one.update(rows.array(name), name=name)
        extremes = np.array([logits.min(), logits.max()], dtype=np.float64)
        kept = _smallest_hashes({name: rows.array(name) for name in (LOGITS, *others)}) if keep_rows else {}
        return cls(counts, moments.state, extremes, {name: one.state for name, one in further.items()}, kept)

    def merge(self, other: TrainingBaseline) -> TrainingBaseline:
        """The baseline of both sets of rows, of equal width; neither is changed."""
        further = {name: _kernels.combine(state, other.of_others[name]) for name, state in self.of_others.items()}
        logits = _kernels.combine(self.of_logits, other.of_logits)
        both = np.concatenate([self.extremes, other.extremes])
        kept = {name: np.concatenate([rows, other.kept[name]]) for name, rows in self.kept.items()}
        counts, extremes = self.predicted + other.predicted, np.array([both.min(), both.max()])
        return TrainingBaseline(counts, logits, extremes, further, _smallest_hashes(kept) if kept else {})

    def of_classes(self, classes: IntArray) -> TrainingBaseline:
        """The same rows with the logits of some classes alone; rows predicted as others count in the first."""
        weight, mean, m2 = self.of_logits
        predicted = self.predicted[classes].copy()
        predicted[0] += self.predicted.sum() - predicted.sum()
        return self._replace(predicted=predicted, of_logits=BlockState(weight, mean[classes], m2[classes]))

    @property
    def moments(self) -> RunningMoments:
        """Of the logits."""
        return RunningMoments.wrap(self.of_logits)

    @property
    def others(self) -> dict[str, RunningMoments]:
        """Of the other arrays that the detector reads, by name."""
        return {name: RunningMoments.wrap(state) for name, state in self.of_others.items()}

    def far_outside(self, logits: Rows) -> BoolArray:
        """(n,) which rows hold a logit far beyond all that training showed: no input explains it, a changed scale does.

        Far is half of the range of the training logits beyond its ends, and more where the range is that of few rows.
        """
        low, high = self.logit_limits()
        if not len(logits) or (float(logits.min()) >= low and float(logits.max()) <= high):
            return np.zeros(len(logits), dtype=np.bool_)
        largest, smallest = logits.max(axis=1).astype(np.float64), logits.min(axis=1).astype(np.float64)
        return ((largest > high) | (smallest < low)) & np.isfinite(largest) & np.isfinite(smallest)

    def far_sentence(self, logits: Rows) -> str:
        """What to say of rows of which some are :meth:`far_outside`."""
        far = np.flatnonzero(self.far_outside(logits))
        row = logits[far[0]]
        return (
            f"{far.size} of {len(logits)} rows have logits far outside of what training showed, "
            f"{self.extremes[0]:.4g} to {self.extremes[1]:.4g}: row {far[0]} holds {row[np.abs(row).argmax()]:.4g}. "
            f"Are they of the same network, in the same unit? They get the highest score, {FAR_SCORE:.4g}, and teach a "
            "stream nothing."
        )

    def logit_limits(self) -> tuple[float, float]:
        """The smallest and the largest logit that is not :meth:`far_outside`; infinite where nothing is."""
        low, high = self.extremes.tolist()
        if self.moments.weight < _FEWEST_ROWS or low == high:
            return -np.inf, np.inf
        margin = (_FAR + _FAR_ROWS / self.moments.weight) * (high - low)
        return low - margin, high + margin

    @property
    def share(self) -> FloatArray:
        """(C,) the share of rows predicted as each class."""
        return np.asarray(self.predicted / self.predicted.sum())

    def check(self) -> None:
        """Raise where the counts and the moments cannot be of the same rows."""
        if self.extremes[0] > self.extremes[1]:
            raise InvalidInput("baseline.extremes must be two numbers, the smaller first.")
        if not self.predicted.any() or self.of_logits.weight != self.predicted.sum():
            raise InvalidInput("baseline.predicted must hold counts of rows, not all 0, as many as the moments have.")


def _smallest_hashes(arrays: dict[str, Rows]) -> dict[str, NDArray[np.float32]]:
    """Some rows, in an order and by a choice that their logits alone decide."""
    width = sum(array.shape[1] for array in arrays.values())
    most = min(_MOST_KEPT, max(1, _MOST_NUMBERS // width))
    hashes = row_keys(arrays[LOGITS][:, :_HASHED])
    chosen = np.arange(hashes.size)
    if hashes.size > most:
        chosen = np.flatnonzero(hashes <= np.partition(hashes, most - 1)[most - 1])
    chosen = chosen[np.argsort(hashes[chosen], kind="stable")]
    if (np.diff(hashes[chosen]) == 0).any():  # as good as always the same rows
        logits = _single(arrays[LOGITS][chosen])
        chosen = chosen[sorted(range(chosen.size), key=lambda i: (hashes[chosen[i]], logits[i].tobytes()))]
    return {name: _single(array[chosen[:most]]) for name, array in arrays.items()}


def _single(rows: Rows) -> NDArray[np.float32]:
    wide = rows if rows.dtype.itemsize <= 4 else np.clip(rows, -FAR_SCORE, FAR_SCORE)
    return np.ascontiguousarray(wide, np.float32)


_FEWEST_PER_CLASS = 5.0
"""Rows a class on average below which a fit says little: on the sample, detectors lose .05 to .5 AUROC there."""


def why_nothing_is_learned(detector: Detector) -> str | None:
    """Why the training rows of a fitted detector tell nothing: there is one, or all are the same; else None."""
    baseline = detector._baseline
    if baseline is None or not detector._needs_fit:
        return None
    n = int(baseline.moments.weight)
    if n == 1:
        return f"{detector.name} was given 1 training row, which shows nothing of how rows vary. Pass more."
    if any(moments.m2.any() for moments in (baseline.moments, *baseline.others.values())):
        return None
    return f"all {n} training rows are the same, so {detector.name} learns nothing from them. Pass others."


def why_little_is_learned(detector: Detector) -> str | None:
    """Why the rows of a detector that describes every class by its labels tell little: they are few; else None."""
    baseline = detector._baseline
    if baseline is None or not detector._needs_labels:
        return None
    n, present = int(baseline.moments.weight), int((baseline.predicted > 0).sum())
    if n >= _FEWEST_PER_CLASS * present:
        return None
    return (
        f"{detector.name} was fitted on {n} rows of {present} classes, {n / present:.2g} a class: its scores will say "
        f"little. Pass {_FEWEST_PER_CLASS:.0f} a class or more."
    )


_FAIR_SHARE = 0.2
"""Of 1 / C of the training rows: what a class must be predicted as to be present, where there are no labels."""
_ENOUGH_ROWS = 10.0
"""Training rows for each class that is present, on average, below which a class may be missing by chance."""
_LESS = 0.9
"""The logits of missing classes are left out where their standard deviations are below this part of the others'."""


def classes_in_training(baseline: TrainingBaseline, labels: Set[int]) -> BoolArray:
    """(C,) which classes the training rows show: by the labels that occur, or by predictions where none is known."""
    predicted = baseline.predicted
    known = [label for label in labels if label >= 0]
    if known:
        return np.isin(np.arange(predicted.size), known)
    return predicted >= max(1.0, _FAIR_SHARE * predicted.sum() / predicted.size)


class MissingClasses(NamedTuple):
    """What the training rows say about classes that they do not show."""

    rows_per_class: float
    """Training rows for each class that is present, on average."""
    deviations: tuple[float, float]
    """Median standard deviation of the logits of the missing classes, and of the others."""

    @classmethod
    def of(cls, baseline: TrainingBaseline, present: BoolArray) -> MissingClasses | None:
        """By which classes (C,) are present; None where all are, or fewer than two."""
        n = int(np.count_nonzero(present))
        if n in (0, 1, present.size):
            return None
        std = baseline.moments.std
        return cls(baseline.moments.weight / n, (float(np.median(std[~present])), float(np.median(std[present]))))

    @property
    def by_chance(self) -> bool:
        """Whether so few rows may lack classes that the stream will have."""
        return self.rows_per_class < _ENOUGH_ROWS

    @property
    def left_out(self) -> bool:
        """Whether the logits of the missing classes are left out."""
        return not self.by_chance and self.deviations[0] < _LESS * self.deviations[1]


def why_classes_are_missing(detector: Detector, labels: Set[int]) -> str | None:
    """What follows from classes that no training row of a fitted detector shows, by the labels that occur; else None.

    Where no row has a label, predictions tell the classes.
    """
    baseline = detector._baseline
    if baseline is None or not detector._needs_fit:
        return None
    shown = classes_in_training(baseline, labels)
    missing = MissingClasses.of(baseline, shown)
    if missing is None:
        return None
    by = "labels" if labels else "predicted classes"
    seen = f"the rows show {int(shown.sum())} of {shown.size} classes ({by})"
    if missing.by_chance:
        return (
            f"{seen}, {missing.rows_per_class:.3g} rows for each of these: too few to say that the others are missing. "
            "Pass ten rows a class or more."
        )
    if not missing.left_out or not detector._runs:
        return None
    less, typical = missing.deviations
    return (
        f"{seen}. The logits of the others vary less on these rows (standard deviation {less:.3g} against "
        f"{typical:.3g}), so norm-scaling takes what OoD inputs do to them for certainty; {DEFAULT} leaves them out."
    )
