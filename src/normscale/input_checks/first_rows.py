"""What the first rows of a table show to be wrong: probabilities, clipped logits, columns and labels out of place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from normscale._validate import IntArray, Rows, finite_row_mask
from normscale.errors import InvalidInput
from normscale.input_checks.softmaxed import Squashed, percentages, sentence, squashed
from normscale.outputs import LOGITS, ModelOutputs

_OPTION = "probabilities=True"
_FEWEST_CLIPPED = 100
"""Rows needed to say anything."""
_CLIPPED_SHARE = 0.01
"""Of all numbers, that may be equal to the largest or the smallest without suspicion."""
_CLIPPED_TIMES = 2
"""So many times more often than the next value: of rounded numbers the outermost are the rarest."""
_FEWEST_FOR_COLUMNS = 20
"""Rows below which whole numbers may be chance."""
_FEWEST_TO_COMPARE, _MORE_SPREAD = 50, 0.12
"""Of honest tables of noise with so many rows the columns never had so much more of the largest numbers."""
_FEWEST_LABELLED = 50
"""Labelled rows below which nothing is said."""
_SHOWN_CLASSES = 3


def look_at_first_rows(
    rows: ModelOutputs,
    path: str,
    class_names: Sequence[str] | None = None,
    *,
    probabilities: bool = False,
    reads_logits: bool = True,
    check_labels: bool = False,
) -> list[str]:
    """Refuse rows that are surely wrong, and give sentences on what probably is.

    Parameters
    ----------
    rows : ModelOutputs
        The first rows of a table, at least one.
    path : str
        What messages call the table.
    class_names : sequence of str, optional
    probabilities : bool
        The logits are known to be probabilities.
    reads_logits : bool
        False where nothing but the predicted class is made of the logits; then probabilities serve as well.
    check_labels : bool
        Say so where the labels do not go with the logits.

    Raises
    ------
    InvalidInput
        Where the logits are probabilities or percentages, or one column is something else.
    """
    if LOGITS not in rows.names:
        return []
    notes = _look_at_values(rows.logits, path) if reads_logits and not probabilities else []
    odd = odd_column(rows.logits, class_names)
    if odd is not None:
        raise InvalidInput(
            f"{path}: {odd}, not a logit. Leave it out of the logits, and call a column of labels 'label'."
        )
    if check_labels and rows.labels is not None:
        wrong = permuted_labels(rows.labels, rows.predicted, rows.n_classes)
        notes += [] if wrong is None else [f"{path}: {wrong}"]
    return notes


def _look_at_values(logits: Rows, path: str) -> list[str]:
    found = squashed(logits)
    if found is not None:
        text = sentence(found, path, option=_OPTION)
        if found.kind is Squashed.PROBABILITIES:
            raise InvalidInput(text)
        return [text]
    if percentages(logits):
        raise InvalidInput(
            f"{path} holds percentages, not logits (every row adds up to 100 and no number is below 0). Give the "
            f"outputs before the softmax; if there are none, divide by 100 and pass {_OPTION}."
        )
    where = clipped(logits)
    if where is None:
        return []
    return [
        f"the logits of {path} look clipped: {where}. Inputs beyond that value cannot be told apart; give logits as "
        "the network makes them."
    ]


def clipped(logits: Rows) -> str | None:
    """Say at which value logits were cut off; None if they look whole.

    They were if more than one number in a hundred equals the largest or the smallest, and that many more do than equal
    the next. Columns that never change are left out: they are classes that somebody masked.

    Parameters
    ----------
    logits : array of shape (n, C)

    Examples
    --------
    >>> logits = 5.0 * np.random.default_rng(0).normal(size=(200, 4))
    >>> clipped(np.clip(logits, -30.0, 6.0))
    '11.9 % of the numbers are exactly 6, the largest of all'
    >>> clipped(logits) is None
    True
    """
    rows = logits[finite_row_mask(logits)]
    if len(rows) <= _FEWEST_CLIPPED:
        return None
    values = rows[:, (rows != rows[0]).any(axis=0)].ravel()
    for name, extreme in (("largest", np.max), ("smallest", np.min)):
        if not values.size:
            break
        end = extreme(values)
        at_end = values == end
        count, rest = int(at_end.sum()), values[~at_end]
        if count <= _CLIPPED_SHARE * values.size:
            continue
        if not rest.size or count > _CLIPPED_TIMES * int((rest == extreme(rest)).sum()):
            return f"{100 * count / values.size:.1f} % of the numbers are exactly {end:g}, the {name} of all"
    return None


def odd_column(logits: Rows, names: Sequence[str] | None = None) -> str | None:
    """Say which column of the logits is a label or a row number; None if every column may be a logit.

    A column is one if it holds nothing but whole numbers while others do not: numbers of classes, or numbers that
    count the rows.

    Parameters
    ----------
    logits : array of shape (n, C)
    names : sequence of str, optional
        Of the columns.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> odd_column(np.c_[rng.normal(size=(50, 3)), rng.integers(0, 3, 50)])
    'column 3 holds nothing but the whole numbers 0 to 2, and the others do not, so it looks like the label'
    >>> odd_column(rng.normal(size=(50, 3))) is None
    True
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
        shown = f"column {column}" + (f" ({names[column]!r})" if names is not None else "")
        if (np.diff(values) == 1.0).all():
            return f"{shown} counts the rows from {values[0]:g} to {values[-1]:g}, so it looks like a row number"
        low, high = values.min(), values.max()
        if low >= -1.0 and low < high <= n_columns - 1 and np.unique(values[:1000]).size > 1:
            return (
                f"{shown} holds nothing but the whole numbers {low:g} to {high:g}, and the others do not, so it looks "
                "like the label"
            )
    return None


