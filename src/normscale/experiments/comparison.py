"""Compare detectors on the same outputs: one in-distribution test set, any number of OoD sets.

Every row says which class its numbers count as positive, how many inputs of each side there were, and in which
setting the scores were made:

* ``frozen``: the detector as fitted;
* ``stream``: running statistics over the shuffled mixture of both test sets, as in the paper;
* ``per class``: one ranking per predicted class, averaged (the paper's multi-threshold protocol).
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.detectors.multi_threshold import MultiThreshold
from normscale.detectors.norm_scaling import NormScaling
from normscale.detectors.registry import list_detectors, make_detector
from normscale.errors import InvalidInput
from normscale.metrics.per_class import PerClassResult, evaluate_per_class
from normscale.metrics.ranking import RankingResult, evaluate
from normscale.outputs import ModelOutputs
from normscale.scores import msp_score

METRICS = ("auroc", "aupr_out", "aupr_in", "fpr95_out", "fpr95_in")


class ComparisonRow(NamedTuple):
    """One detector on one OoD set. ``*_out``: OoD is the positive class; ``*_in``: in-distribution is."""

    method: str
    setting: str
    ood_set: str
    auroc: float
    aupr_out: float
    aupr_in: float
    fpr95_out: float
    fpr95_in: float
    n_id: int
    n_ood: int
    seconds: float
    parameters: dict[str, Any]
    seed: int | None


def default_methods(train: ModelOutputs | None, validation: ModelOutputs | None) -> list[str]:
    """Names of the registered detectors that the given outputs suffice for."""
    return [name for name in list_detectors() if _training_set(make_detector(name), train, validation) is not None]


def _training_set(
    detector: Detector, train: ModelOutputs | None, validation: ModelOutputs | None
) -> ModelOutputs | None:
    """What a detector may be fitted on; None when there is nothing suitable."""
    if not detector.needs_fit:
        return train if train is not None else ModelOutputs(np.zeros((1, 2)))
    source = validation if detector.name == "temperature_scaling" else train
    if source is None or getattr(source, detector.reads) is None:
        return None
    if detector.needs_labels and (source.labels is None or (source.labels < 0).any()):
        return None
    return source


def compare(
    id_test: ModelOutputs,
    ood_sets: Mapping[str, ModelOutputs],
    *,
    train: ModelOutputs | None = None,
    validation: ModelOutputs | None = None,
    detectors: Sequence[Detector] | None = None,
    seed: int = 0,
    tick: Callable[[str], None] = lambda _: None,
) -> list[ComparisonRow]:
    """Fit what needs fitting, score both sides, evaluate.

    Parameters
    ----------
    id_test : ModelOutputs
        In-distribution inputs the classifier was not trained on.
    ood_sets : mapping of name to ModelOutputs
    train : ModelOutputs, optional
        What detectors are fitted on. Without it, only those that need no fitting take part.
    validation : ModelOutputs, optional
        Labelled held-out inputs, for temperature scaling.
    detectors : detectors to compare, optional
        Fitted ones are used as they are; by default every registered one that the outputs suffice for.
    seed : int
        Order of the shuffled streams.
    tick : callable
        Told the name of each method on each set when it is done.
    """
    if not ood_sets:
        raise InvalidInput("ood_sets is empty; at least one OoD set is needed to compare.")
    if detectors is None:
        detectors = [make_detector(name) for name in default_methods(train, validation)]
    rows: list[ComparisonRow] = []
    for detector in detectors:
        fitted = _fitted(detector, train, validation)
        id_scores: FloatArray | None = None
        for name, ood in ood_sets.items():
            if not len(ood) or not len(id_test):
                raise InvalidInput(f"both sides need rows; got {len(id_test)} in-distribution, {len(ood)} of {name}.")
            for setting in _settings(fitted):
                started = time.perf_counter()
                if setting == "frozen":
                    id_scores = fitted.score(id_test) if id_scores is None else id_scores
                    result: RankingResult | PerClassResult = evaluate(id_scores, fitted.score(ood))
                elif setting == "stream":
                    result = evaluate(*_shuffled_stream(fitted, id_test, ood, seed))
                else:
                    result = evaluate_per_class(
                        msp_score(id_test.logits), id_test.predicted, msp_score(ood.logits), ood.predicted
                    )
                numbers = [getattr(result, metric) for metric in METRICS]
                sizes = (len(id_test), len(ood), time.perf_counter() - started)
                settings = (fitted.get_params(), seed if setting == "stream" else None)
                rows.append(ComparisonRow._make((fitted.name, setting, name, *numbers, *sizes, *settings)))
            tick(f"{fitted.name} on {name}")
    return rows


def _fitted(detector: Detector, train: ModelOutputs | None, validation: ModelOutputs | None) -> Detector:
    if detector.width_ is not None:
        return detector
    source = _training_set(detector, train, validation)
    if source is None:
        wanted = "labelled validation outputs" if detector.name == "temperature_scaling" else "training outputs"
        details = " with features and labels" if detector.reads == "features" else ""
        raise InvalidInput(f"{detector.name} needs {wanted}{details} to fit on.")
    if not detector.needs_fit and train is None:
        return detector
    return copy.copy(detector).fit(source)


def _settings(detector: Detector) -> Iterator[str]:
    yield "frozen"
    if isinstance(detector, NormScaling) and np.isfinite(detector.prior_weight):
        yield "stream"
    if isinstance(detector, MultiThreshold):
        yield "per class"


def _shuffled_stream(
    detector: Detector, id_test: ModelOutputs, ood: ModelOutputs, seed: int
) -> tuple[FloatArray, FloatArray]:
    """Scores of both sides when they come in one shuffled stream."""
    mixture = ModelOutputs.concatenate(
        [ModelOutputs(id_test.logits, id_test.features), ModelOutputs(ood.logits, ood.features)]
    )
    order = np.random.default_rng(seed).permutation(len(mixture))
    scores = np.empty(len(mixture))
    scores[order] = copy.copy(detector).stream(mixture[order])
    return scores[: len(id_test)], scores[len(id_test) :]
