"""Probabilities, log-probabilities or sigmoids where logits were asked for.

A softmax forgets how large the logits were: all that is left of z is z - log sum exp z. Scores that live on the size
(energy, the largest logit, norm-scaling) are then made of what the softmax left over.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import numpy as np

from normscale._validate import FloatArray, Rows, finite_row_mask
from normscale.errors import InvalidInput

TOLERANCE = 0.01
"""How far from 1 a row of probabilities may add up: three decimals of twenty classes are rounded by no more."""
_FEW, _EXACT = 3, 1e-5
"""Fewer rows than that must add up to 1 much more exactly, for a row or two of logits may do so by chance."""
_MANY = 20
"""Rows needed to call numbers between 0 and 1 the work of a sigmoid."""
_LOOKED_AT = 1 << 20
"""Numbers that are looked at: what went through a softmax shows in every row."""


class Squashed(StrEnum):
    """What became of the logits."""

    PROBABILITIES = "probabilities"
    LOG_PROBABILITIES = "log-probabilities"
    SIGMOIDS = "sigmoids"


class SquashedRows(NamedTuple):
    """What rows look like, and the sign of it in words."""

    kind: Squashed
    sign: str


def squashed(logits: Rows) -> SquashedRows | None:
    """Tell whether rows given as logits went through a softmax, its logarithm or a sigmoid; None if not.

    Rows with NaN or infinity are left out; log-probabilities may be -infinity.

    Parameters
    ----------
    logits : array of shape (n, C)

    Examples
    --------
    >>> squashed(np.array([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])).kind.value
    'probabilities'
    >>> squashed(np.log([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])).kind.value
    'log-probabilities'
    >>> squashed(np.array([[2.0, -1.0], [0.3, 0.4], [5.0, 1.0]])) is None
    True
    """
    rows = _some_rows(logits)
    if not len(rows):
        return None
    tolerance = TOLERANCE if len(rows) >= _FEW else _EXACT
    low, high = float(rows.min()), float(rows.max())
    if low >= -tolerance and high <= 1.0 + tolerance:
        if (np.abs(rows.sum(axis=1) - 1.0) <= tolerance).all():
            return SquashedRows(Squashed.PROBABILITIES, "every row adds up to 1 and no number is below 0")
        if low >= 0.0 and high <= 1.0 and len(rows) >= _MANY:
            return SquashedRows(Squashed.SIGMOIDS, "every number lies between 0 and 1")
    if high <= tolerance and (np.abs(np.exp(rows).sum(axis=1) - 1.0) <= tolerance).all():
        return SquashedRows(
            Squashed.LOG_PROBABILITIES, "no number is above 0 and the exponentials of every row add up to 1"
        )
    return None


def percentages(logits: Rows) -> bool:
    """Whether rows are probabilities in per cent: no number below 0, and every row adds up to 100.

    Examples
    --------
    >>> percentages(np.array([[90.0, 10.0], [20.0, 80.0], [50.0, 50.0]])), percentages(np.array([[99.0, 2.0]]))
    (True, False)
    """
    rows = _some_rows(logits)
    if not len(rows) or float(rows.min()) < 0.0:
        return False
    tolerance = TOLERANCE if len(rows) >= _FEW else _EXACT
    return bool((np.abs(rows.sum(axis=1) - 100.0) <= 100.0 * tolerance).all())


def sentence(found: SquashedRows, source: str, *, option: str = "") -> str:
    """Say what was found in ``source`` and how to get logits.

    Parameters
    ----------
    found : SquashedRows
    source : str
        What the rows are called.
    option : str
        How to have probabilities taken as they are, such as ``probabilities=True``; empty where that cannot be had.

    Examples
    --------
    >>> sentence(SquashedRows(Squashed.PROBABILITIES, "every row adds up to 1"), "a.csv")[:57]
    'a.csv holds probabilities, not logits (every row adds up '
    """
    way = (
        "Give the last layer's outputs before the softmax: model(x) without softmax in PyTorch, "
        "activation=None on the last layer in Keras, decision_function in scikit-learn, output.logits in transformers."
    )
    if found.kind is Squashed.PROBABILITIES:
        text = f"{source} holds probabilities, not logits ({found.sign}). {way}"
        return f"{text} If there is nothing else, {option} takes their logarithm." if option else text
    if found.kind is Squashed.LOG_PROBABILITIES:
        return (
            f"{source} holds log-probabilities ({found.sign}): how large the logits were is lost, so energy is the "
            f"same for every row and only detectors that compare classes can work. {way}"
        )
    return f"{source} may hold outputs of a sigmoid, not logits ({found.sign}). {way}"


def log_of_probabilities(rows: Rows, source: str) -> FloatArray:
    """The logarithm of probabilities, which a softmax turns back into them; shape (n, C), float64.

    A 0 counts as the smallest number above 0 that the dtype can hold, so that the order of all numbers stays.

    Raises
    ------
    InvalidInput
        When a row is none of probabilities.

    Examples
    --------
    >>> log_of_probabilities(np.array([[0.75, 0.25]]), "a.csv").round(3).tolist()
    [[-0.288, -1.386]]
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
    floor = float(np.finfo(dtype).smallest_subnormal)
    logs: FloatArray = np.log(np.maximum(values, floor))  # NaN stays NaN
    return logs


def _some_rows(logits: Rows) -> FloatArray:
    """Rows to look at, in float64: spread over all of them, and only those without NaN and +infinity."""
    step = max(1, -(-logits.size // _LOOKED_AT))
    rows: FloatArray = np.asarray(logits[::step], dtype=np.float64)
    rows = rows[~(np.isnan(rows) | (rows == np.inf)).any(axis=1)]
    return rows if (rows <= 0.0).all() else rows[finite_row_mask(rows)]
