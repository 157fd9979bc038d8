"""Labels whose numbers are not the numbers of the columns."""

from __future__ import annotations

import numpy as np

from normscale._validate import IntArray

_FEWEST = 50
"""Labelled rows below which nothing is said."""
_SHOWN = 3


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
    if int(known.sum()) < _FEWEST or n_classes < 2:
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
        shown = ", ".join(moved[:_SHOWN]) + (", ..." if len(moved) > _SHOWN else "")
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
