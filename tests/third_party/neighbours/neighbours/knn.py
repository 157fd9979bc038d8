"""Distance to the k-th nearest training feature, both of length one (Sun et al. 2022)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import normscale as ns
from normscale.detectors.base import join


@ns.register
class NearestNeighbours(ns.Detector):
    """Distance to the k-th nearest training feature on the unit sphere."""

    name = "their_knn"
    about = ns.About(
        title="Their KNN",
        paper="Sun et al. 2022",
        parameters={"k": "which neighbour counts"},
    )
    reads = ("features",)

    class Fitted(NamedTuple):
        """The training rows, of length one."""

        bank: NDArray[np.float64]

    fitted_: Fitted

    def __init__(self, k: int = 10) -> None:
        self.k = int(k)

    def _fit(self, chunks: Iterator[ns.ModelOutputs]) -> None:
        self._learn(self.Fitted(_normalised(join(chunks).features)))

    def _score(self, outputs: ns.ModelOutputs, threads: int) -> NDArray[np.float64]:
        products = _normalised(outputs.features) @ self.fitted_.bank.T
        k = min(self.k, len(self.fitted_.bank))
        nearest = -np.partition(-products, k - 1, axis=1)[:, k - 1]
        return np.sqrt(np.maximum(2.0 - 2.0 * nearest, 0.0))


def _normalised(features: NDArray[Any]) -> NDArray[np.float64]:
    rows = features.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if bad.size:
        raise ns.InvalidInput(f"features row {bad[0]} is not finite; nothing was taken in.")
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: NDArray[np.float64] = rows / np.maximum(lengths, 1e-300)
    return unit
