"""Entropy and generalised entropy of the softmax, row by row: what both kernels compute, and the choice between them.

For a row z with largest logit m, ``d = z - m``, ``others`` the sum of exp(d) over all classes but one largest, and
``S = 1 + others``, the probabilities are exp(d) / S. The probability that is nearly 1 in a confident row enters by
``others`` alone, so that ``1 - p`` keeps its digits however confident the row is.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from normscale import _kernels

FloatArray = NDArray[np.float64]

UNDERFLOW = 1e-290
"""Below it ``others`` is summed relative to the runner-up, where nothing underflows."""


class EntropyLoops(Protocol):
    """What a back end offers; False when a row is not finite."""

    def entropy(self, rows: NDArray[Any], out: FloatArray) -> bool:
        """-sum p log p."""

    def generalised_entropy(self, rows: NDArray[Any], gamma: float, top: int, out: FloatArray) -> bool:
        """Sum of (p (1 - p)) ** gamma over the ``top`` largest p."""


def _loops() -> EntropyLoops:
    if _kernels.backend() == "numba":
        from normscale._kernels import entropy_compiled

        return entropy_compiled
    from normscale._kernels import entropy_reference

    return entropy_reference


def entropy(rows: NDArray[Any], out: FloatArray, threads: int = 1) -> bool:
    """The entropy of the softmax of rows (n, C) into ``out`` (n,); False when a row is not finite."""
    loops = _loops()

    def score(block: slice) -> bool:
        return loops.entropy(_kernels._native(rows[block]), out[block])

    return all(_kernels._in_threads(score, _kernels._blocks(rows, threads), threads))


def generalised_entropy(rows: NDArray[Any], gamma: float, top: int, out: FloatArray, threads: int = 1) -> bool:
    """The generalised entropy of rows (n, C) into ``out`` (n,); False when a row is not finite."""
    loops = _loops()

    def score(block: slice) -> bool:
        return loops.generalised_entropy(_kernels._native(rows[block]), gamma, top, out[block])

    return all(_kernels._in_threads(score, _kernels._blocks(rows, threads), threads))
