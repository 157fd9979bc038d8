"""The default detector."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from normscale.dataframes import read_dataframe
from normscale.detectors.base import Detector, OutputsLike
from normscale.detectors.ensemble import MEMBERS, Ensemble
from normscale.detectors.registry import DEFAULT, make_detector, register
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


@register
class RobustNormScaling(StreamAware):
    """Norm-scaling that learns from a stream what OoD looks like, and keeps what training said about the rest.

    :class:`StreamAware` around the sum of frozen norm-scaling (of the classes that training shows) and centred Energy.
    It needs logits alone.

    References
    ----------
    Ravikumar & Roy, "Norm-Scaling for Out-of-Distribution Detection"; docs/robust.md.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> train = rng.normal(size=(600, 3)) + 6.0 * np.eye(3)[rng.integers(0, 3, 600)]
    >>> detector = RobustNormScaling().fit(train)
    >>> ood = rng.normal(size=(100, 3)) + [2.0, 0.0, 0.0]
    >>> scores = detector.stream(ood)
    >>> detector.n_streamed_, bool(detector.state.id_share[0] < 0.4)
    (100, True)
    """

    name = "robust_norm_scaling"
    title = "Robust Norm-Scaling"
    paper = "docs/robust.md, after Ravikumar & Roy"
    cost = "two passes over the logits; in a stream one row after the other"
    default_score = Ensemble.name
    parameters = {name: StreamAware.parameters[name] for name in ("memory", "prior_weight", "tolerance")}

    def __init__(self, memory: float = 50.0, prior_weight: float = 5.0, tolerance: float = 0.8) -> None:
        super().__init__(Ensemble(MEMBERS[:2]), memory, prior_weight, tolerance)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return Detector.get_params(self)
