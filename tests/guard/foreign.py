"""Detectors of somebody else: what a guard knows of them is what they say about themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import numpy as np

import normscale as ns
from normscale._validate import FloatArray
from normscale.detectors.base import About, Detector
from normscale.detectors.registry import register
from normscale.outputs import ModelOutputs
from normscale.state import Numbers


@register
class NearestNeighbour(Detector):
    """Distance of the features to the nearest training row."""

    name = "test_nearest_neighbour"
    about = About(
        title="Nearest neighbour",
    )
    reads = ("features",)

    class Fitted(NamedTuple):
        """The training rows."""

        train: FloatArray

    fitted_: Fitted

    def _fit(self, chunks: Iterator[ModelOutputs]) -> None:
        self._learn(self.Fitted(np.concatenate([chunk.features.astype(np.float64) for chunk in chunks])))

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        features = outputs.features.astype(np.float64)
        distances: FloatArray = ((features[:, None] - self.fitted_.train[None]) ** 2).sum(axis=2).min(axis=1)
        return distances


@register
class RunningNeighbour(NearestNeighbour):
    """The same, remembering the last 50 rows of its stream, too: what it knows depends on their order."""

    name = "test_running_neighbour"
    about = About(
        title="Running neighbour",
    )

    class State(NamedTuple):
        """The last rows of the stream."""

        last: Annotated[FloatArray, Numbers("held", "features")]

    def _start(self) -> State:
        return self.State(np.zeros((0, self.fitted_.train.shape[1])))

    def _score_at(self, state: State, outputs: ModelOutputs, threads: int) -> FloatArray:
        return self._score(outputs, threads)

    def _step(self, state: State, prepared: ModelOutputs, threads: int) -> tuple[FloatArray, State]:
        features, last, scores = prepared.features.astype(np.float64), state.last, np.empty(len(prepared))
        for i, row in enumerate(features):
            known = np.concatenate([self.fitted_.train, last])
            scores[i] = ((known - row) ** 2).sum(axis=1).min()
            last = np.concatenate([last, row[None]])[-50:]
        return scores, self.State(last)


def fitted(name: str, **parameters: Any) -> Detector:
    """A detector on the sample, with a threshold."""
    sample = ns.load_sample()
    made = ns.make_detector(name, **parameters).fit(sample.train).set_threshold(sample.validation)
    made.class_names = tuple(sample.class_names)
    return made
