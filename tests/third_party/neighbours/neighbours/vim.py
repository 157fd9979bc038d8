"""ViM, the virtual logit (Wang et al. 2022): the energy of the logits against the size of what no class explains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

import normscale as ns
from normscale.detectors.base import join


@ns.register
class VirtualLogit(ns.Detector):
    """alpha * |residual of the features| - log sum exp of the logits."""

    name = "their_vim"
    title = "Their ViM"
    paper = "Wang et al. 2022"
    reads = ("logits", "features")
    needs_head = True
    parameters = {"dimensions": "of the principal space; 0: half of the features"}

    origin_: NDArray[np.float64]
    residual_: NDArray[np.float64]
    alpha_: float

    def __init__(self, dimensions: int = 0) -> None:
        self.dimensions = int(dimensions)

    def _fit(self, chunks: Iterator[ns.ModelOutputs]) -> None:
        train = join(chunks)
        assert train.head is not None  # the contract saw to it
        self._check(train)
        weight, bias = (part.astype(np.float64) for part in train.head)
        self.origin_ = -np.linalg.pinv(weight) @ bias
        centred = train.features.astype(np.float64) - self.origin_
        _, vectors = np.linalg.eigh(centred.T @ centred)
        kept = self.dimensions or centred.shape[1] // 2
        self.residual_ = vectors[:, : centred.shape[1] - kept]
        size = np.linalg.norm(centred @ self.residual_, axis=1).mean()
        self.alpha_ = float(train.logits.astype(np.float64).max(axis=1).mean() / max(size, 1e-300))

    def _score(self, outputs: ns.ModelOutputs, threads: int) -> NDArray[np.float64]:
        self._check(outputs)
        size = np.linalg.norm((outputs.features.astype(np.float64) - self.origin_) @ self.residual_, axis=1)
        scores: NDArray[np.float64] = self.alpha_ * size + ns.energy_score(outputs.logits, threads=threads)
        return scores

    @staticmethod
    def _check(outputs: ns.ModelOutputs) -> None:
        for name in ("logits", "features"):
            bad = np.flatnonzero(~np.isfinite(outputs.array(name)).all(axis=1))
            if bad.size:
                raise ns.InvalidInput(f"{name} row {bad[0]} is not finite; nothing was taken in.")

    def _tensors(self) -> dict[str, NDArray[Any]]:
        return {"origin": self.origin_, "residual": self.residual_, "alpha": np.array([self.alpha_])}

    def _restore(self, tensors: dict[str, NDArray[Any]]) -> None:
        self.origin_, self.residual_ = tensors["origin"], tensors["residual"]
        self.alpha_ = float(tensors["alpha"][0])
