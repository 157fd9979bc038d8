"""Robust norm-scaling: the default detector where there are logits alone."""

from __future__ import annotations

from typing import Any

from normscale.detectors.base import Detector
from normscale.detectors.ensemble import MEMBERS, Ensemble
from normscale.detectors.registry import register
from normscale.detectors.stream_aware import StreamAware


@register
class RobustNormScaling(StreamAware):
    """Norm-scaling that learns from a stream what OoD looks like, and keeps what training said about the rest.

    :class:`StreamAware` around the sum of frozen norm-scaling (of the classes that training shows) and centred Energy.
    It needs logits alone.

    Parameters
    ----------
    memory, prior_weight, tolerance
        See :class:`StreamAware`.

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
