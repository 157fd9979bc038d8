"""The default detector: what outputs are scored by where nobody chose."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from normscale.dataframes import read_dataframe
from normscale.detectors.base import Detector, OutputsLike
from normscale.detectors.ensemble import MEMBERS, Ensemble
from normscale.detectors.registry import DEFAULT, make_detector
from normscale.detectors.stream_aware import StreamAware
from normscale.outputs import FEATURES, LOGITS, as_outputs, is_dataframe

AUTO = "auto"
"""What one types for the default detector where several are named."""


class Choice(NamedTuple):
    """A detector that is not fitted yet, and why it is this one."""

    detector: Detector
    reason: str


def default_detector(arrays: Collection[str], *, head: bool) -> Choice:
    """The default detector for outputs with these arrays.

    It is the stream-aware sum of norm-scaling, centred Energy, Mahalanobis++ and fDBD, as far as the arrays suffice:
    the last needs the head, the last two need features. Rules that choose by comparing detectors on in-distribution
    rows do no better: docs/choosing.md.

    Parameters
    ----------
    arrays : names
    head : bool
        Whether the outputs come with the network's last layer.

    Examples
    --------
    >>> default_detector(["logits", "features"], head=True).detector.name
    'stream_aware+ensemble'
    >>> default_detector(["logits"], head=False)
    Choice(detector=RobustNormScaling(memory=50.0, prior_weight=5.0, tolerance=0.8), reason='there are logits alone')
    """
    if LOGITS not in arrays:
        return Choice(make_detector("knn"), "there are no logits")
    if FEATURES not in arrays:
        return Choice(make_detector(DEFAULT), "there are logits alone")
    if not head:
        return Choice(StreamAware(Ensemble(MEMBERS[:3])), "there are logits and features, and no head")
    return Choice(StreamAware(Ensemble.name), "there are logits, features and the head")


def fit(outputs: OutputsLike) -> Detector:
    """The default detector for these outputs, fitted on them: see :func:`default_detector`.

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
    >>> ns.fit(ns.load_sample().train).reason
    'the default: there are logits, features and the head'
    """
    train, names = read_dataframe(outputs) if is_dataframe(outputs) else (as_outputs(outputs), None)
    detector, reason = default_detector(train.names, head=train.head is not None)
    detector.fit(train)
    detector.reason = f"the default: {reason}"
    detector.class_names = names
    return detector
