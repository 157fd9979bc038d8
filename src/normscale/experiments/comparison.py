"""Compare detectors on the same outputs: one in-distribution test set, any number of OoD sets.

Every row says which class its numbers count as positive, how many inputs of each side there were, and in which
setting (:mod:`normscale.experiments.protocol`) the scores were made.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.detectors.registry import list_detectors, make_detector
from normscale.errors import InvalidInput
from normscale.experiments.protocol import FROZEN, STREAM, ScoredPair, score_pair, settings_of
from normscale.outputs import ModelOutputs

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
        fitted = fit_on(detector, train, validation)
        id_scores: FloatArray | None = None
        for name, ood in ood_sets.items():
            if not len(ood) or not len(id_test):
                raise InvalidInput(f"both sides need rows; got {len(id_test)} in-distribution, {len(ood)} of {name}.")
            for setting in settings_of(fitted):
                started = time.perf_counter()
                if setting == FROZEN and id_scores is not None:  # frozen scores of the test set serve every OoD set
                    pair = ScoredPair(id_scores, fitted.score(ood))
                else:
                    pair = score_pair(fitted, setting, id_test, ood, seed=seed)
                if setting == FROZEN:
                    id_scores = pair.id_scores
                result = pair.evaluate()
                numbers = [getattr(result, metric) for metric in METRICS]
                sizes = (len(id_test), len(ood), time.perf_counter() - started)
                settings = (fitted.get_params(), seed if setting == STREAM else None)
                rows.append(ComparisonRow._make((fitted.name, setting, name, *numbers, *sizes, *settings)))
            tick(f"{fitted.name} on {name}")
    return rows


def fit_on(detector: Detector, train: ModelOutputs | None, validation: ModelOutputs | None) -> Detector:
    """The detector fitted on what it may be fitted on: labelled validation outputs or training outputs."""
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
