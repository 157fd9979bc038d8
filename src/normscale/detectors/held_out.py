"""Training rows in two halves, each class by itself: what is learned on one half is tried on the other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from normscale._validate import IntArray
from normscale.detectors.row_blocks import block_rows
from normscale.outputs import LOGITS, ModelOutputs

_FEWEST_TO_SPLIT = 20
"""Below this many rows they are not split."""
_SEED = 20261118


def halves(train: ModelOutputs, arrays: tuple[str, ...]) -> tuple[IntArray, IntArray] | None:
    """Places of the rows of two halves that are alike; None where rows are few.

    Within every class, rows are ranked by how far the largest logit lies above their mean, and go to the one half and
    the other in turn. A class is the predicted one; without logits it is the label, and rows are ranked by length. So
    neither the order of the rows nor that of the classes matters, nor a number that is added to all logits of a row.

    Parameters
    ----------
    train : ModelOutputs
    arrays : tuple of str
        The arrays that tell rows of equal rank apart.
    """
    if len(train) < _FEWEST_TO_SPLIT:
        return None
    if LOGITS in train.names:
        classes, strength = train.predicted, train.logits.max(axis=1) - train.logits.mean(axis=1, dtype=np.float64)
    else:
        rows = train.array(train.names[0])
        classes = np.zeros(len(train), np.int64) if train.labels is None else train.labels + 1
        strength = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    weakest = np.full(classes.max() + 1, np.inf)
    np.minimum.at(weakest, classes, strength)
    order = np.lexsort((content_keys(train, arrays), strength, classes, weakest[classes]))
    return np.sort(order[0::2]), np.sort(order[1::2])


def content_keys(rows: ModelOutputs, arrays: tuple[str, ...]) -> NDArray[np.uint64]:
    """A number (n,) for every row that depends on its numbers in these arrays alone, and looks random.

    Examples
    --------
    >>> keys = content_keys(ModelOutputs([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]]), ("logits",))
    >>> bool(keys[0] == keys[2]), bool(keys[0] == keys[1])
    (True, False)
    """
    keys = np.zeros(len(rows), np.uint64)
    random = np.random.RandomState(_SEED)  # its numbers never change between versions of numpy
    for name in arrays:
        array = rows.array(name)
        factors = random.randint(0, 1 << 63, array.shape[1], np.uint64) * np.uint64(2) + np.uint64(1)
        size = block_rows(array.shape[1])
        for a in range(0, len(rows), size):
            numbers = np.array(array[a : a + size], np.float64, order="C") + 0.0  # -0 is 0
            bits = numbers.view(np.uint64)
            bits ^= bits >> np.uint64(32)
            keys[a : a + size] += (bits * factors).sum(axis=1, dtype=np.uint64)
    keys ^= keys >> np.uint64(29)
    keys *= np.uint64(0xBF58476D1CE4E5B9)
    keys ^= keys >> np.uint64(32)
    return keys
