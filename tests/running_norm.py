"""Running detectors of somebody else whose streams can be merged."""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

import numpy as np

import normscale as ns
from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.outputs import ModelOutputs
from normscale.state import Numbers


@ns.register
class RunningNorm(Detector):
    """How many deviations the length of the features lies from that of the stream so far, the row itself included."""

    name, about, reads = "test_running_norm", ns.About("Running norm"), ("features",)

    class Fitted(NamedTuple):
        """Mean and variance of the lengths in training."""

        mean: float
        variance: Annotated[float, Numbers(above=0.0)]

    class State(NamedTuple):
        """Sums over the stream; training counts as one row."""

        n: float
        total: float
        squares: float

    fitted_: Fitted

    def _fit(self, chunks: object) -> None:
        lengths = np.concatenate([_lengths(chunk) for chunk in chunks])  # type: ignore[attr-defined]
        self._learn(self.Fitted(float(lengths.mean()), float(lengths.var()) or 1.0))

    def _start(self) -> State:
        mean, variance = self.fitted_
        return self.State(1.0, mean, variance + mean**2)

    def _step(self, state: State, prepared: ModelOutputs, threads: int) -> tuple[FloatArray, State]:
        lengths, scores = _lengths(prepared), np.empty(len(prepared))
        for i, length in enumerate(lengths.tolist()):
            state = self.State(state.n + 1.0, state.total + length, state.squares + length**2)
            scores[i] = self._deviations(state, length)
        return scores, state

    def _score_at(self, state: State, outputs: ModelOutputs, threads: int) -> FloatArray:
        return np.array([self._deviations(state, length) for length in _lengths(outputs).tolist()])

    def merge(self, first: State, second: State) -> State:
        return self.State(*(a + b - own for a, b, own in zip(first, second, self._start(), strict=True)))

    @staticmethod
    def _deviations(state: State, length: float) -> float:
        mean = state.total / state.n
        return abs(length - mean) / math.sqrt(max(state.squares / state.n - mean**2, 1e-12))


def _lengths(outputs: ModelOutputs) -> FloatArray:
    lengths: FloatArray = np.linalg.norm(outputs.features.astype(np.float64), axis=1)
    if not np.isfinite(lengths).all():
        raise ns.InvalidInput("a row of the features is not finite.")
    return lengths


@ns.register
class Shifted(ns.NormScaling):
    """Norm-scaling that scores in a way of its own."""

    name, about = "test_shifted", ns.About("Shifted")

    def _step(
        self, state: ns.NormScaling.State, prepared: ModelOutputs, threads: int
    ) -> tuple[FloatArray, ns.NormScaling.State]:
        scores, after = super()._step(state, prepared, threads)
        return scores + 1000.0, after
