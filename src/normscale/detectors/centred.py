"""Centred: the mean of a row's logits is taken off before they are scored."""

from __future__ import annotations

import numpy as np

from normscale import _kernels, _validate
from normscale._validate import FloatArray, Rows
from normscale.detectors.formula import Formula, LogitFormula, SumFormula
from normscale.detectors.registry import register
from normscale.detectors.step import Step, require_logit_score
from normscale.detectors.wrapper import Score
from normscale.outputs import LOGITS, ModelOutputs


@register
class Centred(Step):
    """Logits less their mean over the row, scored by another detector.

    Softmax, and so training, cannot see a number that is added to all logits of a row. On some networks it varies from
    input to input and is larger for OoD inputs: then Energy and the largest logit are upside down. Without it they are
    not; on networks that keep it still, nothing changes.

    Parameters
    ----------
    score : str or Detector
        What scores the centred logits: any detector that reads logits alone.

    Examples
    --------
    >>> Centred("max_logit").score([[5.0, 1.0, 0.0], [105.0, 101.0, 100.0]]).tolist()
    [-3.0, -3.0]
    """

    name = "centred"
    title = "Centred"
    paper = "docs/robust.md"
    cost = "one more pass over the logits"
    default_score = "energy"
    own_reads = (LOGITS,)
    learns_nothing = True
    needs_fit = False
    parameters = {"score": "the detector that scores the centred logits"}

    def __init__(self, score: Score = "energy") -> None:
        self._score_by(score)
        require_logit_score(self, self.scorer)
        self.needs_fit = self.scorer.needs_fit

    def _transform(self, outputs: ModelOutputs, threads: int) -> ModelOutputs:
        return ModelOutputs._trusted({LOGITS: centred(outputs.logits)}, outputs.labels)

    def formula(self) -> LogitFormula | SumFormula | None:
        return _centred_formula(self._scorer_formula())


def _centred_formula(inner: Formula | None) -> LogitFormula | SumFormula | None:
    if isinstance(inner, LogitFormula):
        return inner._replace(centred=True)
    if not isinstance(inner, SumFormula):
        return None
    terms = [(weight, _centred_formula(term)) for weight, term in inner.terms]
    found = tuple((weight, term) for weight, term in terms if term is not None)
    return inner._replace(terms=found) if len(found) == len(terms) else None


def centred(logits: Rows) -> FloatArray:
    """Logits less the mean of their row; shape (n, C), float64."""
    rows = _kernels.less_row_means(logits)
    if not np.isfinite(rows).all():
        raise _validate.invalid_row_error(logits, LOGITS, can_skip=True)
    return rows
