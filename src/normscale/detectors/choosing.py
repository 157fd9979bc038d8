"""Which detector to use where nobody chose one: by the arrays at hand, and by in-distribution rows alone."""

from __future__ import annotations

from typing import NamedTuple

from normscale._validate import BoolArray
from normscale.dataframes import read_dataframe
from normscale.detectors.base import Detector, OutputsLike
from normscale.detectors.ensemble import Ensemble
from normscale.detectors.registry import DEFAULT, make_detector
from normscale.detectors.stream_aware import StreamAware
from normscale.outputs import FEATURES, LOGITS, ModelOutputs, as_outputs, is_dataframe

AUTO = "auto"
"""What one types for a detector to have it chosen."""
_MOSTLY_WRONG = 0.5
"""A classifier that errs on more of the labelled rows than that says little by its logits."""
_FEWEST_LABELLED = 20


class Choice(NamedTuple):
    """A detector that is not fitted yet, and why it is this one."""

    detector: Detector
    reason: str


def choose_detector(train: ModelOutputs) -> Choice:
    """Choose a detector for the arrays of a training set; no OoD row is needed, and none is looked at.

    With features, logits and the head: the stream-aware ensemble of norm-scaling, centred Energy, KNN and ViM. Without
    the head: the same without ViM. With logits alone: robust norm-scaling. Where labels say that the classifier is
    wrong on most rows, logits tell little, and only the members that read features are taken. Several rules that
    compare detectors on in-distribution rows were measured (classes left out in turn, mistakes, made-up features); over
    the networks that are mostly right none of them does better than this on average: docs/choosing.md.

    Parameters
    ----------
    train : ModelOutputs

    Returns
    -------
    Choice

    Examples
    --------
    >>> import normscale as ns
    >>> sample = ns.load_sample()
    >>> choose_detector(sample.train).detector.name
    'stream_aware+ensemble'
    >>> choose_detector(ns.ModelOutputs(sample.train.logits)).reason
    'there are logits alone'
    """
    if FEATURES not in train.names or LOGITS not in train.names:
        if LOGITS not in train.names:
            return Choice(make_detector("knn"), "there are no logits")
        return Choice(make_detector(DEFAULT), "there are logits alone")
    wrong = _error_rate(train)
    with_head = train.head is not None
    of_features = ("knn", "vim") if with_head else ("knn",)
    found = "logits, features and the head" if with_head else "logits and features, and no head"
    if wrong is not None and wrong > _MOSTLY_WRONG:
        members: tuple[str, ...] = of_features
        reason = f"there are {found}, and the classifier is wrong on {100 * wrong:.0f} % of the rows"
    else:
        members = ("present_classes", "centred", *of_features)
        reason = f"there are {found}"
    same = members == Ensemble().detectors
    return Choice(StreamAware(Ensemble.name if same else Ensemble(members)), reason)


def fit(outputs: OutputsLike) -> Detector:
    """The default detector for these outputs, fitted on them: what :func:`choose_detector` chooses.

    Parameters
    ----------
    outputs : ModelOutputs, array of logits, mapping or DataFrame
        The classifier's outputs on its training set.

    Returns
    -------
    Detector

    Examples
    --------
    >>> import normscale as ns
    >>> ns.fit(ns.load_sample().train).name
    'stream_aware+ensemble'
    """
    train, names = read_dataframe(outputs) if is_dataframe(outputs) else (as_outputs(outputs), None)
    detector, reason = choose_detector(train)
    detector.fit(train)
    detector.choice = f"chosen by auto: {reason}"
    detector.class_names = names
    return detector


def _error_rate(train: ModelOutputs) -> float | None:
    """The share of rows whose predicted class is not their label; None where labels are missing or few."""
    if train.labels is None:
        return None
    known: BoolArray = train.labels >= 0
    if known.sum() < _FEWEST_LABELLED:
        return None
    return float((train.predicted[known] != train.labels[known]).mean())
