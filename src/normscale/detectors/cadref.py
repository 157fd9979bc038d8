"""CADRef: how far features lie from the mean of their predicted class, apart by the signs of its weights."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np

from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.detectors.class_sums import PredictedSums
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import by_blocks
from normscale.outputs import FEATURES, LOGITS, ModelOutputs
from normscale.scores import energy_score
from normscale.state import Numbers

_LEAST_ENERGY = 1e-3
_LEAST_SIZE = 1e-6
"""A row's features count as at least this share of the mean size of the classes' means."""


@register
class CADRef(Detector):
    """Class-aware relative features: the L1 gap to the predicted class's mean, split by the signs of its weights.

    With c the class of the largest logit, m_c the mean features of the training rows predicted as c and w_c its
    weights in the last layer, the gap g = f - m_c has a part that raises the logit, max(g sign(w_c), 0), and a part
    that lowers it, max(-g sign(w_c), 0). With E(z) = log sum exp(z) and its training mean,

        score = |raising part|_1 / (|f|_1 E(z)) + |lowering part|_1 / (|f|_1 mean E)

    Both E count as at least 0.001. The size of the features counts as at least a millionth of the classes' means. A
    class that was never predicted has the mean of all rows.

    References
    ----------
    Ling, Chang, Zhao, Liu & Chen, "CADRef: Robust Out-of-Distribution Detection via Class-Aware Decoupled Relative
    Feature Leveraging", CVPR 2025; the form with Energy.

    Examples
    --------
    >>> train = ModelOutputs([[2.0, -99.0], [-99.0, 2.0]], features=[[2.0, 0.0], [0.0, 2.0]], head=(np.eye(2), [0, 0]))
    >>> CADRef().fit(train).score(ModelOutputs([[4.0, -99.0]] * 2, features=[[2.0, 0.0], [4.0, 0.0]])).tolist()
    [0.0, 0.125]
    """

    name = "cadref"
    title = "CADRef"
    paper = "Ling et al. 2025"
    cost = "one pass over logits and features"
    reads = (LOGITS, FEATURES)
    needs_head = True

    class Fitted(NamedTuple):
        signs: Annotated[FloatArray, Numbers(LOGITS, FEATURES)]
        """Of the weights."""
        means: Annotated[FloatArray, Numbers(LOGITS, FEATURES)]
        energy: float
        """The mean one."""

    fitted_: Fitted

    def _partial(self, rows: ModelOutputs, turn: int) -> tuple[Any, PredictedSums, float]:
        return rows.head, PredictedSums.of(rows), -float(energy_score(rows.logits).sum())

    def _finish(self, total: Any, turn: int) -> Fitted:
        head, sums, energy = total
        return self.Fitted(np.sign(head.weight).astype(np.float64), sums.means, energy / sums.counts.sum())

    @by_blocks
    def _score(self, logits: FloatArray, features: FloatArray) -> FloatArray:
        signs, means, mean_energy = self.fitted_
        predicted = logits.argmax(axis=1)
        least = max(_LEAST_SIZE * float(np.abs(means).sum(axis=1).mean()), np.finfo(np.float64).tiny)
        size = np.maximum(np.abs(features).sum(axis=1), least)
        features -= means[predicted]
        features *= signs[predicted]
        raising = np.maximum(features, 0.0).sum(axis=1) / size
        lowering = np.maximum(-features, 0.0).sum(axis=1) / size
        energy = np.maximum(-energy_score(logits), _LEAST_ENERGY)
        score: FloatArray = raising / energy + lowering / max(mean_energy, _LEAST_ENERGY)
        return score
