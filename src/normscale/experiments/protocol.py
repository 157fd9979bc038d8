"""How a detector is measured against an OoD set: with its statistics frozen, running, or per predicted class."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray, IntArray, Rows
from normscale.detectors.base import Detector
from normscale.detectors.multi_threshold import MultiThreshold
from normscale.errors import InvalidInput
from normscale.metrics.per_class import PerClassResult, evaluate_per_class
from normscale.metrics.ranking import RankingResult, evaluate
from normscale.outputs import ModelOutputs
from normscale.scores import msp_score

FROZEN = "frozen"
"""The detector as fitted."""
STREAM = "stream"
"""Running statistics over the shuffled mixture of both test sets, as in the paper."""
PER_CLASS = "per class"
"""One ranking of maximum softmax probabilities per predicted class, averaged: the paper's multi-threshold protocol."""


class ScoredPair(NamedTuple):
    """Scores of both sides, in the order of the sets' rows, and the predicted classes where they matter."""

    id_scores: FloatArray
    ood_scores: FloatArray
    id_predicted: IntArray | None = None
    ood_predicted: IntArray | None = None

    def evaluate(self) -> RankingResult | PerClassResult:
        """AUROC, AUPR and FPR95: of one ranking or, with predicted classes, of one per class."""
        if self.id_predicted is None or self.ood_predicted is None:
            return evaluate(self.id_scores, self.ood_scores)
        return evaluate_per_class(self.id_scores, self.id_predicted, self.ood_scores, self.ood_predicted)


def settings_of(detector: Detector) -> Iterator[str]:
    """The settings a detector can be measured in."""
    yield FROZEN
    if detector.has_running_statistics:
        yield STREAM
    if isinstance(detector, MultiThreshold):
        yield PER_CLASS


def require_one_network(named: Mapping[str, ModelOutputs]) -> None:
    """Make sure that all outputs have rows, as many classes as the first, and only finite logits."""
    first = next(iter(named))
    for name, outputs in named.items():
        _validate.require_rows(outputs.logits, f"logits of {name}")
        if outputs.n_classes != named[first].n_classes:
            raise InvalidInput(
                f"{name} has {outputs.n_classes} classes and {first} has {named[first].n_classes}; "
                "all outputs must come from one network."
            )
        if not _validate.finite_row_mask(outputs.logits).all():
            raise _validate.invalid_row_error(outputs.logits, f"{name}: logits")


def score_pair(
    detector: Detector, setting: str, id_test: ModelOutputs, ood: ModelOutputs, *, seed: int = 0, threads: int = 1
) -> ScoredPair:
    """Score both sides in one of the three settings; the detector stays as it is.

    Examples
    --------
    >>> import normscale as ns
    >>> sample = ns.load_sample()
    >>> detector = ns.NormScaling().fit(sample.train)
    >>> pair = score_pair(detector, STREAM, sample.test, sample.ood["uniform_noise"])
    >>> round(pair.evaluate().auroc, 3)
    0.935
    """
    if setting == PER_CLASS:
        return ScoredPair(msp_score(id_test.logits), msp_score(ood.logits), id_test.predicted, ood.predicted)
    if setting == FROZEN:
        return ScoredPair(detector.score(id_test, threads=threads), detector.score(ood, threads=threads))

    def stream(rows: Rows) -> FloatArray:
        outputs = ModelOutputs(rows) if detector.reads == "logits" else ModelOutputs(np.zeros((len(rows), 2)), rows)
        return copy.copy(detector).stream(outputs, threads=threads)

    return shuffled(getattr(id_test, detector.reads), getattr(ood, detector.reads), stream, seed)


def shuffled(id_rows: Rows, ood_rows: Rows, stream: Callable[[Rows], FloatArray], seed: int) -> ScoredPair:
    """Scores of both sides when they come in one shuffled stream, as in the paper."""
    mixture = np.concatenate([id_rows, ood_rows])
    order = np.random.default_rng(seed).permutation(len(mixture))
    scores = np.empty(len(mixture))
    scores[order] = stream(mixture[order])
    return ScoredPair(scores[: len(id_rows)], scores[len(id_rows) :])
