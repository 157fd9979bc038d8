"""ViM, the virtual logit (Wang et al. 2022): the energy of the logits against the size of what no class explains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import normscale as ns
from normscale.detectors.base import join


@ns.register
class VirtualLogit(ns.Detector):
    """alpha * |residual of the features| - log sum exp of the logits."""

    name = "their_vim"
    about = ns.About(
        title="Their ViM",
        paper="Wang et al. 2022",
        parameters={"dimensions": "of the principal space; by default half of the features"},
    )
    reads = ("logits", "features")
    reads_in_fit = ("head",)

    class Fitted(NamedTuple):
        """What the training rows tell."""

        origin: NDArray[np.float64]
        residual: NDArray[np.float64]
        alpha: float

    fitted_: Fitted

    def __init__(self, dimensions: int | None = None) -> None:
        self.dimensions = dimensions

    def _fit(self, chunks: Iterator[ns.ModelOutputs]) -> None:
        train = join(chunks)
        assert train.head is not None  # the contract saw to it
        self._check(train)
        weight, bias = (part.astype(np.float64) for part in train.head)
        origin = -np.linalg.pinv(weight) @ bias
        centred = train.features.astype(np.float64) - origin
        _, vectors = np.linalg.eigh(centred.T @ centred)
        kept = self.dimensions or centred.shape[1] // 2
        residual = vectors[:, : centred.shape[1] - kept]
        size = np.linalg.norm(centred @ residual, axis=1).mean()
        alpha = float(train.logits.astype(np.float64).max(axis=1).mean() / max(size, 1e-300))
        self._learn(self.Fitted(origin, residual, alpha))

    def _score(self, outputs: ns.ModelOutputs, threads: int) -> NDArray[np.float64]:
        self._check(outputs)
        origin, residual, alpha = self.fitted_
        size = np.linalg.norm((outputs.features.astype(np.float64) - origin) @ residual, axis=1)
        scores: NDArray[np.float64] = alpha * size + ns.energy_score(outputs.logits, threads=threads)
        return scores

    @staticmethod
    def _check(outputs: ns.ModelOutputs) -> None:
        for name in ("logits", "features"):
            bad = np.flatnonzero(~np.isfinite(outputs.array(name)).all(axis=1))
            if bad.size:
                raise ns.InvalidInput(f"{name} row {bad[0]} is not finite; nothing was taken in.")
