"""ReAct: features are cut off above a percentile before the last layer turns them into logits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale import _validate
from normscale.detectors.base import join
from normscale.detectors.formula import LogitFormula, RectifiedFormula, offered_formula
from normscale.detectors.registry import register
from normscale.detectors.step import Step
from normscale.detectors.wrapper import Score
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, LOGITS, Head, ModelOutputs


@register
class ReAct(Step):
    """Rectified activations: logits of ``min(features, limit)``, scored by another detector.

    The limit is a percentile of all training activations together; no OoD data chooses it.

    Parameters
    ----------
    score : str or Detector
        What scores the new logits; the paper uses Energy.
    percentile : float in (0, 100)
        Of the training activations: what lies above is cut off. The paper's is 90.

    Attributes
    ----------
    limit_ : float
    head_ : Head

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
    default_score = "energy"
    own_reads = (FEATURES,)
    removes = (FEATURES,)
    needs_head = True
    parameters = {
        "score": "the detector that scores the new logits",
        "percentile": "of the training activations; what lies above is cut off",
    }

    limit_: float
    head_: Head

    def __init__(self, score: Score = "energy", percentile: float = 90.0) -> None:
        self._score_by(score)
        self.percentile = 100.0 * _validate.fraction(_validate.real(percentile, "percentile") / 100.0, "percentile/100")

    def _fit_step(self, chunks: Iterator[ModelOutputs]) -> None:
        train = join(chunks)
        assert train.head is not None  # the contract checked it
        if not np.isfinite(train.features).all():
            raise _validate.invalid_row_error(train.features, FEATURES)
        self.head_ = train.head
        self.limit_ = float(np.percentile(train.features.astype(np.float64, copy=False), self.percentile))

    def _transform(self, outputs: ModelOutputs, threads: int) -> ModelOutputs:
        rows = outputs.features.astype(np.float64, copy=False)
        if not np.isfinite(rows).all():
            raise _validate.invalid_row_error(rows, FEATURES, can_skip=True)
        others = {name: outputs.array(name) for name in outputs.names if name not in (FEATURES, LOGITS)}
        logits = self.head_.logits(np.minimum(rows, self.limit_))
        return ModelOutputs._trusted({LOGITS: logits, **others}, outputs.labels)

    def formula(self) -> RectifiedFormula | None:
        inner = offered_formula(self.scorer) if self.scorer.reads == (LOGITS,) else None
        if not isinstance(inner, LogitFormula):
            return None
        weight, bias = (part.astype(np.float64) for part in self.head_)
        return RectifiedFormula(self.limit_, weight, bias, inner)

    def _own_tensors(self) -> dict[str, NDArray[Any]]:
        return {"limit": np.array([self.limit_]), "head.weight": self.head_.weight, "head.bias": self.head_.bias}

    def _restore_own(self, tensors: dict[str, NDArray[Any]]) -> None:
        self.limit_ = float(_validate.as_finite_vector(tensors["limit"], "limit")[0])
        self.head_ = Head.checked((tensors["head.weight"], tensors["head.bias"]))
        if self.widths_ is not None and self.head_.weight.shape[1] != self.widths_[FEATURES]:
            raise InvalidInput("head.weight must have a column for each feature.")