def looks_transposed(n_rows: int, n_columns: int, some_rows: Rows | None = None) -> bool:
    """Whether logits for training look as if rows and columns changed places.

    That is so where there are few rows and very many columns. Where there are only more columns than rows, the numbers
    must say so too. Every input has one large logit, while some classes have several inputs and others none: of the
    n largest numbers of n inputs nearly each is another input's, and of the C largest several are one class's.

    Parameters
    ----------
    n_rows, n_columns : int
        Of the whole table.
    some_rows : array of shape (n, n_columns), optional
        Its rows, or many of them; without these only the shape is looked at.

    Examples
    --------
    >>> looks_transposed(10, 50_000), looks_transposed(500, 1000)
    (True, False)
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(200, 60)) + 9 * np.eye(60)[rng.integers(0, 60, 200)]
    >>> looks_transposed(60, 200, logits.T), looks_transposed(50, 60, logits[:50])
    (True, False)
    """
    if n_rows < 2 or n_columns <= n_rows:
        return False
    if n_columns > 4 * n_rows:
        return True
    if some_rows is None or len(some_rows) < _FEWEST_TO_COMPARE:
        return False
    values = np.asarray(some_rows, dtype=np.float64)
    if not np.isfinite(values).all():
        return False
    for axis in (1, 0):  # neither an input nor a class is to have all large numbers
        values = values - values.mean(axis=axis, keepdims=True)
        values /= np.maximum(values.std(axis=axis, keepdims=True), np.finfo(np.float64).tiny)
    return _spread_of_largest(values.T) > _spread_of_largest(values) + _MORE_SPREAD


def _spread_of_largest(rows: Rows) -> float:
    """The share of rows that have some of the n largest numbers, n being the number of rows."""
    n_rows, n_columns = rows.shape
    largest = np.argpartition(rows, rows.size - n_rows, axis=None)[-n_rows:]
    share: float = np.unique(largest // n_columns).size / n_rows
    return share


def permuted_labels(labels: IntArray, predicted: IntArray, n_classes: int) -> str | None:
    """Say how labels disagree with the predicted classes; None where they agree as well as can be expected.

    Two things are looked for: labels that another numbering of the classes would make right, and labels that have
    nothing to do with the predicted classes. By chance the two agree in sum_c P(label = c) P(predicted = c) of the
    rows, which is more than one in C where the rows show some of the classes alone.

    Parameters
    ----------
    labels, predicted : arrays of shape (n,)
        -1 stands for "not known".
    n_classes : int

    Examples
    --------
    >>> labels = np.arange(300) % 3
    >>> permuted_labels(labels, (labels + 1) % 3, 3)[:75]
    'the label is the predicted class in 0.0 % of the rows, and would be in 100.'
    >>> permuted_labels(labels, labels, 3) is None
    True
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
        shown = ", ".join(moved[:_SHOWN_CLASSES]) + (", ..." if len(moved) > _SHOWN_CLASSES else "")
        return (
            f"the label is the predicted class in {100 * right:.1f} % of the rows, and would be in "
            f"{100 * renumbered:.1f} % if the classes were numbered otherwise ({shown}). Labels count the columns of "
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
