"""Detectors of somebody else: what a guard knows of them is what they say about themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

import normscale as ns
from normscale._validate import FloatArray
from normscale.detectors.base import Detector, Setting
from normscale.detectors.registry import register
from normscale.outputs import ModelOutputs


@register
class NearestNeighbour(Detector):
    """Distance of the features to the nearest training row."""

    name = "test_nearest_neighbour"
    title = "Nearest neighbour"
    reads = ("features",)
    train_: FloatArray

    def _fit(self, chunks: Iterator[ModelOutputs]) -> None:
        self.train_ = np.concatenate([chunk.features.astype(np.float64) for chunk in chunks])

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        features = outputs.features.astype(np.float64)
        distances: FloatArray = ((features[:, None] - self.train_[None]) ** 2).sum(axis=2).min(axis=1)
        return distances

    def _tensors(self) -> dict[str, NDArray[Any]]:
        return {"train": self.train_}

    def _restore(self, tensors: dict[str, NDArray[Any]]) -> None:
        self.train_ = tensors["train"]


@register
class RunningNeighbour(NearestNeighbour):
    """The same, remembering the last 50 rows of its stream, too: what it knows depends on their order."""

    name = "test_running_neighbour"
    title = "Running neighbour"
    settings = (Setting.FROZEN, Setting.STREAM)
    last_: FloatArray

    def _start(self) -> None:
        self.last_ = np.zeros((0, self.train_.shape[1]))

    def _stream(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        features, last, scores = outputs.features.astype(np.float64), self.last_, np.empty(len(outputs))
        for i, row in enumerate(features):
            known = np.concatenate([self.train_, last])
            scores[i] = ((known - row) ** 2).sum(axis=1).min()
            last = np.concatenate([last, row[None]])[-50:]
        self.last_ = last
        return scores

    def _tensors(self) -> dict[str, NDArray[Any]]:
        return {"train": self.train_, "last": self.last_}

    def _restore(self, tensors: dict[str, NDArray[Any]]) -> None:
        self.train_, self.last_ = tensors["train"], tensors["last"]


def fitted(name: str, **parameters: Any) -> Detector:
    """A detector on the sample, with a threshold."""
    sample = ns.load_sample()
    made = ns.make_detector(name, **parameters).fit(sample.train).set_threshold(sample.validation)
    made.class_names = tuple(sample.class_names)
    return made
