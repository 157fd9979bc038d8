"""ReAct: features are cut off above a percentile before the last layer turns them into logits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NamedTuple

import numpy as np

from normscale._validate import FloatArray
from normscale.detectors.formula import LogitFormula, RectifiedFormula, SumFormula, arrays_of
from normscale.detectors.head_step import HEAD, HeadStep, all_features, percentile_of
from normscale.detectors.registry import register
from normscale.detectors.wrapper import Score
from normscale.outputs import LOGITS, Head, ModelOutputs


@register
class ReAct(HeadStep):
    """Rectified activations: logits of ``min(features, limit)``, scored by another detector.

    The limit is a percentile of all training activations together; no OoD data chooses it.

    Parameters
    ----------
    score : str or Detector
        What scores the new logits; the paper uses Energy.
    percentile : float in (0, 100)
        Of the training activations: what lies above is cut off. The paper's is 90.

    References
    ----------
    Sun, Guo & Li, "ReAct: Out-of-distribution Detection With Rectified Activations", 2021.

    Examples
    --------
    >>> from normscale import ModelOutputs
    >>> train = ModelOutputs(features=np.arange(10.0).reshape(5, 2), head=(np.eye(2), np.zeros(2)))
    >>> detector = ReAct("max_logit", percentile=50.0).fit(train)
    >>> detector.name, detector.limit_, detector.score(np.array([[9.0, 1.0], [2.0, 1.0]])).tolist()
    ('react+max_logit', 4.5, [-4.5, -2.0])
    """

    name = "react"
    title = "ReAct"
    paper = "Sun, Guo & Li 2021"
    cost = "the last layer, and the score"
    parameters = {
        "score": "the detector that scores the new logits",
        "percentile": "of the training activations; what lies above is cut off",
    }

    class Fitted(NamedTuple):
        """The last layer, and the limit of the features."""

        head: Annotated[Head, HEAD]
        limit: float

    fitted_: Fitted

    def __init__(self, score: Score = "energy", percentile: float = 90.0) -> None:
        self._score_by(score)
        self.percentile = percentile_of(percentile)

    def _partial_features(self, chunks: Iterator[ModelOutputs]) -> FloatArray:
        return all_features(chunks)

    def _finish_features(self, head: Head, total: FloatArray) -> Fitted:
        return self.Fitted(head, float(np.percentile(total, self.percentile)))

    def _logits(self, features: FloatArray) -> FloatArray:
        return self.fitted_.head.logits(np.minimum(features, self.fitted_.limit, out=features))

    def why_all_rows(self) -> str:
        return "its limit is a percentile of all training activations"

    def formula(self) -> RectifiedFormula | None:
        inner = self._scorer_formula() if self.scorer.reads == (LOGITS,) else None
        if not isinstance(inner, (LogitFormula, SumFormula)) or arrays_of(inner) != {LOGITS}:
            return None
        weight, bias = (part.astype(np.float64) for part in self.fitted_.head)
        return RectifiedFormula(self.fitted_.limit, weight, bias, inner)
