"""The mean of training features, chunk by chunk."""

from __future__ import annotations

import numpy as np

from normscale._validate import FloatArray, Rows
from normscale.detectors.row_blocks import float_blocks
from normscale.outputs import FEATURES


class FeatureMean:
    """Sum and number of rows, in float64.

    Examples
    --------
    >>> mean = FeatureMean()
    >>> mean.add(np.array([[1.0, 2.0], [3.0, 2.0]]))
    >>> mean.n, mean.result().tolist()
    (2, [2.0, 2.0])
    """

    def __init__(self) -> None:
        self.n = 0
        self._sum: FloatArray = np.zeros(0)

    def add(self, features: Rows) -> None:
        """Take features (b, d) in."""
        for _, block in float_blocks(features, FEATURES, fitting=True):
            self._sum = block.sum(axis=0) + (self._sum if self.n else 0.0)
            self.n += block.shape[0]

    def result(self) -> FloatArray:
        """The mean; shape (d,)."""
        return self._sum / self.n
