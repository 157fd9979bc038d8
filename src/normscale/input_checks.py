"""What is wrong with outputs: probabilities for logits, labels among them or in another order, rows of another table.

The checks look at rows alone and answer with a sentence; the caller refuses the rows, or says it.

A softmax forgets how large the logits were: all that is left of z is z - log sum exp z. Scores that live on the size
(energy, the largest logit, norm-scaling) are then made of what the softmax left over.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale._validate import FloatArray, IntArray, Rows, finite_row_mask
from normscale.errors import InvalidInput
from normscale.outputs import LOGITS, ModelOutputs, row_keys

TOLERANCE = 0.01
"""How far from 1 a row of probabilities may add up: three decimals of twenty classes are rounded by no more."""
_FEW, _EXACT = 3, 1e-5
"""Fewer rows than that must add up to 1 much more exactly, for a row or two of logits may do so by chance."""
_MANY = 20
"""Rows needed to call numbers between 0 and 1 the work of a sigmoid."""
_LOOKED_AT = 1 << 20
"""Numbers that are looked at: what went through a softmax shows in every row."""
_SPREAD = 1e-5
"""Rounding of a log-softmax in float32 leaves about 1e-7; scores that differ by less tell rows apart by rounding."""
_FEWEST_FOR_COLUMNS = 20
"""Rows below which whole numbers may be chance."""
_FEWEST_LABELLED, _LISTED_CLASSES = 50, 3
_KEPT = 1 << 14
_FEWEST_SHARED = 10
"""Rows that must be comparable before a share is named."""


class ProbabilityForm(StrEnum):
    """What became of the logits."""

    PROBABILITIES = "probabilities"
    LOG_PROBABILITIES = "log-probabilities"
    PERCENTAGES = "percentages"
    SIGMOIDS = "sigmoids"


class DetectedProbabilities(NamedTuple):
    """What rows given as logits are, and how it shows, in words."""

    form: ProbabilityForm
    evidence: str


def detect_probabilities(logits: Rows) -> DetectedProbabilities | None:
    """Tell whether rows given as logits went through a softmax, its logarithm or a sigmoid; None if not.

    Rows with NaN or infinity are left out; log-probabilities may be -infinity.
    """
    rows = _some_rows(logits)
    if not len(rows):
        return None
    tolerance = TOLERANCE if len(rows) >= _FEW else _EXACT
    low, high = float(rows.min()), float(rows.max())

    def all_near(values: FloatArray, total: float) -> bool:
        return bool((np.abs(values.sum(axis=1) - total) <= tolerance * total).all())

    if low >= -tolerance and high <= 1.0 + tolerance:
        if all_near(rows, 1.0):
            evidence = "every row adds up to 1 and no number is below 0"
            return DetectedProbabilities(ProbabilityForm.PROBABILITIES, evidence)
        if low >= 0.0 and high <= 1.0 and len(rows) >= _MANY:
            return DetectedProbabilities(ProbabilityForm.SIGMOIDS, "every number lies between 0 and 1")
    if low >= 0.0 and all_near(rows, 100.0):
        evidence = "every row adds up to 100 and no number is below 0"
        return DetectedProbabilities(ProbabilityForm.PERCENTAGES, evidence)
    if high <= tolerance and all_near(np.exp(rows), 1.0):
        evidence = "no number is above 0 and the exponentials of every row add up to 1"
        return DetectedProbabilities(ProbabilityForm.LOG_PROBABILITIES, evidence)
    return None


def _some_rows(logits: Rows) -> FloatArray:
    """Rows to look at, in float64: spread over all of them, and only those without NaN and +infinity."""
    step = max(1, -(-logits.size // _LOOKED_AT))
    rows: FloatArray = np.asarray(logits[::step], dtype=np.float64)
    rows = rows[~(np.isnan(rows) | (rows == np.inf)).any(axis=1)]
    return rows if (rows <= 0.0).all() else rows[finite_row_mask(rows)]


def probabilities_message(found: DetectedProbabilities, source: str, option: str = "") -> str:
    """What to tell who gave such rows; ``option``, where there is one, takes the logarithm of probabilities."""
    way = (
        "Give the last layer's outputs before the softmax: model(x) without softmax in PyTorch, "
        "activation=None on the last layer in Keras, decision_function in scikit-learn, output.logits in transformers."
    )
    holds = f"{source} holds {found.form}, not logits ({found.evidence})."
    if found.form is ProbabilityForm.PROBABILITIES:
        return f"{holds} {way}" + (f" If there is nothing else, {option} takes their logarithm." if option else "")
    if found.form is ProbabilityForm.PERCENTAGES:
        return f"{holds} {way}" + (f" If there is nothing else, divide by 100 and pass {option}." if option else "")
    if found.form is ProbabilityForm.LOG_PROBABILITIES:
        return (
            f"{source} holds log-probabilities ({found.evidence}): how large the logits were is lost, so energy is the "
            f"same for every row and only detectors that compare classes can work. {way}"
        )
    return f"{source} may hold outputs of a sigmoid, not logits ({found.evidence}). {way}"


def log_of_probabilities(rows: Rows, source: str) -> FloatArray:
    """The logarithm of probabilities, which a softmax turns back into them; other rows raise.

    A 0 counts as the smallest number above 0 that the dtype can hold, so that the order of all numbers stays.
    """
    values = np.asarray(rows, dtype=np.float64)
    bad = np.isfinite(values).all(axis=1) & (
        (np.abs(values.sum(axis=1) - 1.0) > TOLERANCE) | (values < -TOLERANCE).any(axis=1)
    )
    if bad.any():
        row = int(np.argmax(bad))
        raise InvalidInput(
            f"{source} was said to hold probabilities, but row {row} adds up to {values[row].sum():.4g} with the "
            f"smallest number {values[row].min():.4g}. Leave probabilities=True out if these are logits."
        )
    dtype = rows.dtype if rows.dtype.kind == "f" else np.dtype(np.float64)
    logs: FloatArray = np.log(np.maximum(values, float(np.finfo(dtype).smallest_subnormal)))  # NaN stays NaN
    return logs


def constant_on_log_probabilities(name: str, scores: FloatArray, logits: Rows) -> str | None:
    """Say that a detector cannot tell rows of log-probabilities apart; None where it can, or where they are logits.

    A log-softmax makes log sum exp of every row 0, so that Energy is 0 for all of them but for rounding.
    """
    found = None if np.ptp(scores) > _SPREAD else detect_probabilities(logits)
    if found is None or found.form is not ProbabilityForm.LOG_PROBABILITIES:
        return None
    return (
        f"{name} gives every row of log-probabilities the same score but for rounding ({found.evidence}), so it cannot "
        "tell rows apart. Take a detector that compares classes, such as msp, or logits from before the softmax."
    )


def look_at_first_rows(
    rows: ModelOutputs,
    path: str,
    class_names: Sequence[str] | None = None,
    *,
    probabilities: bool = False,
    reads_logits: bool = True,
    check_labels: bool = False,
) -> list[str]:
    """Refuse first rows of a table that are surely wrong, and give sentences on what probably is.

    Messages call the table ``path``. Where the logits are known to be ``probabilities``, or nothing but the predicted
    class is made of them (not ``reads_logits``), probabilities serve as well.
    """
    if LOGITS not in rows.names:
        return []
    notes = []
    found = detect_probabilities(rows.logits) if reads_logits and not probabilities else None
    if found is not None:
        notes.append(probabilities_message(found, path, option="probabilities=True"))
        if found.form in (ProbabilityForm.PROBABILITIES, ProbabilityForm.PERCENTAGES):
            raise InvalidInput(notes[0])
    odd = odd_column(rows.logits, class_names)
    if odd is not None:
        raise InvalidInput(
            f"{path}: {odd}, not a logit. Leave it out of the logits, and call a column of labels 'label'."
        )
    if check_labels and rows.labels is not None:
        wrong = permuted_labels(rows.labels, rows.predicted, rows.n_classes)
        notes += [] if wrong is None else [f"{path}: {wrong}"]
    return notes


def odd_column(logits: Rows, names: Sequence[str] | None = None) -> str | None:
    """Say which column of the logits is a label or a row number; None if every column may be a logit.

    A column is one if it holds nothing but whole numbers while others do not: numbers of classes, or numbers that
    count the rows.
    """
    n_rows, n_columns = logits.shape
    if n_rows < _FEWEST_FOR_COLUMNS or n_columns < 3 or logits.dtype.kind != "f":
        return None
    head = np.asarray(logits[:_FEWEST_FOR_COLUMNS])
    with np.errstate(invalid="ignore"):
        whole = (head == np.floor(head)).all(axis=0)
    if not whole.any() or whole.all():
        return None
    for column in np.flatnonzero(whole).tolist():
        values = np.asarray(logits[:, column], dtype=np.float64)
        if not np.isfinite(values).all() or (values != np.floor(values)).any():
            continue
        name = f"column {column}" + (f" ({names[column]!r})" if names is not None else "")
        if (np.diff(values) == 1.0).all():
            return f"{name} counts the rows from {values[0]:g} to {values[-1]:g}, so it looks like a row number"
        low, high = values.min(), values.max()
        if low >= -1.0 and low < high <= n_columns - 1 and np.unique(values[:1000]).size > 1:
            return (
                f"{name} holds nothing but the whole numbers {low:g} to {high:g}, and the others do not, so it looks "
                "like the label"
            )
    return None


def permuted_labels(labels: IntArray, predicted: IntArray, n_classes: int) -> str | None:
    """Say how labels disagree with the predicted classes; None where they agree as well as can be expected.

    Two things are looked for: labels that another numbering of the classes would make right, and labels that have
    nothing to do with the predicted classes. By chance the two agree in sum_c P(label = c) P(predicted = c) of the
    rows, which is more than one in C where the rows show some of the classes alone. -1 stands for "not known".
    """
    known = labels >= 0
    if int(known.sum()) < _FEWEST_LABELLED or n_classes < 2:
        return None
    labels, predicted = labels[known], predicted[known]
    right = float((labels == predicted).mean())
    pairs, counts = np.unique(labels * np.int64(n_classes) + predicted, return_counts=True)
    best: dict[int, tuple[int, int]] = {}
    for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
        label, column = divmod(pair, n_classes)
        if count > best.get(label, (0, 0))[0]:
            best[label] = (count, column)
    renumbered = sum(count for count, _ in best.values()) / labels.size
    one_to_one = len({column for _, column in best.values()}) > 0.8 * len(best)
    if one_to_one and len(best) > 1 and renumbered > 0.5 and right < 0.5 * renumbered:
        moved = [f"label {label} is column {column}" for label, (_, column) in best.items() if label != column]
        listed = ", ".join(moved[:_LISTED_CLASSES]) + (", ..." if len(moved) > _LISTED_CLASSES else "")
        return (
            f"the label is the predicted class in {100 * right:.1f} % of the rows, and would be in "
            f"{100 * renumbered:.1f} % if the classes were numbered otherwise ({listed}). Labels count the columns of "
            "the logits from 0; number them in that order."
        )
    if len(best) > 1 and right < 0.5 and right < _largest_by_chance(labels, predicted):
        return (
            f"the label is the predicted class in {100 * right:.1f} % of the rows, no more than chance. Do labels and "
            "logits have their rows in the same order?"
        )
    return None


def _largest_by_chance(labels: IntArray, predicted: IntArray) -> float:
    """The share of agreeing rows that labels in any order hardly ever exceed: three deviations above the mean."""
    shares = [np.bincount(side, minlength=int(max(labels.max(), predicted.max())) + 1) for side in (labels, predicted)]
    chance = float(shares[0] @ shares[1]) / labels.size**2
    return chance + 3.0 * float(np.sqrt(chance * (1.0 - chance) / labels.size))


class RowSketch:
    """Whether two tables have rows in common, in bounded memory.

    Every row has a number that is as good as random. A sketch keeps the smallest of these numbers
    (the "k minimum values" of Bar-Yossef et al., 2002): another table's rows whose numbers are as small must be among
    them if they are in the first table.
    """

    def __init__(self) -> None:
        self._smallest: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._is_whole = True

    @classmethod
    def of(cls, outputs: ModelOutputs) -> RowSketch:
        """A sketch of the first array of outputs."""
        sketch = cls()
        sketch.take_in(outputs.array(outputs.names[0]))
        return sketch

    def take_in(self, rows: Rows) -> None:
        """Note some rows; float32 rows and their copy in float64 are the same rows."""
        self._note(row_keys(rows, ordered=True), True)

    def merge(self, other: RowSketch) -> None:
        """Note the rows that another sketch has noted."""
        self._note(other._smallest, other._is_whole)

    def _note(self, numbers: NDArray[np.uint64], are_all: bool) -> None:
        found = np.unique(np.concatenate([self._smallest, numbers]))
        self._is_whole = self._is_whole and are_all and found.size <= _KEPT
        self._smallest = found[:_KEPT]

    def share_of(self, other: RowSketch) -> float | None:
        """The share of another table's rows that are also in this one; None where too few can be compared."""
        numbers = other._smallest
        for sketch in (self, other):
            if not sketch._is_whole:
                numbers = numbers[numbers <= sketch._smallest[-1]]
        if numbers.size < _FEWEST_SHARED:
            return None
        return float(np.isin(numbers, self._smallest, assume_unique=True).mean())
