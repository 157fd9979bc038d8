"""Scores that are the same for every row, because the rows are log-probabilities."""

from __future__ import annotations

import numpy as np

from normscale._validate import FloatArray, Rows
from normscale.input_checks.softmaxed import Squashed, squashed

_SPREAD = 1e-5
"""Rounding of a log-softmax in float32 leaves about 1e-7; scores that differ by less tell rows apart by rounding."""


def are_log_probabilities(logits: Rows) -> bool:
    """Whether rows are surely logarithms of probabilities."""
    found = squashed(logits)
    return found is not None and found.kind is Squashed.LOG_PROBABILITIES


def constant_on_log_probabilities(name: str, scores: FloatArray, logits: Rows) -> str | None:
    """Say that a detector cannot tell rows of log-probabilities apart; None where it can, or where they are logits.

    A log-softmax makes log sum exp of every row 0, so that Energy is 0 for all of them but for rounding.

    Parameters
    ----------
    name : str
        What the detector is called.
    scores : array of shape (n,)
        Its scores of the rows.
    logits : array of shape (n, C)

    Examples
    --------
    >>> rows = np.log([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])
    >>> constant_on_log_probabilities("energy", np.array([0.0, 1e-16, 0.0]), rows)[:58]
    'energy gives every row of log-probabilities the same score'
    >>> constant_on_log_probabilities("msp", np.array([0.1, 0.2, 0.5]), rows) is None
    True
    """
    if np.ptp(scores) > _SPREAD:
        return None
    found = squashed(logits)
    if found is None or found.kind is not Squashed.LOG_PROBABILITIES:
        return None
    return (
        f"{name} gives every row of log-probabilities the same score but for rounding ({found.sign}), so it cannot "
        "tell rows apart. Take a detector that compares classes, such as msp, or logits from before the softmax."
    )
